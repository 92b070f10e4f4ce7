"""Standard normal noise in a quarter of the time torch takes: most of a perturbed step would be `normal_` otherwise."""

import math
from functools import cache

import torch
from torch import Tensor

__all__ = ["PER_WORD", "fill_standard_normal"]

PER_WORD = 4 * 2  # a random word of 64 bits holds four points of the plane, and a point is two draws
_BLOCK = 2**16  # draws at a time, so that their bits stay in the cache
_SIDE = 2**8
_GOLDEN = (5.0**0.5 - 1.0) / 2.0


def fill_standard_normal(out: Tensor, generator: torch.Generator) -> None:  # (n,), n a multiple of PER_WORD
    """Box & Muller's method on a grid of 256 equally likely radii × 256 angles, into `out`.

    Mean 0, variance 1 and no correlation hold exactly for the grid; its distribution function is within 5e-4 of the
    normal one, and no draw lies beyond 3.6. Numbers are drawn on the generator's device, so that a generator on the CPU
    gives the same noise to weights on any device.
    """
    grid = _grid(out.device)
    for part in out.split(_BLOCK):
        words = torch.empty(len(part) // PER_WORD, dtype=torch.int64, device=generator.device)
        words.random_(-(2**63), None, generator=generator)
        chosen = words.view(torch.uint16).to(device=out.device, dtype=torch.int32)
        if out.dtype == torch.float32:
            torch.index_select(grid, 0, chosen, out=torch.view_as_complex(part.view(-1, 2)))
        else:
            part.copy_(torch.view_as_real(grid.index_select(0, chosen)).flatten())


@cache
def _grid(device: torch.device) -> Tensor:  # (65536,) complex64: points of the plane whose two coordinates are normal
    middles = (torch.arange(_SIDE, dtype=torch.float64) + 0.5) / _SIDE
    squares = -2.0 * middles.log()
    radii = (squares / squares.mean() * 2.0).sqrt()  # E r² = 2: each coordinate has variance 1
    # Each circle is turned by another part of an angle, lest the coordinates of all of them fall together.
    turns = middles + (torch.arange(_SIDE, dtype=torch.float64)[:, None] * _GOLDEN % 1.0) / _SIDE
    return torch.polar(radii[:, None].expand_as(turns), 2.0 * math.pi * turns).flatten().to(device, torch.complex64)

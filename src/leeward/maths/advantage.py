"""Advantage normalisation: one place, once per rollout."""

import torch
from torch import Tensor

from leeward.errors import ArgumentError, ShapeError, did_you_mean
from leeward.maths.checks import check_finite, check_mask, check_not_negative, check_positive

__all__ = ["MODES", "below_floor", "normalise"]

MODES = ("global", "per_env", "none")


def normalise(
    advantages: Tensor,  # (T, B)
    mask: Tensor | None = None,  # (T, B) bool, True = real
    *,
    mode: str = "global",
    abs_floor: float = 1e-8,
    rel_floor: float = 1e-6,
) -> Tensor:  # (T, B)
    """Mean 0 and standard deviation 1 over the real rows; exact zeros where there is no spread to speak of.

    Â = (A − mean) / std, statistics in float64, population form, over everything (`global`) or each env (`per_env`).
    Where std < max(abs_floor, rel_floor · max|A|) the differences are numerical noise, and dividing noise by itself
    would look like signal: those rows become 0 (`below_floor` tells). So do padded rows.
    Mode `none` centres nothing.
    """
    mean, std, floored = _statistics(advantages, mask, mode, abs_floor, rel_floor)
    real = torch.ones_like(advantages, dtype=torch.bool) if mask is None else mask
    if mode == "none":
        return advantages.masked_fill(~real, 0.0)
    centred = advantages.to(torch.float64) - mean
    return (centred / std).masked_fill(floored | ~real, 0.0).to(advantages.dtype)


def below_floor(
    advantages: Tensor,
    mask: Tensor | None = None,
    *,
    mode: str = "global",
    abs_floor: float = 1e-8,
    rel_floor: float = 1e-6,
) -> Tensor:  # (T, B) -> (1, 1) or (1, B) bool
    """Where `normalise` would return zeros because the spread is below the floor; never in mode `none`."""
    return _statistics(advantages, mask, mode, abs_floor, rel_floor)[2]


def _statistics(
    advantages: Tensor, mask: Tensor | None, mode: str, abs_floor: float, rel_floor: float
) -> tuple[Tensor, Tensor, Tensor]:
    if mode not in MODES:
        raise ArgumentError(f"unknown advantage normalisation {mode!r}; {did_you_mean(mode, MODES)}")
    if mask is not None and mask.shape != advantages.shape:
        raise ShapeError(f"mask must have the shape of advantages, {tuple(advantages.shape)}, got {tuple(mask.shape)}")
    if mask is not None:
        check_mask(mask)
    check_positive(abs_floor=abs_floor)
    check_not_negative(rel_floor=rel_floor)
    real = torch.ones_like(advantages, dtype=torch.bool) if mask is None else mask
    if not bool(real.any()):
        raise ArgumentError("mask selects no advantage; drop the empty rollout before it gets here")
    check_finite(advantages=advantages.masked_fill(~real, 0.0))
    axes = (0,) if mode == "per_env" else tuple(range(advantages.ndim))
    exact = advantages.to(torch.float64).masked_fill(~real, 0.0)
    count = real.sum(axes, keepdim=True).clamp(min=1)
    mean = exact.sum(axes, keepdim=True) / count
    std = ((exact - mean).masked_fill(~real, 0.0).square().sum(axes, keepdim=True) / count).sqrt()
    floor = (rel_floor * exact.abs().amax(axes, keepdim=True)).clamp(min=abs_floor)
    floored = std < floor if mode != "none" else torch.zeros_like(std, dtype=torch.bool)
    floored &= real.any(dim=0, keepdim=True) if mode == "per_env" else True  # an env without a real row has no spread
    return mean, std.clamp(min=torch.finfo(torch.float64).tiny), floored

"""The pinball loss (κ = 0) on sorted targets as one compiled pass over memory: what training on a CPU uses.

With j of M targets below q, S_j their sum and T the sum of all, a quantile's loss and its slope are

    Σ_{t<q} (1 − τ)(q − t) + Σ_{t≥q} τ (t − q) = q (j − Mτ) − S_j + τ T        d/dq = j − Mτ

j is counted by comparing every target with every quantile: eight at a time and without a branch, which is faster than
a search of a few steps that no processor can foresee.
"""

from typing import Any

import numba
import numpy as np
import torch
from torch import Tensor

__all__ = ["pinball_loss"]


# nogil: the critics' pass may have a thread of its own; reassoc: sums of several numbers at a time.
@numba.njit(cache=True, nogil=True, error_model="numpy", fastmath={"reassoc", "contract"})
def _pass(quantiles: Any, targets: Any, levels: Any, loss: Any, slope: Any) -> None:
    """(R, C, N), (R, M) sorted, (N,) -> (R, C) and (R, C, N): means over levels and targets, and their gradient."""
    R, C, N = quantiles.shape
    M = targets.shape[1]
    share = 1.0 / (M * N)
    aims = np.empty(N)  # Mτ
    for n in range(N):
        aims[n] = M * np.float64(levels[n])
    sums = np.zeros(M + 1)  # S_0 … S_M, in float64
    below = np.empty(N, np.int32)
    for r in range(R):
        for m in range(M):
            sums[m + 1] = sums[m] + targets[r, m]
        for c in range(C):
            q = quantiles[r, c]
            for n in range(N):
                count = np.int32(0)
                for m in range(M):
                    count += np.int32(targets[r, m] < q[n])
                below[n] = count
            for n in range(N):
                slope[r, c, n] = (below[n] - aims[n]) * share
            total = 0.0
            for n in range(N):
                total += q[n] * (below[n] - aims[n]) - sums[below[n]] + levels[n] * sums[M]
            loss[r, c] = total * share


class _Pinball(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, quantiles: Tensor, targets: Tensor, levels: Tensor) -> Tensor:
        C, N = quantiles.shape[-2:]
        loss = quantiles.new_empty(quantiles.shape[:-1])
        slope = quantiles.new_empty(quantiles.shape)
        _pass(
            quantiles.reshape(-1, C, N).numpy(),
            targets.reshape(-1, targets.shape[-1]).numpy(),
            levels.numpy(),
            loss.view(-1, C).numpy(),
            slope.view(-1, C, N).numpy(),
        )
        ctx.save_for_backward(slope)
        return loss

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None]:
        (slope,) = ctx.saved_tensors
        return gradient.unsqueeze(-1) * slope, None, None


def pinball_loss(quantiles: Tensor, targets: Tensor, levels: Tensor) -> Tensor:
    """Of C critics on the same M sorted targets, (..., C, N), (..., M), (N,) -> (..., C)."""
    loss: Tensor = _Pinball.apply(quantiles, targets, levels)  # type: ignore[no-untyped-call]
    return loss

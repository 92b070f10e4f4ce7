"""Conditional value at risk: the mean of the worst α of the outcomes. One estimator for agent, backtest and report.

CVaR_α = (1/α) ∫₀^α F⁻¹(u) du, with F⁻¹ a step function: the i-th smallest value is a step of width w_i, and the
step that α cuts counts in part. Continuous and monotone in α; at α = 1 it is the mean (Rockafellar & Uryasev 2002).
Lower tail throughout. For smooth tails only when few quantiles are given: an atom (a rare crash) that falls between two
levels is seen by neither, which is why constraints use the measured tail.
"""

import math

import torch
from torch import Tensor

from leeward.errors import ArgumentError, ShapeError
from leeward.maths.checks import check_alpha, check_finite, check_last_axis, check_levels, check_weights

__all__ = ["from_atoms", "from_quantiles", "from_samples", "standard_error", "value_at_risk"]


def from_quantiles(
    quantiles: Tensor, alpha: float, *, levels: Tensor | None = None, weights: Tensor | None = None
) -> Tensor:  # (..., N) -> (...)
    """CVaR of quantiles on a level grid; equal weights unless given. Sorted first: the i-th smallest takes weight i."""
    check_alpha(alpha)
    check_last_axis(quantiles=quantiles)
    check_finite(quantiles=quantiles)
    N = quantiles.shape[-1]
    if levels is not None and weights is None:
        raise ArgumentError(
            "levels were given without weights; pass both, as uniform_levels or tail_levels return them"
        )
    for name, grid in (("levels", levels), ("weights", weights)):
        if grid is not None and tuple(grid.shape) != (N,):
            raise ShapeError(f"{name} need one entry per quantile, ({N},), got {tuple(grid.shape)}")
    if levels is not None:
        check_levels(levels)
    if weights is None:
        weights = torch.full((N,), 1.0 / N, dtype=torch.float64, device=quantiles.device)
    else:
        check_weights(weights)
    return _tail_mean(quantiles.sort(-1).values, weights, alpha)


def from_atoms(probs: Tensor, support: Tensor, alpha: float) -> Tensor:  # (..., K), (K,) -> (...)
    """CVaR of a discrete distribution, exact; the atom at the value at risk counts in part."""
    check_alpha(alpha)
    check_last_axis(probs=probs)
    check_finite(support=support)
    check_weights(probs)
    if tuple(support.shape) != (probs.shape[-1],):
        raise ShapeError(f"support needs one value per atom, ({probs.shape[-1]},), got {tuple(support.shape)}")
    ordered, order = support.sort()
    return _tail_mean(ordered, probs[..., order], alpha)


def from_samples(samples: Tensor, alpha: float) -> Tensor:  # (..., M) -> (...)
    """CVaR of the empirical distribution; never winsorised."""
    _check_samples(samples, alpha)
    return from_quantiles(samples, alpha)


def value_at_risk(samples: Tensor, alpha: float) -> Tensor:  # (..., M) -> (...)
    """The α-quantile of the empirical distribution, the largest sample of its tail."""
    _check_samples(samples, alpha)
    return samples.kthvalue(max(1, math.ceil(alpha * samples.shape[-1] - 1e-9)), -1).values


def standard_error(samples: Tensor, alpha: float) -> Tensor:  # (..., M) -> (...)
    """The standard error of `from_samples` for large M: the spread of (ν − X)⁺/α over √M, ν the value at risk.

    CVaR = max_ν { ν − E(ν − X)⁺/α }, and at its maximum an error in ν counts in second order only (Trindade et al.
    2007, J. Banking & Finance 31). Samples are independent: for a time series it is too small, and so it is where an
    atom's probability is near α.
    """
    _check_samples(samples, alpha)
    M = samples.shape[-1]
    # Where α·M is whole every ν up to the next sample is a maximiser, and the next sample lets all of the tail count.
    beside = samples.kthvalue(min(M, math.floor(alpha * M + 1e-9) + 1), -1, keepdim=True).values
    return ((beside - samples).clamp(min=0.0) / alpha).std(-1, correction=0) / math.sqrt(M)


def _check_samples(samples: Tensor, alpha: float) -> None:
    check_alpha(alpha)
    check_last_axis(samples=samples)
    check_finite(samples=samples)


def _tail_mean(ordered: Tensor, weights: Tensor, alpha: float) -> Tensor:
    widths = weights.to(torch.float64)
    left = widths.cumsum(-1) - widths  # left edge of each step
    inside = torch.minimum((alpha - left).clamp(min=0.0), widths)
    inside = inside / inside.sum(-1, keepdim=True)  # sums to α but for rounding
    return (ordered * inside.to(ordered.dtype)).sum(-1)

"""Numbers that say whether learning is healthy; no gradient flows through them."""

import torch
from torch import Tensor

from leeward.errors import ArgumentError, ShapeError
from leeward.maths.checks import check_levels, check_same_shape

__all__ = ["calibration_error", "coverage", "crossing_rate", "crossing_size", "explained_variance"]


def explained_variance(predictions: Tensor, targets: Tensor) -> Tensor:  # (...) -> ()
    """1 − Var(target − prediction)/Var(target), in float64; NaN where the targets do not vary. Reduced: every axis.

    Targets that differ by rounding alone do not vary: the mean of equal numbers need not be that number.
    """
    check_same_shape(predictions=predictions, targets=targets)
    if targets.numel() == 0:
        raise ArgumentError("explained variance needs at least one target, got none")
    exact = targets.detach().to(torch.float64)
    residual = exact - predictions.detach().to(torch.float64)
    variance = exact.var(correction=0)
    share = 1.0 - residual.var(correction=0) / variance
    varies = variance > (1e-12 * exact.abs().max()).square()
    return torch.where(varies, share, torch.full_like(share, torch.nan))


def coverage(quantiles: Tensor, targets: Tensor) -> Tensor:  # (..., N), (..., M) -> (N,)
    """Share of targets at or below each quantile, over every row and target; a calibrated critic gives its levels."""
    if quantiles.shape[:-1] != targets.shape[:-1]:
        raise ShapeError(
            f"quantiles {tuple(quantiles.shape)} and targets {tuple(targets.shape)} must agree on all axes but the last"
        )
    if targets.numel() == 0:
        raise ArgumentError("coverage needs at least one target, got none")
    if quantiles.dtype != targets.dtype:
        raise ArgumentError(f"quantiles and targets must have one dtype, got {quantiles.dtype} and {targets.dtype}")
    ordered = targets.sort(-1).values
    below = torch.searchsorted(ordered, quantiles.contiguous(), right=True).to(torch.float64)  # (..., N)
    return below.reshape(-1, quantiles.shape[-1]).mean(0) / targets.shape[-1]


def calibration_error(quantiles: Tensor, targets: Tensor, levels: Tensor) -> Tensor:  # (..., N), (..., M), (N,) -> ()
    """Mean absolute gap between level and coverage. Reduced: every axis."""
    check_levels(levels)
    return (coverage(quantiles, targets) - levels.to(torch.float64)).abs().mean()


def crossing_rate(quantiles: Tensor) -> Tensor:  # (..., N) -> ()
    """Share of neighbouring quantiles in the wrong order; 0 for a single quantile, which has no neighbour."""
    if quantiles.shape[-1] < 2:
        return torch.zeros((), device=quantiles.device)
    return (quantiles.diff(dim=-1) < 0).float().mean()


def crossing_size(quantiles: Tensor, weights: Tensor) -> Tensor:  # (..., N), (N,) -> ()
    """How far quantiles are from being in order: the distance by which sorting moves them, in their own unit.

    Σ_i w_i |q_(i) − q_i|, the mean over rows. Reduced: every axis.
    """
    return ((quantiles.sort(-1).values - quantiles).abs() * weights).sum(-1).mean()

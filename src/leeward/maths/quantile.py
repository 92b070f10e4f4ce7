"""Quantile levels and the quantile Huber loss."""

from functools import cache

import torch
from torch import Tensor

from leeward.errors import ArgumentError, ShapeError
from leeward.maths.checks import check_finite, check_last_axis, check_levels, check_not_negative
from leeward.maths.quadrature import gauss_legendre

__all__ = ["at_level", "huber_loss", "tail_levels", "uniform_levels"]


def uniform_levels(n: int) -> tuple[Tensor, Tensor]:  # -> (n,), (n,) float64
    """Midpoints τ_i = (i + ½)/n with equal weights 1/n (Dabney et al. 2018, lemma 2)."""
    if n < 1:
        raise ArgumentError(f"a critic needs at least one quantile level, got {n}")
    return (torch.arange(n, dtype=torch.float64) + 0.5) / n, torch.full((n,), 1.0 / n, dtype=torch.float64)


@cache
def _tail_levels(n: int, alpha: float, n_tail: int) -> tuple[Tensor, Tensor]:
    tail, tail_weights = gauss_legendre(n_tail, 0.0, alpha)
    rest, rest_weights = gauss_legendre(n - n_tail, alpha, 1.0)
    return torch.cat([tail, rest]), torch.cat([tail_weights, rest_weights])


def tail_levels(n: int, alpha: float, n_tail: int = 8) -> tuple[Tensor, Tensor]:  # -> (n,), (n,) float64
    """Levels that see the tail: `n_tail` Gauss-Legendre nodes in (0, α), the others in (α, 1); weights sum to 1.

    mean = Σ w q,  CVaR_α = Σ_{tail} w q / α: both are Gauss quadratures of the quantile function.
    The running sum of the weights separates the nodes (Chebyshev-Markov-Stieltjes), so each weight is also the width
    of the step its quantile stands for.
    """
    if not 0.0 < alpha < 1.0:
        raise ArgumentError(f"alpha of a tail grid must lie inside (0, 1), got {alpha}")
    if not 1 <= n_tail < n:
        raise ArgumentError(f"n_tail must be at least 1 and less than n = {n}, got {n_tail}")
    levels, weights = _tail_levels(n, alpha, n_tail)
    return levels.clone(), weights.clone()


def at_level(quantiles: Tensor, levels: Tensor, tau: float) -> Tensor:  # (..., N), (N,) -> (...)
    """The quantile at level τ: linear between neighbouring levels, the outermost one beyond them. Sorted first."""
    check_levels(levels)
    check_finite(quantiles=quantiles)
    if not 0.0 < tau < 1.0:
        raise ArgumentError(f"tau is a level inside (0, 1), got {tau}")
    if quantiles.shape[-1] != len(levels):
        raise ShapeError(f"quantiles need one entry per level, {len(levels)}, got {quantiles.shape[-1]}")
    ordered = quantiles.sort(-1).values
    above = int(torch.searchsorted(levels.to(torch.float64), torch.tensor(tau, dtype=torch.float64)))
    if above == 0 or above == len(levels):
        return ordered[..., min(above, len(levels) - 1)]
    low, high = float(levels[above - 1]), float(levels[above])
    share = (tau - low) / (high - low)
    return torch.lerp(ordered[..., above - 1], ordered[..., above], share)


def huber_loss(quantiles: Tensor, targets: Tensor, levels: Tensor, *, kappa: float) -> Tensor:
    """Quantile Huber loss, (..., N), (..., M), (N,) -> (...): mean over targets, mean over levels.

    u = target − quantile,  ρ = |τ − 1{u<0}| · H(u),  H = |u| − κ/2 beyond κ, u²/(2κ) within
    Dabney et al. 2018 (arXiv:1710.10044), eq. 10, *divided by κ*, so that κ → 0 is the pinball loss (and κ = 0 is it).
    They sum over levels; we average, and each level counts the same whatever its quadrature weight. κ is in the unit
    of the quantiles. This is the reference, with the whole (N, M) table; training takes the same loss and gradient from
    `quantile_sorted`, which never builds it.
    """
    check_levels(levels)
    check_last_axis(targets=targets)
    check_not_negative(kappa=kappa)
    if quantiles.shape[:-1] != targets.shape[:-1]:
        raise ShapeError(
            f"quantiles {tuple(quantiles.shape)} and targets {tuple(targets.shape)} must agree on all axes but the last"
        )
    if quantiles.shape[-1] != len(levels):
        raise ShapeError(f"quantiles need one entry per level, {len(levels)}, got {quantiles.shape[-1]}")
    if quantiles.dtype != targets.dtype:
        raise ArgumentError(f"quantiles and targets must have one dtype, got {quantiles.dtype} and {targets.dtype}")
    u = targets.unsqueeze(-2) - quantiles.unsqueeze(-1)  # (..., N, M)
    asymmetry = levels.to(u.dtype).unsqueeze(-1) - (u < 0.0).to(u.dtype)  # (..., N, M)
    if kappa == 0.0:
        table = asymmetry * u  # both have one sign; the slope at the kink u = 0 is that of a target above
    else:
        size = u.abs()
        table = asymmetry.abs() * torch.where(size <= kappa, u.square() / (2.0 * kappa), size - 0.5 * kappa)
    return table.mean((-2, -1))

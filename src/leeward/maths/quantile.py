"""Quantile levels and the quantile Huber loss."""

from functools import cache
from typing import NamedTuple

import torch
from torch import Tensor

from leeward.errors import ArgumentError, ShapeError
from leeward.maths.checks import check_finite, check_last_axis, check_levels, check_not_negative
from leeward.maths.quadrature import gauss_legendre

__all__ = [
    "SortedTargets",
    "at_level",
    "huber_loss",
    "sort_targets",
    "sorted_huber_loss",
    "tail_levels",
    "uniform_levels",
]


class SortedTargets(NamedTuple):
    """What the quantile loss needs of M targets: sorted, and running sums of (t − c), c the middle one."""

    values: Tensor  # (..., M)
    first: Tensor  # (..., M + 1), Σ (t − c) over the smallest 0, 1, ..., M
    second: Tensor | None  # (..., M + 1), Σ (t − c)², for κ > 0


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
    """Quantile Huber loss, (..., N) and (..., M) -> (...): mean over targets, mean over levels.

    u = target − quantile,  ρ = |τ − 1{u<0}| · H(u),  H = |u| − κ/2 beyond κ, u²/(2κ) within
    Dabney et al. 2018 (arXiv:1710.10044), eq. 10, *divided by κ*, so that κ → 0 is the pinball loss (and κ = 0 is it).
    They sum over levels; we average, and each level counts the same whatever its quadrature weight. κ is in the unit
    of the quantiles. Cost: a sort of the targets, then O((N + M) log M), never the (N, M) table.
    """
    check_levels(levels)
    check_last_axis(targets=targets)
    ready = sort_targets(targets, squares=kappa > 0.0)
    return sorted_huber_loss(quantiles.unsqueeze(-2), ready, levels, kappa=kappa).squeeze(-1)


def sort_targets(targets: Tensor, *, squares: bool) -> SortedTargets:  # (..., M)
    """Prepare targets for `sorted_huber_loss`, once per rollout; `squares` are needed for κ > 0 only."""
    values = targets.sort(-1).values + 0.0  # no −0, of which `_count_below` would see the sign
    # Centred on the middle target, so that float32 sums of squares keep their digits.
    centred = values - values[..., values.shape[-1] // 2, None]

    def running(terms: Tensor) -> Tensor:
        return torch.nn.functional.pad(terms.cumsum(-1), (1, 0))

    return SortedTargets(values, running(centred), running(centred.square()) if squares else None)


def sorted_huber_loss(quantiles: Tensor, targets: SortedTargets, levels: Tensor, *, kappa: float) -> Tensor:
    """`huber_loss` of C critics on the same targets, (..., C, N) -> (..., C); exact, and so is its gradient.

    Runs once per minibatch, so it checks shapes only: the levels are checked where they are made. In float32 the
    gradient on standardised targets errs by about 1e-7/κ of its size, so that κ = 0 is better than κ below 1e-3.
    """
    ordered = targets.values
    if quantiles.shape[:-2] != ordered.shape[:-1]:
        raise ShapeError(
            f"quantiles {tuple(quantiles.shape)} and targets {tuple(ordered.shape)} must agree on all axes but "
            "(critics, levels) and (targets)"
        )
    if quantiles.shape[-1] != len(levels):
        raise ShapeError(f"quantiles need one entry per level, {len(levels)}, got {quantiles.shape[-1]}")
    if quantiles.dtype != ordered.dtype or quantiles.dtype not in (torch.float32, torch.float64):
        raise ArgumentError(
            f"quantiles and targets must both be float32 or both float64, got {quantiles.dtype} and {ordered.dtype}"
        )
    check_not_negative(kappa=kappa)
    M, shape = ordered.shape[-1], quantiles.shape
    levels = levels.to(quantiles.dtype)
    q = quantiles - ordered[..., M // 2, None, None]  # (..., C, N), centred like the sums
    total = targets.first[..., -1:, None]  # (..., 1, 1)

    def below(thresholds: Tensor) -> tuple[Tensor, Tensor]:  # (..., C, N): targets under each, as index and as float
        index = _count_below(ordered, thresholds.detach().flatten(-2))  # (..., C·N)
        return index.to(torch.int64), index.to(q.dtype).view(shape)

    def sums(running: Tensor, index: Tensor) -> Tensor:  # (..., C, N)
        return running.gather(-1, index).view(shape)

    index, count = below(quantiles)
    first = sums(targets.first, index)
    if kappa == 0.0:  # (1 − τ) Σ_{t<q} (q − t) + τ Σ_{t≥q} (t − q), written so that one product carries the gradient
        loss = torch.addcmul(levels * total - first, q, count - M * levels)
    else:
        if targets.second is None:
            raise ArgumentError("kappa > 0 needs targets prepared with squares=True")
        low_index, low = below(quantiles - kappa)
        high_index, high = below(quantiles + kappa)
        low_first, high_first = (sums(targets.first, i) for i in (low_index, high_index))
        second, low_second, high_second = (sums(targets.second, i) for i in (index, low_index, high_index))
        near_under = (count - low) * q.square() - 2.0 * q * (first - low_first) + second - low_second
        near_over = (high - count) * q.square() - 2.0 * q * (high_first - first) + high_second - second
        under = low * (q - 0.5 * kappa) - low_first + near_under / (2.0 * kappa)
        over = (total - high_first) - (M - high) * (q + 0.5 * kappa) + near_over / (2.0 * kappa)
        loss = (1.0 - levels) * under + levels * over
    each: Tensor = loss.mean(-1) / M
    return each


def _count_below(ordered: Tensor, points: Tensor) -> Tensor:  # (..., M) sorted, (..., P) -> (..., P) integers
    """`torch.searchsorted` in 0.4 × its time: all points a halving at a time, so that no branch is mispredicted, and
    the sign bit of target − point in place of a comparison, whose single bytes are slow to add."""
    left = M = ordered.shape[-1]  # targets not yet decided on
    table, shape = ordered.reshape(-1), points.shape
    bits, integers = (31, torch.int32) if points.dtype == torch.float32 else (63, torch.int64)
    places = integers if table.numel() < 2**31 else torch.int64
    first = torch.arange(0, table.numel(), M, dtype=places, device=table.device).view(*shape[:-1], 1)

    def under(targets: Tensor) -> Tensor:  # −1 where a target is less than its point, else 0
        return targets.sub_(points).view(integers).bitwise_right_shift_(bits)

    half = (left + 1) // 2  # rounded up, so that the last of M = 1 is looked at too
    # In the table. The first look is at one target of a row for all its points.
    place = first - under(ordered[..., half - 1, None].expand(shape).clone()) * half
    left -= half
    while left > 0:
        half = (left + 1) // 2
        place.sub_(under(table[half - 1 :].index_select(0, place.view(-1)).view(shape)), alpha=half)
        left -= half
    return place.sub_(first)

"""The quantile Huber loss of `quantile.huber_loss` without its (N, M) table: what training uses.

Once the targets are sorted, every count and sum under the table is a difference of running sums. Cost: a sort of the
targets once per rollout, then O(N log M) for each row and critic; the tests prove value and gradient equal. For κ = 0
on a CPU `quantile_compiled` needs neither the sums nor the search.
"""

from typing import NamedTuple

import torch
from torch import Tensor

from leeward.errors import ArgumentError, ShapeError
from leeward.maths.checks import check_last_axis, check_not_negative

__all__ = ["SortedTargets", "sort_targets", "sorted_huber_loss", "with_sums"]


class SortedTargets(NamedTuple):
    """What the quantile loss needs of M targets: sorted, and running sums of (t − c), c the middle one."""

    values: Tensor  # (..., M)
    first: Tensor | None  # (..., M + 1), Σ (t − c) over the smallest 0, 1, ..., M; None: the compiled loss needs none
    second: Tensor | None  # (..., M + 1), Σ (t − c)², for κ > 0


def sort_targets(targets: Tensor, *, kappa: float) -> SortedTargets:  # (..., M)
    """Prepare targets for `sorted_huber_loss` with this κ, once per rollout."""
    check_last_axis(targets=targets)
    values = targets.sort(-1).values
    if kappa == 0.0 and values.device.type == "cpu":
        return SortedTargets(values, None, None)
    return with_sums(values, squares=kappa > 0.0)


def with_sums(values: Tensor, *, squares: bool) -> SortedTargets:  # (..., M), sorted
    """Running sums of sorted targets; of their squares too, which κ > 0 needs."""
    # Centred on the middle target, so that float32 sums of squares keep their digits.
    centred = values - values[..., values.shape[-1] // 2, None]

    def running(terms: Tensor) -> Tensor:
        return torch.nn.functional.pad(terms.cumsum(-1), (1, 0))

    return SortedTargets(values, running(centred), running(centred.square()) if squares else None)


def sorted_huber_loss(quantiles: Tensor, targets: SortedTargets, levels: Tensor, *, kappa: float) -> Tensor:
    """`quantile.huber_loss` of C critics on the same targets, (..., C, N) -> (..., C); exact, and so is its gradient.

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
    if targets.first is None:
        if kappa > 0.0:
            raise ArgumentError("kappa > 0 needs targets prepared for it, and these were prepared for kappa = 0")
        from leeward.maths.quantile_compiled import pinball_loss  # numba is loaded when training needs it

        return pinball_loss(quantiles, ordered, levels)
    q = quantiles - ordered[..., M // 2, None, None]  # (..., C, N), centred like the sums
    total = targets.first[..., -1:, None]  # (..., 1, 1)

    def below(thresholds: Tensor) -> tuple[Tensor, Tensor]:  # (..., C, N): targets under each, as index and as float
        index = torch.searchsorted(ordered.contiguous(), thresholds.detach().flatten(-2).contiguous())  # (..., C·N)
        return index, index.to(q.dtype).view(shape)

    def sums(running: Tensor, index: Tensor) -> Tensor:  # (..., C, N)
        return running.gather(-1, index).view(shape)

    index, count = below(quantiles)
    first = sums(targets.first, index)
    if kappa == 0.0:  # (1 − τ) Σ_{t<q} (q − t) + τ Σ_{t≥q} (t − q), written so that one product carries the gradient
        loss = torch.addcmul(levels * total - first, q, count - M * levels)
    else:
        if targets.second is None:
            raise ArgumentError("kappa > 0 needs targets with sums of squares")
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

"""Value clipping: the prediction is held near the one of the rollout. Targets are never clipped.

The loss is max(unclipped, clipped) per sample, then the mean. `radius` is in the unit of the quantiles.

mode               what it holds                        gradient where it acts
disable            nothing                              full
mean_only          mean within ± radius of the old      the spread learns, the mean does not
mean_and_variance  that, and std ≤ factor · old std     the shape learns, mean and std do not; the spread never grows
per_quantile       each quantile within ± radius        clipped quantiles: none
"""

from collections.abc import Callable

import torch
from torch import Tensor

from leeward.errors import ArgumentError, ShapeError, did_you_mean
from leeward.maths.categorical import spread
from leeward.maths.checks import check_positive

__all__ = ["CATEGORICAL_MODES", "MODES", "clip_categorical", "clip_quantiles"]


def clip_quantiles(
    new: Tensor,  # (..., N)
    old: Tensor,  # (..., N)
    *,
    radius: float,
    mode: str,
    max_std_factor: float = 2.0,
    weights: Tensor | None = None,  # (N,), the grid's; None = equal
) -> Tensor:  # (..., N)
    """`new` held near `old` in one of the four ways; the mean and the standard deviation are weighted by the grid."""
    if new.shape != old.shape:
        raise ShapeError(f"old must have the shape of new, {tuple(new.shape)}, got {tuple(old.shape)}")
    if mode not in MODES:
        raise ArgumentError(f"unknown value clip {mode!r}; {did_you_mean(mode, MODES)}")
    check_positive(radius=radius)
    if not max_std_factor >= 1.0:
        raise ArgumentError(f"max_std_factor must be at least 1 (clipping never expands), got {max_std_factor}")
    if weights is None:
        weights = new.new_full((new.shape[-1],), 1.0 / new.shape[-1])
    elif tuple(weights.shape) != new.shape[-1:]:
        raise ShapeError(f"weights need one entry per quantile, {tuple(new.shape[-1:])}, got {tuple(weights.shape)}")
    return MODES[mode](new, old, radius, max_std_factor, weights.to(new.dtype))


def clip_categorical(new: Tensor, old: Tensor, support: Tensor, *, radius: float, mode: str) -> Tensor:  # (..., K)
    """The same for probabilities on a support: `mean_only` shifts the atoms, then projects them back."""
    if new.shape != old.shape:
        raise ShapeError(f"old must have the shape of new, {tuple(new.shape)}, got {tuple(old.shape)}")
    if mode not in CATEGORICAL_MODES:
        raise ArgumentError(
            f"value clip {mode!r} does not exist for a categorical critic; use one of {CATEGORICAL_MODES}"
        )
    check_positive(radius=radius)
    if mode == "disable":
        return new
    mean, centre = (new * support).sum(-1, keepdim=True), (old * support).sum(-1, keepdim=True)
    shift = (mean.clamp(centre - radius, centre + radius) - mean).detach().nan_to_num()
    shifted = spread(support + shift, new, support)
    # At the ends of the support mass cannot follow the shift; what is missing comes from the old distribution, whose
    # mean is inside: (1 − t) shifted + t old, with the t that puts the mean on the edge of the radius.
    moved = (shifted * support).sum(-1, keepdim=True)
    edge = moved.clamp(centre - radius, centre + radius)
    share = ((moved - edge) / (moved - centre)).detach().nan_to_num().clamp(0.0, 1.0)
    # Samples inside the radius keep their exact probabilities; so do those that are not finite, for the guard to count.
    return torch.where(shift == 0.0, new, torch.lerp(shifted, old, share))


def _identity(new: Tensor, old: Tensor, radius: float, max_std_factor: float, weights: Tensor) -> Tensor:
    return new


def _shift_mean(new: Tensor, old: Tensor, radius: float, max_std_factor: float, weights: Tensor) -> Tensor:
    mean, centre = _mean(new, weights), _mean(old, weights)
    return new + (mean.clamp(centre - radius, centre + radius) - mean)


def _shift_and_shrink(new: Tensor, old: Tensor, radius: float, max_std_factor: float, weights: Tensor) -> Tensor:
    shifted = _shift_mean(new, old, radius, max_std_factor, weights)
    mean = _mean(shifted, weights)
    std, allowed = _std(new, weights), max_std_factor * _std(old, weights)
    shrink = torch.where(std > allowed, allowed / std.clamp(min=torch.finfo(new.dtype).tiny), torch.ones_like(std))
    return mean + (shifted - mean) * shrink


def _clamp_each(new: Tensor, old: Tensor, radius: float, max_std_factor: float, weights: Tensor) -> Tensor:
    return new.clamp(old - radius, old + radius)


def _mean(quantiles: Tensor, weights: Tensor) -> Tensor:
    return (quantiles * weights).sum(-1, keepdim=True)


def _std(quantiles: Tensor, weights: Tensor) -> Tensor:
    variance = ((quantiles - _mean(quantiles, weights)).square() * weights).sum(-1, keepdim=True)
    # The root has an infinite slope at 0; a point mass has no spread to hold, so its slope is set to 0.
    return torch.where(variance > 0.0, variance, torch.ones_like(variance)).sqrt() * (variance > 0.0)


MODES: dict[str, Callable[[Tensor, Tensor, float, float, Tensor], Tensor]] = {
    "disable": _identity,
    "mean_only": _shift_mean,
    "mean_and_variance": _shift_and_shrink,
    "per_quantile": _clamp_each,
}
CATEGORICAL_MODES = ("disable", "mean_only")

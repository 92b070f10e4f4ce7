"""Steps of an attack on the observation, and the ball it stays in. The last axis holds the features."""

from collections.abc import Callable

import torch
from torch import Tensor

from leeward.errors import ArgumentError, ShapeError, did_you_mean
from leeward.maths.checks import check_mask, check_not_negative, check_same_shape

__all__ = ["BALLS", "ascent_direction", "fgsm_step", "pgd_step", "project"]


def project(delta: Tensor, *, epsilon: float, ball: str) -> Tensor:  # (..., F) -> (..., F)
    """The nearest point of the ball: `linf` |δ_f| ≤ ε for each feature, `l2` ‖δ‖₂ ≤ ε for each row."""
    _check(epsilon, ball)
    return BALLS[ball](delta, epsilon)


def ascent_direction(gradient: Tensor, *, ball: str) -> Tensor:  # (..., F) -> (..., F)
    """The steepest ascent of the unit ball: sign(g) for `linf`, g/‖g‖ for `l2` (0 where the gradient is 0)."""
    _check(0.0, ball)
    if ball == "linf":
        return gradient.sign()
    norm: Tensor = torch.linalg.vector_norm(gradient, dim=-1, keepdim=True)
    return gradient / norm.clamp(min=torch.finfo(gradient.dtype).tiny)


def fgsm_step(gradient: Tensor, *, epsilon: float, ball: str, mask: Tensor | None = None) -> Tensor:
    """One step to the edge of the ball, δ = ε · direction(g) (Goodfellow et al. 2015, arXiv:1412.6572, §4)."""
    return pgd_step(torch.zeros_like(gradient), gradient, step=epsilon, epsilon=epsilon, ball=ball, mask=mask)


def pgd_step(
    delta: Tensor, gradient: Tensor, *, step: float, epsilon: float, ball: str, mask: Tensor | None = None
) -> Tensor:  # (..., F), (..., F), bool (F,) -> (..., F)
    """δ ← Π_ball(δ + step · direction(g)), with 0 where `mask` is False (Madry et al. 2018, arXiv:1706.06083, §2.1).

    The gradient is masked *before* the l2 direction is formed, so that forbidden features take no share of the step.
    """
    _check(epsilon, ball)
    check_same_shape(delta=delta, gradient=gradient)
    check_not_negative(step=step)
    if mask is None:
        return BALLS[ball](delta + step * ascent_direction(gradient, ball=ball), epsilon)
    check_mask(mask)
    if mask.shape != delta.shape[-1:]:
        raise ShapeError(f"mask needs one entry per feature, {tuple(delta.shape[-1:])}, got {tuple(mask.shape)}")
    allowed = gradient.masked_fill(~mask, 0.0)
    moved = delta + step * ascent_direction(allowed, ball=ball)
    return BALLS[ball](moved.masked_fill(~mask, 0.0), epsilon)


def _linf(delta: Tensor, epsilon: float) -> Tensor:
    return delta.clamp(-epsilon, epsilon)


def _l2(delta: Tensor, epsilon: float) -> Tensor:
    norm: Tensor = torch.linalg.vector_norm(delta, dim=-1, keepdim=True)
    return delta * (epsilon / norm.clamp(min=max(epsilon, torch.finfo(delta.dtype).tiny)))


BALLS: dict[str, Callable[[Tensor, float], Tensor]] = {"linf": _linf, "l2": _l2}


def _check(epsilon: float, ball: str) -> None:
    if ball not in BALLS:
        raise ArgumentError(f"unknown ball {ball!r}; {did_you_mean(ball, BALLS)}")
    check_not_negative(epsilon=epsilon)

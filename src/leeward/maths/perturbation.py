"""Steps of an attack on the observation, and the ball it stays in. The last axis holds the features."""

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from leeward.errors import ArgumentError, ShapeError, did_you_mean
from leeward.maths.checks import check_mask, check_not_negative, check_same_shape

__all__ = [
    "BALLS",
    "METHODS",
    "Ascent",
    "ascend",
    "ascent_direction",
    "fgsm_step",
    "pgd_step",
    "project",
    "random_in_ball",
    "size_in_ball",
]

METHODS = ("fgsm", "pgd", "sgld")


class Ascent(NamedTuple):
    """What an attack found, and the objective where it set out."""

    delta: Tensor  # (..., F)
    start: Tensor  # of the objective's own shape


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
        return project(delta + step * ascent_direction(gradient, ball=ball), epsilon=epsilon, ball=ball)
    check_mask(mask)
    if mask.shape != delta.shape[-1:]:
        raise ShapeError(f"mask needs one entry per feature, {tuple(delta.shape[-1:])}, got {tuple(mask.shape)}")
    allowed = gradient.masked_fill(~mask, 0.0)
    moved = delta + step * ascent_direction(allowed, ball=ball)
    return project(moved.masked_fill(~mask, 0.0), epsilon=epsilon, ball=ball)


def random_in_ball(
    shape: tuple[int, ...], *, epsilon: float, ball: str, generator: torch.Generator, mask: Tensor | None = None
) -> Tensor:  # (..., F), on the generator's device; bool (F,)
    """Points drawn evenly from the ball; 0 where `mask` is False."""
    _check(epsilon, ball)
    device = generator.device
    if ball == "linf":
        points = epsilon * (2.0 * torch.rand(shape, generator=generator, device=device) - 1.0)
        return points if mask is None else points.masked_fill(~mask, 0.0)
    points = torch.randn(shape, generator=generator, device=device)
    free = shape[-1]
    if mask is not None:
        points, free = points.masked_fill(~mask, 0.0), int(mask.sum())
    radius = torch.rand((*shape[:-1], 1), generator=generator, device=device) ** (1.0 / max(free, 1))
    return epsilon * radius * ascent_direction(points, ball=ball)


def size_in_ball(delta: Tensor, *, ball: str) -> Tensor:  # (..., F) -> (...)
    """The norm that the ball bounds."""
    _check(0.0, ball)
    if ball == "linf":
        return delta.abs().amax(-1)
    norm: Tensor = torch.linalg.vector_norm(delta, dim=-1)
    return norm


def ascend(
    objective: Callable[[Tensor], Tensor],  # (..., F) -> any shape, differentiable
    start: Tensor,  # (..., F), in the ball
    *,
    method: str,
    steps: int,
    step: float,
    epsilon: float,
    ball: str,
    mask: Tensor | None = None,
    noise: float = 0.0,
    generator: torch.Generator | None = None,
) -> Ascent:
    """A perturbation that raises Σ J(δ), with 0 where `mask` is False. No parameter receives a gradient.

    fgsm   δ = ε · direction(∇J(start))                     one step to the edge of the ball
    pgd    δ ← Π_ball(δ + step · direction(∇J(δ)))          `steps` times
    sgld   the same with ∇J(δ)/rms + (noise/k) ξ in the place of ∇J(δ) in step k, ξ ~ N(0, 1)

    An objective with its least value at δ = 0, as KL(π(.|s) ‖ π(.|s + δ)) has, has no gradient there: start elsewhere.
    sgld is the Langevin attack of Zhang et al. 2020 (arXiv:2003.08938); the noise stands inside the direction and
    in units of the row's gradient, so that a step keeps its length whatever the objective's unit.
    """
    _check(epsilon, ball)
    if method not in METHODS:
        raise ArgumentError(f"unknown method {method!r}; {did_you_mean(method, METHODS)}")
    if steps < 1:
        raise ArgumentError(f"an attack takes at least 1 step, got {steps}")
    if method == "sgld" and generator is None:
        raise ArgumentError("sgld draws noise in every step and needs a generator")
    first, delta = None, start
    for k in range(1, 1 + (1 if method == "fgsm" else steps)):
        with torch.enable_grad():
            leaf = delta.detach().requires_grad_()
            values = objective(leaf)
            (gradient,) = torch.autograd.grad(values.sum(), leaf)
        first = values.detach() if first is None else first
        if method == "fgsm":
            return Ascent(fgsm_step(gradient, epsilon=epsilon, ball=ball, mask=mask), first)
        if method == "sgld":
            gradient = _stirred(gradient, noise / k, mask, generator)
        delta = pgd_step(delta.detach(), gradient, step=step, epsilon=epsilon, ball=ball, mask=mask)
    assert first is not None
    return Ascent(delta, first)


def _stirred(gradient: Tensor, noise: float, mask: Tensor | None, generator: torch.Generator | None) -> Tensor:
    """The gradient at a root mean square of 1 over the features that may move, and noise beside it."""
    allowed = gradient if mask is None else gradient.masked_fill(~mask, 0.0)
    free = gradient.shape[-1] if mask is None else int(mask.sum())
    rms: Tensor = torch.linalg.vector_norm(allowed, dim=-1, keepdim=True) / max(free, 1) ** 0.5
    drawn = torch.randn(gradient.shape, generator=generator, device=gradient.device, dtype=gradient.dtype)
    return allowed / rms.clamp(min=torch.finfo(gradient.dtype).tiny) + noise * drawn


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

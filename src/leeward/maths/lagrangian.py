"""The multiplier of a constraint value ≥ limit. gap = limit − value: positive = violated."""

import math

from leeward.errors import ArgumentError
from leeward.maths.checks import check_not_negative, check_positive

__all__ = ["dual_ascent", "pid_step"]


def dual_ascent(multiplier: float, value: float, *, limit: float, lr: float, ceiling: float) -> float:
    """λ ← clip(λ + η (limit − value), 0, λ_max): grows while the tail is worse than its limit.

    Clipping the stored multiplier itself is what prevents wind-up: at 0 or at the ceiling nothing accumulates.
    """
    _check(value, limit)
    check_positive(lr=lr, ceiling=ceiling)
    check_not_negative(multiplier=multiplier)
    return min(max(multiplier + lr * (limit - value), 0.0), ceiling)


def pid_step(
    integral: float, previous: float, value: float, *, limit: float, kp: float, ki: float, kd: float, ceiling: float
) -> tuple[float, float, float]:
    """One step of PID control of the multiplier → (multiplier, integral, previous gap).

    I ← clip(I + k_i gap, 0, λ_max)     λ = clip(k_p gap + I + k_d max(0, gap − previous), 0, λ_max)
    Stooke et al. 2020 (arXiv:2007.03964), algorithm 2; the derivative acts only while the violation grows, as theirs.
    The integral holds its own bounds, so it does not wind up at 0 or at the ceiling.
    """
    _check(value, limit)
    check_positive(ceiling=ceiling)
    check_not_negative(integral=integral, kp=kp, ki=ki, kd=kd)
    if not math.isfinite(previous):
        raise ArgumentError(f"the previous gap must be finite, got {previous}; start with 0")
    gap = limit - value
    integral = min(max(integral + ki * gap, 0.0), ceiling)
    multiplier = kp * gap + integral + kd * max(0.0, gap - previous)
    return min(max(multiplier, 0.0), ceiling), integral, gap


def _check(value: float, limit: float) -> None:
    if not (math.isfinite(value) and math.isfinite(limit)):
        raise ArgumentError(f"the measured value and its limit must be finite, got value {value}, limit {limit}")

"""Values over training: `progress` runs from 0 (start) to 1 (end) and is clamped to that range."""

import math
from collections.abc import Sequence
from itertools import pairwise

from leeward.errors import ArgumentError

__all__ = ["BY_NAME", "constant", "cosine", "linear", "piecewise"]


def constant(progress: float, start: float, end: float) -> float:
    """`start`, always; takes `end` so that every schedule is called alike."""
    _clamp(progress)
    return start


def linear(progress: float, start: float, end: float) -> float:
    """start + p (end − start)."""
    return start + _clamp(progress) * (end - start)


def cosine(progress: float, start: float, end: float) -> float:
    """end + ½ (start − end)(1 + cos πp): flat at both ends (Loshchilov & Hutter 2017, arXiv:1608.03983, eq. 5)."""
    return end + 0.5 * (start - end) * (1.0 + math.cos(math.pi * _clamp(progress)))


def piecewise(progress: float, points: Sequence[tuple[float, float]]) -> float:
    """Linear between the (progress, value) points, constant before the first and after the last."""
    if not points:
        raise ArgumentError("a piecewise schedule needs at least one (progress, value) point")
    if any(later[0] <= earlier[0] for earlier, later in pairwise(points)):
        raise ArgumentError(f"the points of a piecewise schedule must rise in progress, got {[p for p, _ in points]}")
    p = _clamp(progress)
    if p <= points[0][0]:
        return points[0][1]
    for (left, low), (right, high) in pairwise(points):
        if p <= right:
            return low + (p - left) / (right - left) * (high - low)
    return points[-1][1]


def _clamp(progress: float) -> float:
    if not math.isfinite(progress):
        raise ArgumentError(f"progress must be a finite number in [0, 1], got {progress}")
    return min(max(progress, 0.0), 1.0)


# What a config names.
BY_NAME = {"constant": constant, "linear": linear, "cosine": cosine}

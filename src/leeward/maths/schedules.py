"""Values over training: `progress` runs from 0 (start) to 1 (end) and is clamped to that range."""

import math

from leeward.errors import ArgumentError

__all__ = ["BY_NAME", "constant", "cosine", "linear"]


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


def _clamp(progress: float) -> float:
    if not math.isfinite(progress):
        raise ArgumentError(f"progress must be a finite number in [0, 1], got {progress}")
    return min(max(progress, 0.0), 1.0)


# What a config names.
BY_NAME = {"constant": constant, "linear": linear, "cosine": cosine}

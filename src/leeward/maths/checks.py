"""Checks at the public edge: each raises with what was expected and what came."""

import math

import torch
from torch import Tensor

from leeward.errors import ArgumentError, ShapeError

__all__ = [
    "check_alpha",
    "check_finite",
    "check_last_axis",
    "check_levels",
    "check_mask",
    "check_not_negative",
    "check_positive",
    "check_same_shape",
    "check_unit",
    "check_weights",
]


def check_same_shape(**tensors: Tensor) -> None:
    """All named tensors must have the shape of the first."""
    (first, reference), *others = tensors.items()
    for name, tensor in others:
        if tensor.shape != reference.shape:
            raise ShapeError(
                f"{name} must have the shape of {first}, {tuple(reference.shape)}, got {tuple(tensor.shape)}"
            )


def check_finite(**tensors: Tensor) -> None:
    """Floating point, no NaN and no infinity; the message counts both and names the first place."""
    for name, tensor in tensors.items():
        if not tensor.is_floating_point():
            raise ArgumentError(f"{name} must be floating point, got {tensor.dtype}")
        finite = torch.isfinite(tensor)
        if not bool(finite.all()):
            nan = int(torch.isnan(tensor).sum())
            inf = int(torch.isinf(tensor).sum())
            where = tuple(int(i) for i in (~finite).nonzero()[0])
            raise ArgumentError(
                f"{name} must be finite, got {nan} NaN and {inf} infinite values, the first at index {where}"
            )


def check_last_axis(**tensors: Tensor) -> None:
    """At least one entry along a last axis."""
    for name, tensor in tensors.items():
        if tensor.ndim == 0 or tensor.shape[-1] == 0:
            raise ShapeError(f"{name} need at least one entry along the last axis, got shape {tuple(tensor.shape)}")


def check_mask(mask: Tensor) -> None:
    """A bool tensor; numbers would be inverted bit by bit."""
    if mask.dtype != torch.bool:
        raise ArgumentError(f"mask must be bool, got {mask.dtype}")


def check_alpha(alpha: float) -> None:
    if not 0.0 < alpha <= 1.0:
        raise ArgumentError(f"alpha is a tail mass in (0, 1], got {alpha}")


def check_unit(**values: float) -> None:
    for name, value in values.items():
        if not 0.0 <= value <= 1.0:
            raise ArgumentError(f"{name} must lie in [0, 1], got {value}")


def check_positive(**values: float) -> None:
    for name, value in values.items():
        if not (value > 0.0 and math.isfinite(value)):
            raise ArgumentError(f"{name} must be positive and finite, got {value}")


def check_not_negative(**values: float) -> None:
    for name, value in values.items():
        if not (value >= 0.0 and math.isfinite(value)):
            raise ArgumentError(f"{name} must be finite and not negative, got {value}")


def check_levels(levels: Tensor) -> None:  # (N,)
    """Quantile levels: one axis, strictly rising, inside (0, 1)."""
    if levels.ndim != 1 or len(levels) == 0:
        raise ShapeError(f"levels must have one axis with at least one entry, got shape {tuple(levels.shape)}")
    check_finite(levels=levels)
    if not (bool((levels > 0.0).all()) and bool((levels < 1.0).all())):
        raise ArgumentError(f"levels must lie inside (0, 1), got {float(levels.min())} to {float(levels.max())}")
    rising = levels.diff() > 0
    if not bool(rising.all()):
        place = int((~rising).nonzero()[0])
        raise ArgumentError(
            f"levels must rise strictly, got {float(levels[place])} before {float(levels[place + 1])} at index {place}"
        )


def check_weights(weights: Tensor) -> None:  # (..., N)
    """Weights or probabilities along the last axis: not negative, summing to 1."""
    check_finite(weights=weights)
    if bool((weights < 0).any()):
        raise ArgumentError(f"weights must not be negative, got {float(weights.min())}")
    total = weights.sum(-1)
    if not bool(((total - 1.0).abs() < 1e-4).all()):
        raise ArgumentError(
            f"weights must sum to 1 along the last axis, got sums {float(total.min())} to {float(total.max())}"
        )

"""Means over the real entries of a padded tensor."""

from torch import Tensor

from leeward.errors import ArgumentError, ShapeError
from leeward.maths.checks import check_mask

__all__ = ["masked_mean"]


def masked_mean(values: Tensor, mask: Tensor) -> Tensor:  # (...), bool (...) -> ()
    """Mean of the entries where `mask` is True; what padding holds, NaN included, cannot matter.

    mean = Σ m x / Σ m. Reduced: every axis.
    """
    if mask.shape != values.shape:
        raise ShapeError(f"mask must have the shape of values, {tuple(values.shape)}, got {tuple(mask.shape)}")
    check_mask(mask)
    real = mask.sum()
    if int(real) == 0:
        raise ArgumentError("mask selects no entry, so there is no mean; drop the empty batch before it gets here")
    return values.masked_fill(~mask, 0.0).sum() / real

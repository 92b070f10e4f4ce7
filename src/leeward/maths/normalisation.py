"""Running moments, and the PopArt rescale of a linear head."""

import torch
from torch import Tensor

from leeward.errors import ShapeError
from leeward.maths.checks import check_finite, check_not_negative, check_positive, check_same_shape

__all__ = ["merge_moments", "popart_rescale"]


def merge_moments(
    count: float, mean: Tensor, square_sum: Tensor, other_count: float, other_mean: Tensor, other_square_sum: Tensor
) -> tuple[float, Tensor, Tensor]:  # (...) each; square_sum = Σ (x − mean)²
    """Moments of two samples together, without the cancellation of Σx² − n·mean².

    δ = mean_b − mean_a,  n = n_a + n_b,  mean = mean_a + δ n_b/n,  M2 = M2_a + M2_b + δ² n_a n_b/n
    Chan, Golub & LeVeque 1979; Welford's update is its case n_b = 1.
    """
    check_not_negative(count=count, other_count=other_count)
    check_same_shape(mean=mean, square_sum=square_sum, other_mean=other_mean, other_square_sum=other_square_sum)
    total = count + other_count
    if total == 0:
        return 0.0, mean, square_sum
    delta = other_mean - mean
    merged = mean + delta * (other_count / total)
    return total, merged, square_sum + other_square_sum + delta.square() * (count * other_count / total)


def popart_rescale(
    weight: Tensor, bias: Tensor, old: tuple[float, float], new: tuple[float, float]
) -> tuple[Tensor, Tensor]:  # (N, H), (N,), (mean, std), (mean, std) -> (N, H), (N,)
    """A linear head for outputs in new units whose decoded outputs are those of before.

    σ (W h + b) + μ = σ' (W' h + b') + μ'    ⇒    W' = W σ/σ',  b' = (σ b + μ − μ')/σ'
    van Hasselt et al. 2016 (arXiv:1602.07714), proposition 1. Computed in float64, returned in the head's dtype.
    """
    if weight.ndim != 2:
        raise ShapeError(f"weight must be (N, H), got shape {tuple(weight.shape)}")
    if bias.shape != weight.shape[:1]:
        raise ShapeError(
            f"bias must have one entry per row of weight, {tuple(weight.shape[:1])}, got {tuple(bias.shape)}"
        )
    (mean, std), (new_mean, new_std) = old, new
    check_positive(old_std=std, new_std=new_std)
    check_finite(weight=weight, bias=bias, means=torch.tensor([mean, new_mean], dtype=torch.float64))
    scaled = weight.to(torch.float64) * (std / new_std)
    shifted = (bias.to(torch.float64) * std + (mean - new_mean)) / new_std
    return scaled.to(weight.dtype), shifted.to(bias.dtype)

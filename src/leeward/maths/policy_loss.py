"""The policy's objective, per sample. `log_ratio` is always new − old."""

import math

import torch
from torch import Tensor

from leeward.maths.checks import check_not_negative, check_positive, check_same_shape

__all__ = ["LOG_RATIO_LIMIT", "awr_weights", "clipped_surrogate", "kl_k1", "kl_k3", "ratio"]

# exp(20) is 5e8: large enough that no healthy ratio gets there, small enough that products stay finite in float32.
LOG_RATIO_LIMIT = 20.0


def ratio(log_ratio: Tensor) -> Tensor:  # (...) -> (...)
    """π_new/π_old = exp(log_ratio), the exponent clamped to ±20; NaN stays NaN, so that it can be counted."""
    return log_ratio.clamp(-LOG_RATIO_LIMIT, LOG_RATIO_LIMIT).exp()


def clipped_surrogate(log_ratio: Tensor, advantages: Tensor, *, clip_range: float) -> Tensor:  # (...) -> (...)
    """The PPO loss: −min(r A, clip(r, 1 − ε, 1 + ε) A).

    Schulman et al. 2017 (arXiv:1707.06347), eq. 7, as a loss. No reduction. The clamp of the exponent takes the
    gradient away only where r > e²⁰ and A < 0 or r < e⁻²⁰ and A > 0; in the other two the PPO clip already has.
    """
    check_same_shape(log_ratio=log_ratio, advantages=advantages)
    check_not_negative(clip_range=clip_range)
    r, costs = ratio(log_ratio), -advantages
    return torch.maximum(costs * r, costs * r.clamp(1.0 - clip_range, 1.0 + clip_range))


def kl_k1(log_ratio: Tensor) -> Tensor:  # (...) -> (...)
    """KL(old ‖ new), unbiased because the actions come from the old policy: k1 = log π_old − log π_new."""
    return -log_ratio


def kl_k3(log_ratio: Tensor) -> Tensor:  # (...) -> (...)
    """KL(old ‖ new), unbiased, never negative and of lower variance: k3 = r − 1 − log r.

    Schulman 2020, "Approximating KL divergence". No reduction.
    """
    clamped = log_ratio.clamp(-LOG_RATIO_LIMIT, LOG_RATIO_LIMIT)
    return clamped.expm1() - clamped


def awr_weights(advantages: Tensor, *, beta: float, max_weight: float) -> Tensor:  # (...) -> (...)
    """Advantage-weighted regression: w = exp(min(A/β, ln w_max)), without gradient; clamped before the exponential.

    Peng et al. 2019 (arXiv:1910.00177), eq. 9. No reduction.
    """
    check_positive(beta=beta, max_weight=max_weight)
    return (advantages.detach() / beta).clamp(max=math.log(max_weight)).exp()

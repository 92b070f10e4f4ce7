"""Distributions on a fixed support (C51)."""

import math

import torch
from torch import Tensor

from leeward.errors import ArgumentError, ShapeError
from leeward.maths.checks import check_finite, check_weights

__all__ = ["cross_entropy", "outside_fraction", "project", "quantile", "spread"]


def project(values: Tensor, probs: Tensor, support: Tensor) -> Tensor:  # (..., M), (..., M) or (M,), (K,) -> (..., K)
    """Put the mass at `values` on the two neighbouring atoms; the mean is kept inside the support.

    p_i = Σ_m probs_m · max(0, 1 − |clamp(v_m) − z_i| / Δz)
    Bellemare et al. 2017 (arXiv:1707.06887), eq. 7. Values outside the support count at its nearest end, which is the
    only clamp a target ever sees (`outside_fraction` measures it). `support` is evenly spaced.
    """
    _check_support(support)
    check_finite(values=values, probs=probs)
    if probs.shape[-1] != values.shape[-1]:
        raise ShapeError(f"probs need one entry per value, {values.shape[-1]}, got {probs.shape[-1]}")
    return spread(values, probs, support)


def spread(values: Tensor, probs: Tensor, support: Tensor) -> Tensor:  # as `project`
    """`project` without its checks, for use inside an update; probabilities that are not finite come out so."""
    K = len(support)
    spacing = (support[-1] - support[0]) / (K - 1)
    place = ((values - support[0]) / spacing).clamp(0, K - 1)  # (..., M), in units of atoms
    lower = place.floor().clamp(max=K - 2)
    share = place - lower  # mass that goes to the upper atom
    up = probs * share  # (..., M)
    down = probs - up
    index = lower.long().expand_as(up)
    result = up.new_zeros((*up.shape[:-1], K))
    return result.scatter_add(-1, index, down).scatter_add(-1, index + 1, up)


def cross_entropy(logits: Tensor, target_probs: Tensor) -> Tensor:  # (..., K) -> (...)
    """−Σ p ln softmax(logits), divided by ln K: a uniform prediction scores 1. Reduced: the atoms."""
    if logits.shape != target_probs.shape:
        raise ShapeError(
            f"target_probs must have the shape of logits, {tuple(logits.shape)}, got {tuple(target_probs.shape)}"
        )
    K = logits.shape[-1]
    unit = math.log(K) if K >= 2 else 1.0
    return -(target_probs * logits.log_softmax(-1)).sum(-1) / unit


def quantile(probs: Tensor, support: Tensor, tau: float) -> Tensor:  # (..., K), (K,) -> (...)
    """The smallest atom z with P(Z ≤ z) ≥ τ."""
    _check_support(support)
    check_weights(probs)
    if probs.shape[-1] != len(support):
        raise ShapeError(f"probs need one entry per atom, {len(support)}, got {probs.shape[-1]}")
    if not 0.0 < tau < 1.0:
        raise ArgumentError(f"tau is a level inside (0, 1), got {tau}")
    # Rounding of the probabilities must not push a level that is met exactly on to the next atom.
    slack = 4.0 * torch.finfo(probs.dtype).eps
    reached = probs.to(torch.float64).cumsum(-1) >= tau - slack
    reached[..., -1] = True
    return support[reached.to(torch.int8).argmax(-1)]


def outside_fraction(values: Tensor, support: Tensor) -> Tensor:  # (...), (K,) -> ()
    """Share of values beyond the ends of the support."""
    return ((values < support[0]) | (values > support[-1])).to(values.dtype).mean()


def _check_support(support: Tensor) -> None:
    if support.ndim != 1 or len(support) < 2:
        raise ShapeError(f"support must be one axis with at least two atoms, got shape {tuple(support.shape)}")
    check_finite(support=support)
    steps = support.diff()
    rounding = 4.0 * torch.finfo(support.dtype).eps * float(support.abs().max())
    if not bool((steps > 0).all()) or float(steps.max() - steps.min()) > 1e-3 * float(steps.mean()) + rounding:
        raise ArgumentError("support must rise in even steps; make it with torch.linspace")

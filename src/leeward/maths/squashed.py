"""The tanh-squashed Gaussian: a = middle + half_range · tanh(u), u ~ N(mean, std). Joint over the last axis (A)."""

import math

from torch import Tensor
from torch.nn.functional import softplus

from leeward.maths.checks import check_same_shape
from leeward.maths.quadrature import gauss_hermite

__all__ = ["entropy", "log_prob", "log_slope"]


def log_slope(u: Tensor) -> Tensor:  # (...) -> (...)
    """ln d tanh(u)/du = ln(1 − tanh² u) = 2 (ln 2 − u − softplus(−2u)): exact where tanh saturates."""
    return 2.0 * (math.log(2.0) - u - softplus(-2.0 * u))


def log_prob(u: Tensor, mean: Tensor, log_std: Tensor, half_range: Tensor) -> Tensor:  # (..., A), (A,) -> (...)
    """Log density of the action at its pre-squash sample u.

    ln p(a) = Σ ln N(u) − Σ 2 (ln 2 − u − softplus(−2u)) − Σ ln half_range
    Haarnoja et al. 2018 (arXiv:1801.01290), eq. 21, in the form that needs no inverse of tanh. Reduced: the actions.
    """
    check_same_shape(u=u, mean=mean)
    z = (u - mean) * (-log_std).exp()
    gaussian = -0.5 * z.square() - log_std - 0.5 * math.log(2.0 * math.pi)
    return (gaussian - log_slope(u) - half_range.log()).sum(-1)


def entropy(mean: Tensor, log_std: Tensor, half_range: Tensor, *, nodes: int = 16) -> Tensor:  # (..., A) -> (...)
    """Differential entropy, with gradient to mean and log_std, by Gauss-Hermite quadrature.

    H = Σ [ ½ ln(2πe) + ln σ + E ln(1 − tanh² u) + ln half_range ]. Reduced: the actions.
    The quadrature errs by at most 2e-5 nats per action up to σ = 1 and 4e-3 at σ = 2 (32 nodes: 1e-7 and 2e-4).
    """
    points, weights = gauss_hermite(nodes)
    points, weights = points.to(mean), weights.to(mean)
    u = mean.unsqueeze(-1) + log_std.exp().unsqueeze(-1) * points  # (..., A, nodes)
    slope = (log_slope(u) * weights).sum(-1)
    return (0.5 * math.log(2.0 * math.pi * math.e) + log_std + slope + half_range.log()).sum(-1)

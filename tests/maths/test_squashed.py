"""The tanh-squashed Gaussian."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy import integrate, stats
from torch import tensor
from torch.testing import assert_close

from leeward.errors import ArgumentError
from leeward.maths.squashed import entropy, log_prob, log_slope

F64 = torch.float64


def density(action, mean, std, half_range):
    """Density of half_range · tanh(u), by the change of variables, written with the inverse tanh."""
    squashed = action / half_range
    return stats.norm.pdf(np.arctanh(squashed), mean, std) / (half_range * (1 - squashed**2))


def test_the_log_slope_of_tanh_by_hand_and_where_it_saturates():
    # u = 0: tanh' = 1, ln 1 = 0. u = 50: ln(4 e^−100) = ln 4 − 100, where 1 − tanh² is 0 in floating point.
    assert_close(
        log_slope(tensor([0.0, 50.0, -50.0], dtype=F64)), tensor([0.0, 1.0, 1.0], dtype=F64) * (math.log(4) - 100)
    )


@given(st.floats(-4, 4))
def test_the_log_slope_is_the_logarithm_of_one_minus_tanh_squared(u):
    assert float(log_slope(tensor(u, dtype=F64))) == pytest.approx(math.log(1 - math.tanh(u) ** 2), abs=1e-9)


def test_the_log_density_is_joint_over_the_actions_and_equals_the_change_of_variables():
    u = tensor([[0.3, -1.2], [0.9, 0.1], [-0.4, 2.0]], dtype=F64)
    mean, std, half_range = tensor([0.1, -0.5], dtype=F64), tensor([0.7, 1.3], dtype=F64), tensor([2.0, 0.5], dtype=F64)
    found = log_prob(u, mean.expand(3, 2), std.log(), half_range)
    each = density((half_range * u.tanh()).numpy(), mean.numpy(), std.numpy(), half_range.numpy())
    assert_close(found, torch.from_numpy(np.log(each).sum(-1)))


@pytest.mark.parametrize(("mean", "std"), [(0.0, 0.3), (0.8, 0.6), (-0.5, 0.8)])
def test_the_density_integrates_to_one_over_the_range(mean, std):
    def density_at(action):
        u = tensor([math.atanh(action / 3.0)], dtype=F64)
        return math.exp(
            float(log_prob(u, tensor([mean], dtype=F64), tensor([math.log(std)], dtype=F64), tensor([3.0], dtype=F64)))
        )

    assert integrate.quad(density_at, -3 + 1e-12, 3 - 1e-12, limit=200)[0] == pytest.approx(1.0, abs=1e-6)


@pytest.mark.parametrize(
    ("std", "nodes", "error"), [(0.3, 16, 1e-9), (1.0, 16, 2e-5), (2.0, 16, 4e-3), (1.0, 32, 1e-7), (2.0, 32, 2e-4)]
)
@pytest.mark.parametrize("mean", [0.0, 0.5, 2.0])
def test_the_entropy_equals_the_numerical_integral(mean, std, nodes, error):
    # H = −∫ p ln p over u: ½ ln 2πe + ln σ + E ln(1 − tanh² u) + ln half_range
    def integrand(u):
        return stats.norm.pdf(u, mean, std) * 2 * (math.log(2) - u - np.logaddexp(0, -2 * u))

    slope = integrate.quad(integrand, mean - 12 * std, mean + 12 * std, points=[0.0], limit=500, epsabs=1e-11)[0]
    exact = 0.5 * math.log(2 * math.pi * math.e) + math.log(std) + slope + math.log(1.5)
    found = entropy(
        tensor([mean], dtype=F64), tensor([math.log(std)], dtype=F64), tensor([1.5], dtype=F64), nodes=nodes
    )
    assert float(found) == pytest.approx(exact, abs=error)


def test_the_entropy_of_two_actions_is_the_sum_and_has_one_entry_per_row():
    mean = torch.from_numpy(np.random.default_rng(0).normal(size=(4, 2)))
    log_std, half_range = tensor([-0.5, 0.1], dtype=F64), tensor([1.0, 3.0], dtype=F64)
    joint = entropy(mean, log_std, half_range)
    assert joint.shape == (4,)
    parts = [entropy(mean[:, i : i + 1], log_std[i : i + 1], half_range[i : i + 1]) for i in range(2)]
    assert_close(joint, parts[0] + parts[1])


def test_the_entropy_is_minus_the_mean_log_density_of_its_own_samples():
    generator = torch.Generator().manual_seed(0)
    mean, log_std, half_range = (
        tensor([0.4, -0.3], dtype=F64),
        tensor([-0.2, -1.0], dtype=F64),
        tensor([1.0, 2.0], dtype=F64),
    )
    u = mean + log_std.exp() * torch.randn(200_000, 2, generator=generator, dtype=F64)
    sampled = -log_prob(u, mean.expand_as(u), log_std, half_range).mean()
    assert float(entropy(mean, log_std, half_range)) == pytest.approx(float(sampled), abs=0.01)


def test_the_entropy_has_the_gradient_of_finite_differences():
    mean, log_std = (
        tensor([0.4, -0.3], dtype=F64, requires_grad=True),
        tensor([-0.2, -0.7], dtype=F64, requires_grad=True),
    )
    assert torch.autograd.gradcheck(lambda m, s: entropy(m, s, tensor([1.0, 2.0], dtype=F64)), (mean, log_std))


def test_shapes_that_do_not_agree_are_refused():
    with pytest.raises(ArgumentError, match=r"mean must have the shape of u, \(3, 2\), got \(2,\)"):
        log_prob(torch.zeros(3, 2), torch.zeros(2), torch.zeros(2), torch.ones(2))

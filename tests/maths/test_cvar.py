"""Conditional value at risk, in its three forms."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy import integrate, stats
from torch import tensor
from torch.testing import assert_close

from leeward.errors import ArgumentError
from leeward.maths import cvar
from leeward.maths.quantile import tail_levels, uniform_levels

F64 = torch.float64
finite = st.floats(-1e3, 1e3)
alphas = st.floats(0.001, 1.0)


def closed_form(distribution, alpha):
    """(1/α) ∫₀^α F⁻¹, by scipy: a normal and a Student t have E[X; X < q] in closed form."""
    q = distribution.ppf(alpha)
    if distribution.dist.name == "norm":
        return -distribution.pdf(q) / alpha
    nu = distribution.args[0]
    return -(nu + q**2) / (nu - 1) * distribution.pdf(q) / alpha


def test_cvar_of_five_quantiles_by_hand():
    # Steps of width 0.2. α = 0.5 covers 1, 2 whole and half of 3's step: (0.2·1 + 0.2·2 + 0.1·3)/0.5 = 1.8
    z = tensor([4.0, 1.0, 5.0, 2.0, 3.0], dtype=F64)
    assert float(cvar.from_quantiles(z, 0.5)) == pytest.approx(1.8)
    # α = 0.1 lies inside the first step; α = 1 is the mean.
    assert float(cvar.from_quantiles(z, 0.1)) == pytest.approx(1.0)
    assert float(cvar.from_quantiles(z, 1.0)) == pytest.approx(3.0)


def test_weights_are_the_widths_of_the_steps():
    # Widths 0.1, 0.3, 0.6 over −4, 0, 10 (sorted first). α = 0.2: (0.1·−4 + 0.1·0)/0.2 = −2
    levels, weights = tensor([0.05, 0.25, 0.7], dtype=F64), tensor([0.1, 0.3, 0.6], dtype=F64)
    z = tensor([[10.0, -4.0, 0.0], [0.0, 10.0, -4.0]], dtype=F64)
    assert_close(cvar.from_quantiles(z, 0.2, levels=levels, weights=weights), tensor([-2.0, -2.0], dtype=F64))


def test_the_atom_at_the_value_at_risk_counts_in_part():
    # P(−10) = 0.02, P(−1) = 0.10, P(1) = 0.88. α = 0.05: (0.02·−10 + 0.03·−1)/0.05 = −4.6
    probs, support = tensor([0.02, 0.1, 0.88], dtype=F64), tensor([-10.0, -1.0, 1.0], dtype=F64)
    assert float(cvar.from_atoms(probs, support, 0.05)) == pytest.approx(-4.6)
    shuffled = [2, 0, 1]
    assert float(cvar.from_atoms(probs[shuffled], support[shuffled], 0.05)) == pytest.approx(-4.6)


def test_the_value_at_risk_is_the_last_sample_of_the_tail():
    samples = tensor([[3.0, -1.0, 2.0, 0.0, 1.0], [9.0, 5.0, 8.0, 6.0, 7.0]], dtype=F64)
    # 5 samples: α = 0.4 ends with the second smallest, α = 0.41 reaches into the third, α = 0.01 has the smallest.
    for alpha, expected in ((0.4, [0.0, 6.0]), (0.41, [1.0, 7.0]), (0.01, [-1.0, 5.0]), (1.0, [3.0, 9.0])):
        assert cvar.value_at_risk(samples, alpha).tolist() == expected


def test_the_standard_error_by_hand():
    # 4 samples, α = 0.5: ν = 3, (ν − X)⁺/α = 4, 2, 0, 0, with mean 1.5 and variance 2.75; over √4.
    four = tensor([1.0, 2.0, 3.0, 4.0], dtype=F64)
    assert float(cvar.standard_error(four, 0.5)) == pytest.approx(2.75**0.5 / 2.0)
    # α = 0.6 reaches into the third sample, ν = 3 again: the same, divided by 0.6 instead.
    assert float(cvar.standard_error(four, 0.6)) == pytest.approx(2.75**0.5 / 2.0 * 0.5 / 0.6)
    assert float(cvar.standard_error(four, 1.0)) == pytest.approx(1.25**0.5 / 2.0)  # that of the mean


@pytest.mark.parametrize("name", ["normal", "crash"])
def test_the_standard_error_is_the_spread_of_the_estimate(name):
    rng = np.random.default_rng(0)
    shape = (2000, 1500)
    draws = rng.standard_normal(shape) if name == "normal" else np.where(rng.random(shape) < 0.01, -0.2, 0.01)
    samples = torch.as_tensor(draws)
    spread = float(cvar.from_samples(samples, 0.05).std())
    assert float(cvar.standard_error(samples, 0.05).mean()) == pytest.approx(spread, rel=0.06)


def test_the_empirical_tail_keeps_its_worst_sample():
    # 40 samples: one at −100, the others 0. α = 0.05 covers two of them: −50. A winsorised tail would say 0.
    samples = torch.zeros(3, 40, dtype=F64)
    samples[:, 17] = -100.0
    assert_close(cvar.from_samples(samples, 0.05), torch.full((3,), -50.0, dtype=F64))


@pytest.mark.parametrize(
    ("distribution", "tail_error", "uniform_error"),
    [(stats.norm(), 0.002, 0.043), (stats.t(3), 0.02, 0.147)],
    ids=["normal", "student_t3"],
)
def test_the_tail_grid_meets_the_closed_form_where_the_uniform_one_is_too_mild(distribution, tail_error, uniform_error):
    exact = closed_form(distribution, 0.05)
    assert exact == pytest.approx(integrate.quad(distribution.ppf, 0, 0.05)[0] / 0.05, rel=1e-6)
    errors = []
    for levels, weights in (tail_levels(32, 0.05), uniform_levels(32)):
        z = torch.from_numpy(distribution.ppf(levels.numpy()))
        errors.append((exact - float(cvar.from_quantiles(z, 0.05, levels=levels, weights=weights))) / exact)
    assert abs(errors[0]) <= tail_error
    assert errors[1] == pytest.approx(uniform_error, abs=0.0006)


def test_many_samples_of_a_normal_meet_the_closed_form():
    z = torch.from_numpy(stats.norm.ppf((np.arange(100_000) + 0.5) / 100_000))
    for alpha in (0.01, 0.05, 0.5):
        assert float(cvar.from_samples(z, alpha)) == pytest.approx(closed_form(stats.norm(), alpha), rel=1e-3)


@pytest.mark.parametrize("grid", [lambda: uniform_levels(21), lambda: tail_levels(21, 0.05)], ids=["uniform", "tail"])
def test_cvar_is_continuous_and_rises_with_alpha_up_to_the_mean(grid):
    levels, weights = grid()
    z = torch.from_numpy(stats.t(3).ppf(levels.numpy()))
    steps = torch.linspace(1e-4, 1.0, 2_001, dtype=F64)
    path = torch.stack([cvar.from_quantiles(z, float(a), levels=levels, weights=weights) for a in steps])
    assert float(path.diff().min()) >= -1e-12
    # CVaR' = (F⁻¹(α) − CVaR)/α: between neighbours it moves by at most the spread of z times Δα/α.
    bound = (z.max() - z.min()) * (steps.diff() / steps[:-1])
    assert bool((path.diff() <= bound + 1e-12).all())
    assert float(path[-1]) == pytest.approx(float((weights * z).sum()), abs=1e-6)


@given(st.lists(finite, min_size=1, max_size=33), alphas, finite)
def test_cvar_moves_with_the_distribution_and_never_exceeds_the_mean(zs, alpha, shift):
    z = tensor(zs, dtype=F64)
    assert_close(cvar.from_quantiles(z + shift, alpha), cvar.from_quantiles(z, alpha) + shift, atol=1e-6, rtol=0)
    assert float(z.min()) - 1e-9 <= float(cvar.from_quantiles(z, alpha)) <= float(z.mean()) + 1e-9


@given(st.lists(finite, min_size=1, max_size=33), alphas, st.floats(0, 10))
def test_cvar_scales_with_the_distribution(zs, alpha, scale):
    z = tensor(zs, dtype=F64)
    assert_close(cvar.from_quantiles(z * scale, alpha), cvar.from_quantiles(z, alpha) * scale, atol=1e-6, rtol=1e-9)


@given(st.lists(finite, min_size=1, max_size=20), alphas, alphas, st.randoms(use_true_random=False))
def test_cvar_rises_with_alpha_and_ignores_the_order_of_equal_weights(zs, one, two, random):
    z = tensor(zs, dtype=F64)
    low, high = sorted((one, two))
    assert float(cvar.from_quantiles(z, low)) <= float(cvar.from_quantiles(z, high)) + 1e-8
    random.shuffle(zs)
    assert_close(cvar.from_quantiles(tensor(zs, dtype=F64), low), cvar.from_quantiles(z, low), atol=1e-9, rtol=0)


@given(st.lists(st.floats(0.01, 1), min_size=1, max_size=12), alphas, st.integers(0, 1000))
def test_atoms_agree_with_the_integral_of_the_quantile_function(masses, alpha, seed):
    probs = np.array(masses) / sum(masses)
    support = np.sort(np.random.default_rng(seed).normal(size=len(masses)))
    # Exact integral of the step function F⁻¹ over (0, α), segment by segment.
    edges = np.concatenate([[0.0], np.cumsum(probs)])
    integral = sum(z * max(0.0, min(b, alpha) - a) for z, a, b in zip(support, edges, edges[1:], strict=False))
    found = cvar.from_atoms(torch.from_numpy(probs), torch.from_numpy(support), alpha)
    assert float(found) == pytest.approx(integral / alpha, abs=1e-6)


@given(st.lists(finite, min_size=1, max_size=20), alphas)
def test_rockafellar_and_uryasev_give_the_same_number(zs, alpha):
    # CVaR = max_ν ν − E[(ν − X)⁺]/α, the maximum at one of the samples.
    z = tensor(zs, dtype=F64)
    candidates = torch.stack([nu - (nu - z).clamp(min=0).mean() / alpha for nu in z])
    assert_close(cvar.from_samples(z, alpha), candidates.max(), atol=1e-7, rtol=1e-9)


def test_the_gradient_is_each_sample_share_of_the_tail():
    # α = 0.5 over 4 samples: the two lowest, half each.
    z = tensor([3.0, -1.0, 2.0, 0.0], dtype=F64, requires_grad=True)
    cvar.from_quantiles(z, 0.5).backward()
    assert_close(z.grad, tensor([0.0, 0.5, 0.0, 0.5], dtype=F64))


def test_float32_is_kept():
    z = torch.randn(3, 5, 32, generator=torch.Generator().manual_seed(0))
    result = cvar.from_quantiles(z, 0.05)
    assert (result.dtype, tuple(result.shape)) == (torch.float32, (3, 5))
    assert_close(result.double(), cvar.from_quantiles(z.double(), 0.05), atol=1e-6, rtol=0)


GRID = tensor([0.2, 0.5, 0.8])


@pytest.mark.parametrize("alpha", [0.0, -0.1, 1.0001, float("nan")])
@pytest.mark.parametrize(
    "call",
    [
        lambda alpha: cvar.from_quantiles(torch.zeros(3), alpha),
        lambda alpha: cvar.from_samples(torch.zeros(3), alpha),
        lambda alpha: cvar.from_atoms(torch.ones(1), torch.zeros(1), alpha),
    ],
    ids=["quantiles", "samples", "atoms"],
)
def test_alpha_is_a_tail_mass(call, alpha):
    with pytest.raises(ArgumentError, match=rf"alpha is a tail mass in \(0, 1\], got {alpha}"):
        call(alpha)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: cvar.from_quantiles(torch.zeros(3), 0.1, levels=GRID), "levels were given without weights; pass both"),
        (lambda: cvar.from_quantiles(torch.zeros(2, 0), 0.1), r"quantiles need at least one .* got shape \(2, 0\)"),
        (lambda: cvar.from_quantiles(torch.zeros(()), 0.1), r"quantiles need at least one .* got shape \(\)"),
        (lambda: cvar.from_quantiles(tensor([0.0, torch.nan]), 0.1), r"quantiles .* 1 NaN .* first at index \(1,\)"),
        (
            lambda: cvar.from_quantiles(torch.zeros(3), 0.1, weights=tensor([0.5, 0.5])),
            r"weights need one entry per quantile, \(3,\), got \(2,\)",
        ),
        (
            lambda: cvar.from_quantiles(torch.zeros(3), 0.1, levels=GRID.flip(0), weights=torch.full((3,), 1 / 3)),
            "levels must rise strictly, got 0.8.* before 0.5 at index 0",
        ),
        (
            lambda: cvar.from_quantiles(torch.zeros(3), 0.1, levels=tensor([0.2, 0.2, 0.4]), weights=torch.ones(3) / 3),
            "levels must rise strictly, got 0.2.* before 0.2.* at index 0",
        ),
        (
            lambda: cvar.from_quantiles(torch.zeros(3), 0.1, weights=torch.ones(3)),
            "weights must sum to 1 along the last axis, got sums 3.0",
        ),
        (lambda: cvar.from_samples(tensor([1, 2, 3]), 0.5), "samples must be floating point, got torch.int64"),
        (lambda: cvar.from_samples(torch.zeros(2, 0), 0.5), "samples need at least one entry"),
        (lambda: cvar.from_samples(tensor([-torch.inf, 0.0]), 0.5), "samples must be finite, got 0 NaN and 1 infinite"),
        (lambda: cvar.from_atoms(torch.ones(2, 3) / 3, torch.zeros(4), 0.5), r"one value per atom, \(3,\), got \(4,\)"),
        (lambda: cvar.from_atoms(torch.ones(2, 3), torch.zeros(3), 0.5), "must sum to 1"),
        (lambda: cvar.from_atoms(torch.ones(3) / 3, torch.full((3,), torch.nan), 0.5), "support must be finite"),
    ],
)
def test_cvar_names_what_is_wrong(call, message):
    with pytest.raises(ArgumentError, match=message):
        call()

"""Quantile levels and the quantile Huber loss, as the paper writes it."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from sb3_contrib.common.utils import quantile_huber_loss as sb3_loss
from torch import tensor
from torch.testing import assert_close

from leeward.errors import ArgumentError, ShapeError
from leeward.maths.quantile import at_level, huber_loss, tail_levels, uniform_levels

F64 = torch.float64
finite = st.floats(-50, 50)


# --- levels ----------------------------------------------------------------------------------------------------------


def test_uniform_levels_are_midpoints():
    levels, weights = uniform_levels(4)
    assert_close(levels, tensor([0.125, 0.375, 0.625, 0.875], dtype=F64))
    assert_close(weights, tensor([0.25, 0.25, 0.25, 0.25], dtype=F64))


def test_tail_levels_of_two_plus_one_nodes_by_hand():
    # Two Gauss-Legendre nodes in (0, 0.2): 0.1 ∓ 0.1/√3 = 0.042265, 0.157735, weight 0.1 each.
    # One node in (0.2, 1): its middle, 0.6, weight 0.8.
    levels, weights = tail_levels(3, 0.2, n_tail=2)
    assert_close(levels, tensor([0.0422650, 0.1577350, 0.6], dtype=F64), atol=1e-7, rtol=0)
    assert_close(weights, tensor([0.1, 0.1, 0.8], dtype=F64))


@given(n=st.integers(2, 64), alpha=st.floats(0.005, 0.9), data=st.data())
def test_a_tail_grid_rises_sums_to_one_and_each_weight_is_the_width_of_its_step(n, alpha, data):
    n_tail = data.draw(st.integers(1, n - 1))
    levels, weights = tail_levels(n, alpha, n_tail)
    assert bool((levels.diff() > 0).all())
    assert int((levels < alpha).sum()) == n_tail
    edges = weights.cumsum(0)
    assert float(edges[-1]) == pytest.approx(1.0, abs=1e-12)
    assert float(edges[n_tail - 1]) == pytest.approx(alpha, abs=1e-12)
    assert bool((edges - weights < levels).all())
    assert bool((levels < edges).all())


@given(n=st.integers(1, 64))
def test_uniform_weights_sum_to_one_and_levels_are_symmetric(n):
    levels, weights = uniform_levels(n)
    assert float(weights.sum()) == pytest.approx(1.0)
    assert_close(levels + levels.flip(0), torch.ones(n, dtype=F64))


def test_the_caller_owns_the_grid_it_is_given():
    first, _ = tail_levels(8, 0.1, n_tail=3)
    first.zero_()
    again, _ = tail_levels(8, 0.1, n_tail=3)
    assert float(again.min()) > 0


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: uniform_levels(0), "at least one quantile level, got 0"),
        (lambda: tail_levels(8, 0.0), r"inside \(0, 1\), got 0.0"),
        (lambda: tail_levels(8, 1.0), r"inside \(0, 1\), got 1.0"),
        (lambda: tail_levels(8, float("nan")), r"inside \(0, 1\), got nan"),
        (lambda: tail_levels(8, 0.1), "n_tail must be at least 1 and less than n = 8, got 8"),
        (lambda: tail_levels(8, 0.1, n_tail=0), "n_tail must be at least 1 and less than n = 8, got 0"),
    ],
)
def test_impossible_grids_are_refused(call, message):
    with pytest.raises(ArgumentError, match=message):
        call()


# --- one level -------------------------------------------------------------------------------------------------------


def test_between_two_levels_the_quantile_is_linear_and_beyond_them_the_outermost():
    # Levels 0.2, 0.4, 0.8; sorted quantiles −1, 1, 3. At 0.3: halfway from −1 to 1. At 0.5: a quarter of 1 → 3.
    levels, q = tensor([0.2, 0.4, 0.8], dtype=F64), tensor([3.0, -1.0, 1.0], dtype=F64)
    found = [float(at_level(q, levels, tau)) for tau in (0.01, 0.2, 0.3, 0.5, 0.8, 0.99)]
    assert found == pytest.approx([-1.0, -1.0, 0.0, 1.5, 3.0, 3.0])


@given(zs=st.lists(finite, min_size=1, max_size=9), one=st.floats(0.01, 0.99), two=st.floats(0.01, 0.99))
def test_a_higher_level_never_has_a_lower_quantile(zs, one, two):
    z, (levels, _) = tensor(zs, dtype=F64), uniform_levels(len(zs))
    low, high = sorted((one, two))
    assert float(at_level(z, levels, low)) <= float(at_level(z, levels, high)) + 1e-9


@pytest.mark.parametrize(
    ("quantiles", "levels", "tau", "message"),
    [
        (torch.zeros(2, 3), tensor([0.2, 0.4, 0.8]), 1.0, r"tau is a level inside \(0, 1\), got 1.0"),
        (torch.zeros(2, 4), tensor([0.2, 0.4, 0.8]), 0.5, "one entry per level, 3, got 4"),
        (torch.full((2, 3), torch.inf), tensor([0.2, 0.4, 0.8]), 0.5, "quantiles must be finite, got 0 NaN and 6 inf"),
        (
            torch.zeros(2, 3),
            tensor([0.4, 0.2, 0.8]),
            0.5,
            "levels must rise strictly, got 0.4.* before 0.2.* at index 0",
        ),
        (torch.zeros(2, 3), tensor([0.0, 0.2, 0.8]), 0.5, r"levels must lie inside \(0, 1\), got 0.0 to 0.8"),
        (torch.zeros(2, 3), torch.zeros(3, 1), 0.5, r"levels must have one axis .* got shape \(3, 1\)"),
    ],
)
def test_reading_a_level_names_what_is_wrong(quantiles, levels, tau, message):
    with pytest.raises(ArgumentError, match=message):
        at_level(quantiles, levels, tau)


# --- loss ------------------------------------------------------------------------------------------------------------


def test_quantile_huber_averages_over_levels_and_targets():
    # τ=.25: u = 2, .5, 1  -> huber 1.5, .125, .5 -> × .25, .25, .25 -> mean .177083
    # τ=.75: u = 1, −.5, 0 -> huber .5, .125, 0   -> × .75, .25, .75 -> mean .135417
    loss = huber_loss(tensor([0.0, 1.0]), tensor([2.0, 0.5, 1.0]), tensor([0.25, 0.75]), kappa=1.0)
    assert_close(loss, tensor(0.15625))  # (.177083 + .135417) / 2


def test_a_level_above_half_pays_more_for_targets_above_it():
    # τ = 0.9, kappa 0: a target 1 above costs 0.9, a target 1 below costs 0.1.
    level, q = tensor([0.9], dtype=F64), tensor([0.0], dtype=F64)
    assert float(huber_loss(q, tensor([1.0], dtype=F64), level, kappa=0.0)) == pytest.approx(0.9)
    assert float(huber_loss(q, tensor([-1.0], dtype=F64), level, kappa=0.0)) == pytest.approx(0.1)


def test_the_huber_part_is_divided_by_kappa():
    # κ = 4, u = 2 ≤ κ: u²/(2κ) = 0.5, × τ = 0.25. u = 8 > κ: 8 − 2 = 6, × 0.25.
    level, q = tensor([0.5], dtype=F64), tensor([0.0], dtype=F64)
    assert float(huber_loss(q, tensor([2.0], dtype=F64), level, kappa=4.0)) == pytest.approx(0.25)
    assert float(huber_loss(q, tensor([8.0], dtype=F64), level, kappa=4.0)) == pytest.approx(3.0)


def test_the_gradient_of_the_pinball_loss_is_share_below_minus_level():
    # 5 targets 0..4, quantile 2.5: three of five below, τ = 0.3: dL/dq = 0.6 − 0.3
    q = tensor([2.5], dtype=F64, requires_grad=True)
    loss = huber_loss(q, torch.arange(5, dtype=F64), tensor([0.3], dtype=F64), kappa=0.0)
    assert float(torch.autograd.grad(loss, q)[0]) == pytest.approx(0.3)


def test_a_target_on_its_quantile_counts_as_above_it():
    # Quantile 2 and targets 1, 2, 2, 3, 4: one of five below, τ = 0.3: dL/dq = 0.2 − 0.3
    q = tensor([2.0], dtype=F64, requires_grad=True)
    loss = huber_loss(q, tensor([1.0, 2.0, 2.0, 3.0, 4.0], dtype=F64), tensor([0.3], dtype=F64), kappa=0.0)
    assert float(torch.autograd.grad(loss, q)[0]) == pytest.approx(-0.1)


def test_the_gradient_within_kappa_is_in_proportion_to_the_distance():
    # κ = 2, τ = 0.3, quantile 0. Targets −5: 0.7 · 1. −1: 0.7 · ½. 0: 0. 1: −0.3 · ½. 3: −0.3 · 1. Mean of five: 0.12
    q = tensor([0.0], dtype=F64, requires_grad=True)
    loss = huber_loss(q, tensor([-5.0, -1.0, 0.0, 1.0, 3.0], dtype=F64), tensor([0.3], dtype=F64), kappa=2.0)
    assert float(torch.autograd.grad(loss, q)[0]) == pytest.approx(0.12)


def test_sb3_contrib_has_the_same_loss_at_kappa_one_up_to_its_sum_over_levels():
    # sb3-contrib: kappa fixed at 1, levels (i + ½)/N, and its mean runs over batch, levels and targets as ours;
    # with sum_over_quantiles it is N times as large.
    S, N, M = 5, 7, 11
    generator = torch.Generator().manual_seed(2)
    quantiles, targets = torch.randn(S, N, generator=generator), 3 * torch.randn(S, M, generator=generator)
    levels, _ = uniform_levels(N)
    ours = huber_loss(quantiles, targets, levels, kappa=1.0).mean()
    assert_close(ours, sb3_loss(quantiles, targets, sum_over_quantiles=False))
    assert_close(ours * N, sb3_loss(quantiles, targets, sum_over_quantiles=True))


@pytest.mark.parametrize("tau", [0.05, 0.3, 0.9])
def test_as_kappa_goes_to_zero_the_minimiser_is_the_empirical_quantile(tau):
    targets = torch.from_numpy(np.random.default_rng(0).standard_t(3, size=501))
    grid = torch.linspace(-4, 4, 8001, dtype=F64)  # each point is a row with one quantile
    rows = targets.expand(len(grid), -1)
    loss = huber_loss(grid.unsqueeze(-1), rows, tensor([tau], dtype=F64), kappa=1e-4)
    best = float(grid[loss.argmin()])
    assert best == pytest.approx(float(np.quantile(targets.numpy(), tau, method="inverted_cdf")), abs=2e-3)


@given(qs=st.lists(finite, min_size=2, max_size=6), ts=st.lists(finite, min_size=1, max_size=6), shift=finite)
def test_the_loss_is_never_negative_and_does_not_see_a_common_shift(qs, ts, shift):
    q, t, (levels, _) = tensor(qs, dtype=F64), tensor(ts, dtype=F64), uniform_levels(len(qs))
    loss = huber_loss(q, t, levels, kappa=1.0)
    assert float(loss) >= -1e-9
    assert_close(huber_loss(q + shift, t + shift, levels, kappa=1.0), loss, rtol=1e-9, atol=1e-7)


@pytest.mark.parametrize("poison", [torch.nan, torch.inf, -torch.inf])
@pytest.mark.parametrize("kappa", [0.0, 1.0])
def test_what_is_not_finite_stays_visible_in_its_own_row(poison, kappa):
    levels, _ = uniform_levels(3)
    targets = torch.arange(10.0).reshape(2, 5)
    targets[1, 2] = poison
    loss = huber_loss(torch.zeros(2, 3), targets, levels, kappa=kappa)
    assert torch.isfinite(loss).tolist() == [True, False]


@pytest.mark.parametrize(
    ("quantiles", "targets", "levels", "kappa", "message"),
    [
        (torch.zeros(2, 3), torch.zeros(4, 5), [0.2, 0.5, 0.8], 1.0, r"\(2, 3\) and targets \(4, 5\) must agree"),
        (torch.zeros(2, 3), torch.zeros(2, 5), [0.2, 0.8], 1.0, "one entry per level, 2, got 3"),
        (torch.zeros(2, 3), torch.zeros(2, 0), [0.2, 0.5, 0.8], 1.0, "targets need at least one entry"),
        (torch.zeros(2, 3), torch.zeros(2, 5), [0.5, 0.2, 0.8], 1.0, "levels must rise strictly"),
        (torch.zeros(2, 3), torch.zeros(2, 5), [0.5, 0.5, 0.8], 1.0, "levels must rise strictly, got 0.5 before 0.5"),
        (torch.zeros(2, 3), torch.zeros(2, 5), [0.2, 0.5, 1.0], 1.0, r"levels must lie inside \(0, 1\)"),
        (torch.zeros(2, 3), torch.zeros(2, 5), [0.2, torch.nan, 0.9], 1.0, "levels must be finite, got 1 NaN"),
        (
            torch.zeros(2, 3),
            torch.zeros(2, 5),
            [0.2, 0.5, 0.8],
            -1.0,
            "kappa must be finite and not negative, got -1.0",
        ),
        (torch.zeros(2, 3), torch.zeros(2, 5), [0.2, 0.5, 0.8], torch.nan, "kappa must be finite .* got nan"),
        (
            torch.zeros(2, 3),
            torch.zeros(2, 5, dtype=F64),
            [0.2, 0.5, 0.8],
            1.0,
            "must have one dtype, got torch.float32 and torch.float64",
        ),
    ],
)
def test_the_loss_names_what_is_wrong(quantiles, targets, levels, kappa, message):
    with pytest.raises(ArgumentError, match=message):
        huber_loss(quantiles, targets, tensor(levels), kappa=kappa)


def test_a_wrong_shape_is_a_shape_error():
    with pytest.raises(ShapeError):
        huber_loss(torch.zeros(2, 3), torch.zeros(4, 5), tensor([0.2, 0.5, 0.8]), kappa=1.0)

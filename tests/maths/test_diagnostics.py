"""Numbers that say whether learning is healthy."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats
from stable_baselines3.common.utils import explained_variance as sb3_explained_variance
from torch import tensor
from torch.testing import assert_close

from leeward.errors import ArgumentError
from leeward.maths.diagnostics import calibration_error, coverage, crossing_rate, explained_variance
from leeward.maths.quantile import uniform_levels

F64 = torch.float64


def test_explained_variance_by_hand():
    # Targets 1, 3, 5: variance 8/3. Residuals 0, 0, 2: variance 8/9. 1 − 1/3 = 2/3.
    assert float(explained_variance(tensor([1.0, 3.0, 3.0]), tensor([1.0, 3.0, 5.0]))) == pytest.approx(2 / 3)


@given(seed=st.integers(0, 10_000))
def test_explained_variance_is_that_of_stable_baselines(seed):
    rng = np.random.default_rng(seed)
    predictions, targets = rng.normal(size=24), rng.normal(size=24)
    ours = explained_variance(torch.from_numpy(predictions).reshape(6, 4), torch.from_numpy(targets).reshape(6, 4))
    assert float(ours) == pytest.approx(float(sb3_explained_variance(predictions, targets)), rel=1e-9)


@given(seed=st.integers(0, 10_000), shift=st.floats(-100, 100))
def test_a_perfect_prediction_scores_one_and_an_offset_costs_nothing(seed, shift):
    targets = torch.from_numpy(np.random.default_rng(seed).normal(size=(5, 3)))
    assert float(explained_variance(targets + shift, targets)) == pytest.approx(1.0, abs=1e-9)
    assert float(explained_variance(torch.full_like(targets, shift), targets)) == pytest.approx(0.0, abs=1e-9)


@pytest.mark.parametrize("level", [0.0, 0.1, 1e8])
@pytest.mark.parametrize("dtype", [torch.float32, F64])
def test_targets_that_do_not_vary_have_no_explained_variance(level, dtype):
    targets = torch.full((7,), level, dtype=dtype)
    assert torch.isnan(explained_variance(torch.arange(7, dtype=dtype), targets))


def test_coverage_by_hand():
    # Row 0: targets 0, 1, 2, 3; quantiles 0.5, 2 → 1/4, 3/4 at or below. Row 1: targets all 9 → 0, 0. Mean of rows.
    targets = tensor([[3.0, 0.0, 2.0, 1.0], [9.0, 9.0, 9.0, 9.0]])
    assert_close(coverage(tensor([[0.5, 2.0], [0.5, 2.0]]), targets), tensor([0.125, 0.375], dtype=F64))


def test_true_quantiles_are_calibrated_and_narrow_ones_are_not():
    levels, _ = uniform_levels(9)
    targets = torch.from_numpy(np.random.default_rng(0).normal(size=(50, 400)))
    exact = torch.from_numpy(stats.norm.ppf(levels.numpy())).expand(50, 9)
    assert float(calibration_error(exact, targets, levels)) < 0.01
    # Half as wide: Φ(z/2) instead of Φ(z).
    expected = np.abs(stats.norm.cdf(stats.norm.ppf(levels.numpy()) / 2) - levels.numpy()).mean()
    assert float(calibration_error(exact / 2, targets, levels)) == pytest.approx(expected, abs=0.01)


def test_crossing_rate_is_the_share_of_neighbours_in_the_wrong_order():
    # Row 0: 1 of 3 pairs falls. Row 1: none (a tie is no crossing). 1 of 6.
    assert float(crossing_rate(tensor([[0.0, 2.0, 1.0, 3.0], [0.0, 0.0, 1.0, 2.0]]))) == pytest.approx(1 / 6)
    assert float(crossing_rate(torch.zeros(5, 1))) == 0.0


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (
            lambda: explained_variance(torch.zeros(2, 3), torch.zeros(3, 2)),
            r"shape of predictions, \(2, 3\), got \(3, 2\)",
        ),
        (lambda: explained_variance(torch.zeros(0), torch.zeros(0)), "at least one target, got none"),
        (lambda: coverage(torch.zeros(2, 3), torch.zeros(4, 3)), r"quantiles \(2, 3\) and targets \(4, 3\) must agree"),
        (lambda: coverage(torch.zeros(2, 3), torch.zeros(2, 0)), "at least one target, got none"),
        (lambda: coverage(torch.zeros(2, 3), torch.zeros(2, 4, dtype=F64)), "must have one dtype"),
        (
            lambda: calibration_error(torch.zeros(2, 3), torch.zeros(2, 4), tensor([0.5, 0.4, 0.9])),
            "levels must rise strictly",
        ),
    ],
)
def test_a_diagnostic_names_what_is_wrong(call, message):
    with pytest.raises(ArgumentError, match=message):
        call()

"""Calibration tests: right predictions pass, wrong ones are caught, and the statistics are the arithmetic."""

import numpy as np
import pytest
from scipy import stats

from leeward.backtest.calibration import (
    acerbi_szekely,
    christoffersen,
    christoffersen_independence,
    coverage,
    coverage_error,
    kupiec,
    pit,
    pit_histogram,
    tail_residual,
)
from leeward.errors import ArgumentError, ShapeError

ALPHA = 0.05
LEVELS = (np.arange(200) + 0.5) / 200
WEIGHTS = np.full(200, 1 / 200)


def market(n: int, *, predicted_scale: float, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Outcomes (n,) with a volatility that changes from bar to bar, and quantiles (n, 200) of a normal forecast."""
    rng = np.random.default_rng(seed)
    sigma = 0.01 * np.exp(0.3 * rng.standard_normal(n))
    return sigma * rng.standard_normal(n), predicted_scale * sigma[:, None] * stats.norm.ppf(LEVELS)


def tail_of(quantiles: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    # 200 levels: the ten lowest are the 5 % tail; VaR stands between the tenth and the eleventh
    return quantiles[:, 9:11].mean(axis=1), quantiles[:, :10].mean(axis=1)


def test_coverage_counts_outcomes_at_or_below_each_quantile():
    # bar 1: −1 ≤ {0, 2}; bar 2: 1 ≤ {2}; bar 3: 3 above both -> 1/3, 2/3; against levels .25, .75: gaps .0833, .0833
    quantiles = np.array([[0.0, 2.0]] * 3)
    outcomes = np.array([-1.0, 1.0, 3.0])
    assert coverage(quantiles, outcomes) == pytest.approx([1 / 3, 2 / 3])
    assert coverage_error(np.array([0.25, 0.75]), quantiles, outcomes) == pytest.approx(1 / 12)


def test_an_outcome_on_a_quantile_is_below_it_and_quantiles_that_cross_are_sorted():
    # sorted rows 0 2: outcome 0 ≤ {0, 2}, outcome 2 ≤ {2}, outcome 1 ≤ {2}, outcome 3 above both -> 1/4, 3/4
    quantiles = np.array([[0.0, 2.0], [2.0, 0.0], [2.0, 0.0], [0.0, 2.0]])
    assert coverage(quantiles, np.array([0.0, 2.0, 1.0, 3.0])).tolist() == [0.25, 0.75]
    assert coverage_error(np.array([0.25, 0.75]), quantiles, np.array([0.0, 2.0, 1.0, 3.0])) == 0.0


def test_pit_interpolates_inside_and_takes_the_middle_outside():
    # 1 is halfway between the quantiles at .2 and .6 -> .4; below all -> .2/2; above all -> (1 + .6)/2
    ranks = pit(np.array([0.2, 0.6]), np.array([[0.0, 2.0]] * 3), np.array([1.0, -5.0, 9.0]))
    assert ranks == pytest.approx([0.4, 0.1, 0.8])


def test_a_right_forecast_is_flat_and_a_narrow_one_u_shaped():
    outcomes, quantiles = market(4000, predicted_scale=1.0, seed=0)
    assert coverage_error(LEVELS, quantiles, outcomes) < 0.02
    assert np.abs(pit_histogram(pit(LEVELS, quantiles, outcomes), n_bins=10) - 1.0).max() < 0.2
    narrow = pit_histogram(pit(LEVELS, 0.5 * quantiles, outcomes), n_bins=10)
    assert min(narrow[0], narrow[-1]) > 2.0 > 1.0 > narrow[4]


def test_kupiec_is_the_likelihood_ratio():
    # 10 breaches in 100 at 5 %: 2 (90 ln(.90/.95) + 10 ln(.10/.05)) = 2 (−4.866050 + 6.931472) = 4.130844, p = 0.0421
    breaches = np.arange(100) < 10
    found = kupiec(breaches, ALPHA)
    assert found.statistic == pytest.approx(4.130844, abs=1e-6)
    assert found.p_value == pytest.approx(0.0421, abs=1e-4)


def test_kupiec_without_any_breach_is_finite():
    # 2 · 100 · ln(1/.95) = 10.258659
    assert kupiec(np.zeros(100, dtype=bool), ALPHA).statistic == pytest.approx(10.258659, abs=1e-6)


def test_christoffersen_is_the_markov_likelihood_ratio():
    # 0 0 1 1 0 0 0 0 1: steps 00: 4, 01: 2, 10: 1, 11: 1 -> rates 2/6, 1/2, together 3/8
    # free 4 ln(2/3) + 2 ln(1/3) + ln(1/2) + ln(1/2) = −1.621860 − 2.197225 − 1.386294 = −5.205379
    # tied 5 ln(5/8) + 3 ln(3/8) = −2.350018 − 2.942488 = −5.292506 -> 2 · 0.087127 = 0.174254
    breaches = np.array([0, 0, 1, 1, 0, 0, 0, 0, 1], dtype=bool)
    assert christoffersen_independence(breaches).statistic == pytest.approx(0.174254, abs=1e-5)
    together = christoffersen(breaches, ALPHA)
    assert together.statistic == pytest.approx(kupiec(breaches, ALPHA).statistic + 0.174254, abs=1e-5)
    # χ² with two degrees of freedom is an exponential: P(above x) = exp(−x / 2)
    assert together.p_value == pytest.approx(np.exp(-together.statistic / 2.0))


def test_breaches_in_a_row_fail_independence_and_scattered_ones_do_not():
    clustered = np.zeros(1000, dtype=bool)
    clustered[300:350] = True
    scattered = np.zeros(1000, dtype=bool)
    scattered[::20] = True
    assert kupiec(clustered, ALPHA).p_value == pytest.approx(1.0)
    assert christoffersen(clustered, ALPHA).p_value < 1e-6
    assert christoffersen(scattered, ALPHA).p_value > 0.01


def test_the_tail_residual_is_the_arithmetic():
    # T = 4, alpha .25, VaR −1, CVaR −2: one breach of −3 -> 1 − (−3/−2)/(4·.25) = −.5
    outcomes = np.array([-3.0, 0.5, 1.0, -0.5])
    assert tail_residual(outcomes, np.full(4, -1.0), np.full(4, -2.0), 0.25) == pytest.approx(-0.5)


def test_right_tails_pass_and_mild_ones_are_caught():
    p_values = []
    for seed in range(12):
        outcomes, quantiles = market(750, predicted_scale=1.0, seed=seed)
        var, cvar = tail_of(quantiles)
        rng = np.random.default_rng(seed)
        found = acerbi_szekely(outcomes, quantiles, WEIGHTS, var, cvar, alpha=ALPHA, rng=rng, n_draws=200)
        p_values.append(found.p_value)
    assert sum(p < 0.05 for p in p_values) <= 2
    assert 0.25 < np.mean(p_values) < 0.75
    outcomes, quantiles = market(750, predicted_scale=0.7, seed=0)
    var, cvar = tail_of(quantiles)
    found = acerbi_szekely(
        outcomes, quantiles, WEIGHTS, var, cvar, alpha=ALPHA, rng=np.random.default_rng(0), n_draws=200
    )
    assert found.statistic < -0.5
    assert found.p_value < 0.01


def test_shapes_and_levels_are_checked():
    with pytest.raises(ShapeError, match=r"quantiles \(T, N\) and outcomes \(T,\), got \(3, 2\) and \(4,\)"):
        coverage(np.zeros((3, 2)), np.zeros(4))
    with pytest.raises(ShapeError, match=r"got \(0, 2\) and \(0,\)"):
        coverage_error(np.array([0.25, 0.75]), np.zeros((0, 2)), np.zeros(0))
    with pytest.raises(ArgumentError, match="rising numbers"):
        pit(np.array([0.6, 0.2]), np.zeros((3, 2)), np.zeros(3))
    with pytest.raises(ArgumentError, match="CVaR < 0"):
        tail_residual(np.zeros(3), np.zeros(3), np.zeros(3), ALPHA)

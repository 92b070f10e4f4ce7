"""The stationary block bootstrap."""

import numpy as np
import pytest

from leeward.backtest import statistics
from leeward.backtest.bootstrap import Bootstrap, Interval, bootstrap, stationary_indices
from leeward.errors import ArgumentError


def test_blocks_are_runs_of_neighbours_with_the_asked_mean_length():
    rows = stationary_indices(503, 400, mean_block=20.0, rng=np.random.default_rng(0))
    assert rows.shape == (400, 503)
    joined = (np.diff(rows, axis=1) % 503) == 1
    # A new block begins with probability 1/20 (and continues its neighbour by chance once in 503)
    assert joined.mean() == pytest.approx(0.95 + 0.05 / 503, abs=0.002)
    assert np.bincount(rows.ravel(), minlength=503).min() > 300  # every bar is drawn about 400 times


def test_the_same_seed_gives_the_same_interval_and_another_does_not():
    returns = 0.01 * np.random.default_rng(1).standard_normal(300)

    def draw(seed: int) -> Interval:
        found = bootstrap(
            {"agent": returns}, bars_per_year=252.0, alpha=0.05, rng=np.random.default_rng(seed), n_draws=200
        )
        return found.interval("agent", "sharpe")

    assert draw(3) == draw(3)
    assert draw(3) != draw(4)


def test_the_error_of_a_mean_matches_the_closed_form_of_independent_returns():
    # i.i.d. normal, n = 1000: Sharpe per bar has standard error √((1 + SR²/2)/n); with blocks of 1 this is the plain
    # bootstrap. SR ≈ 0, so a year of 252 bars: √(252/1000) = 0.502
    returns = 0.01 * np.random.default_rng(2).standard_normal(1000)
    found = bootstrap(
        {"x": returns}, bars_per_year=252.0, alpha=0.05, rng=np.random.default_rng(0), mean_block=1.0, n_draws=1000
    )
    assert found.interval("x", "sharpe").error == pytest.approx(0.502, rel=0.1)


def test_every_statistic_of_a_draw_is_that_of_the_resampled_series():
    returns = 0.02 * np.random.default_rng(3).standard_t(4, size=120)
    found = bootstrap({"x": returns}, bars_per_year=12.0, alpha=0.1, rng=np.random.default_rng(9), n_draws=7)
    rows = stationary_indices(120, 7, mean_block=20.0, rng=np.random.default_rng(9))
    for d, row in enumerate(rows):
        sample = returns[row]
        assert found.draws["x"]["sharpe"][d] == pytest.approx(float(statistics.sharpe(sample, bars_per_year=12.0)))
        assert found.draws["x"]["cagr"][d] == pytest.approx(float(statistics.cagr(sample, bars_per_year=12.0)))
        # 0.1 · 120 = 12 worst bars
        assert found.draws["x"]["cvar"][d] == pytest.approx(np.sort(np.log1p(sample))[:12].mean())
        assert found.draws["x"]["max_drawdown"][d] == pytest.approx(float(statistics.max_drawdown(sample)))


def test_the_difference_to_a_baseline_is_paired():
    # The agent is the baseline plus 1 basis point a bar: unpaired the difference drowns, paired it is nearly certain.
    base = 0.01 * np.random.default_rng(4).standard_normal(700)
    found = bootstrap(
        {"agent": base + 1e-4, "hold": base}, bars_per_year=252.0, alpha=0.05, rng=np.random.default_rng(0), n_draws=500
    )
    assert found.interval("agent", "sharpe").error > 0.3
    assert found.difference("agent", "hold", "sharpe").error < 0.02
    assert found.difference("agent", "hold", "sharpe").low > 0.0
    assert found.difference("agent", "hold", "cvar").low == pytest.approx(1e-4, rel=0.1)


def test_the_interval_of_an_undefined_ratio_is_undefined():
    flat = bootstrap({"cash": np.zeros(50)}, bars_per_year=252.0, alpha=0.05, rng=np.random.default_rng(0), n_draws=10)
    found = flat.interval("cash", "sharpe")
    assert np.isnan([found.low, found.high, found.error]).all()


def test_an_interval_leaves_the_same_mass_on_both_sides():
    # 101 draws 0, 1, ..., 100 at a mass of 0.9: from the 5 % to the 95 % quantile. Sample deviation of 0 ... n - 1:
    # √(n (n + 1) / 12) = √(101 · 102 / 12)
    found = Bootstrap({"x": {"sharpe": np.arange(101.0)}, "y": {"sharpe": np.arange(101.0) - 3.0}}, mass=0.9)
    interval = found.interval("x", "sharpe")
    assert (interval.low, interval.high) == pytest.approx((5.0, 95.0))
    assert interval.error == pytest.approx((101 * 102 / 12) ** 0.5)
    assert found.difference("x", "y", "sharpe").low == found.difference("x", "y", "sharpe").high == pytest.approx(3.0)


def test_series_of_different_bars_cannot_be_paired():
    with pytest.raises(ArgumentError, match=r"same bars, got shapes .*\(9,\)"):
        bootstrap({"a": np.zeros(9), "b": np.zeros(8)}, bars_per_year=252.0, alpha=0.05, rng=np.random.default_rng(0))

"""The performance table against hand arithmetic and against empyrical-reloaded and quantstats."""

import empyrical
import numpy as np
import pandas as pd
import pytest
import quantstats.stats as quantstats
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from leeward.backtest import statistics
from leeward.backtest.performance import activity_of, performance_of
from leeward.errors import ArgumentError

BARS_PER_YEAR = 251.6


def fat_tailed(n: int = 1000, seed: int = 7) -> pd.Series:
    returns = 0.0004 + 0.012 * np.random.default_rng(seed).standard_t(4, size=n)
    return pd.Series(returns, index=pd.date_range("2015-01-01", periods=n, freq="D"))


def test_the_table_of_four_bars_is_the_arithmetic():
    # equity 1 -> 1.1 -> 0.99 -> 0.99 -> 1.188; four bars a year, so CAGR = total = 0.188
    # mean .05, deviations .05 -.15 -.05 .15 -> squares .0025 .0225 .0025 .0225 = .05 -> /3 -> std .1290994
    # sharpe = .05 / .1290994 * 2 = .7745967; downside = sqrt(.01/4) = .05 -> sortino = 1 * 2 = 2
    # drawdown: .99/1.1 - 1 = -.1 on bars 2 and 3 -> two bars; calmar 1.88; omega = .3/.1 = 3; hit 2 of 3
    table = performance_of(np.array([0.1, -0.1, 0.0, 0.2]), bars_per_year=4.0, alpha=0.25)
    assert table.total_return == pytest.approx(0.188)
    assert table.cagr == pytest.approx(0.188)
    assert table.volatility == pytest.approx(0.2581988897)
    assert table.sharpe == pytest.approx(0.7745966692)
    assert table.sortino == pytest.approx(2.0)
    assert table.calmar == pytest.approx(1.88)
    assert table.omega == table.profit_factor == pytest.approx(3.0)
    assert table.max_drawdown == pytest.approx(-0.1)
    assert table.max_drawdown_bars == 2
    assert table.hit_rate == pytest.approx(2 / 3)
    # a quarter of four bars is the worst one, as a log-return: the tail is one observation, VaR and CVaR both
    assert table.var == table.cvar == pytest.approx(np.log(0.9))


@pytest.mark.parametrize("cash_rate", [0.0, 0.03])
def test_the_table_equals_empyrical(cash_rate):
    returns = fat_tailed()
    bar_rate = cash_rate / BARS_PER_YEAR
    table = performance_of(
        returns.to_numpy(), returns.to_numpy(), bars_per_year=BARS_PER_YEAR, alpha=0.05, cash=bar_rate
    )
    theirs = {
        "cagr": empyrical.cagr(returns, annualization=BARS_PER_YEAR),
        "total_return": empyrical.cum_returns_final(returns),
        "volatility": empyrical.annual_volatility(returns, annualization=BARS_PER_YEAR),
        "sharpe": empyrical.sharpe_ratio(returns, risk_free=bar_rate, annualization=BARS_PER_YEAR),
        "sortino": empyrical.sortino_ratio(returns, required_return=bar_rate, annualization=BARS_PER_YEAR),
        "calmar": empyrical.calmar_ratio(returns, annualization=BARS_PER_YEAR),
        "omega": empyrical.omega_ratio(returns, risk_free=bar_rate),
        "max_drawdown": empyrical.max_drawdown(returns),
        "tail_ratio": empyrical.tail_ratio(returns),
        "cvar": empyrical.conditional_value_at_risk(returns, cutoff=0.05),  # 0.05 · 1000 is whole
    }
    for name, value in theirs.items():
        assert getattr(table, name) == pytest.approx(value, rel=1e-9), name


def test_the_table_equals_quantstats():
    returns = fat_tailed(1006)
    table = performance_of(returns.to_numpy(), bars_per_year=BARS_PER_YEAR, alpha=0.05, cash=0.02 / BARS_PER_YEAR)
    rate = (1.0 + 0.02 / BARS_PER_YEAR) ** BARS_PER_YEAR - 1.0  # quantstats compounds the yearly rate, Leeward does not
    under_water = quantstats.drawdown_details(quantstats.to_drawdown_series(returns))
    theirs = {
        "cagr": quantstats.cagr(returns, periods=BARS_PER_YEAR),
        "volatility": quantstats.volatility(returns, periods=BARS_PER_YEAR),
        "sharpe": quantstats.sharpe(returns, rf=rate, periods=BARS_PER_YEAR),
        "sortino": quantstats.sortino(returns, rf=rate, periods=BARS_PER_YEAR),
        "calmar": quantstats.calmar(returns, periods=BARS_PER_YEAR),
        "omega": quantstats.omega(returns, rf=rate, periods=BARS_PER_YEAR),
        "max_drawdown": quantstats.max_drawdown(returns),
        "max_drawdown_bars": under_water["days"].max(),  # one bar a day, so days are bars
        "skew": quantstats.skew(returns),
        "kurtosis": quantstats.kurtosis(returns),
        "tail_ratio": quantstats.tail_ratio(returns),
        "hit_rate": quantstats.win_rate(returns),
        "profit_factor": quantstats.profit_factor(returns),
    }
    for name, value in theirs.items():
        assert getattr(table, name) == pytest.approx(value, rel=1e-9), name


def test_tail_statistics_are_of_the_risk_variable_not_of_simple_returns():
    returns = fat_tailed(400).to_numpy()
    table = performance_of(returns, 2.0 * returns, bars_per_year=250.0, alpha=0.05)
    assert table.cvar == pytest.approx(2.0 * np.sort(returns)[:20].mean())


def test_cvar_weights_the_partly_covered_observation():
    # alpha 0.25 of 6 observations is 1.5 of them: (-3 + 0.5 · -2) / 1.5 = -8/3
    sample = np.array([0.0, -3.0, 1.0, -2.0, 2.0, 3.0])
    assert statistics.cvar(sample, alpha=0.25) == pytest.approx(-8 / 3)
    assert statistics.cvar(np.stack([sample, -sample]), alpha=0.25) == pytest.approx([-8 / 3, -8 / 3])


def test_var_is_the_mildest_observation_of_the_tail():
    # 0.25 of 6 is 1.5 observations and cuts the second worst; 0.25 of 8 ends with the second worst, 0.26 cuts the third
    sample = np.array([0.0, -3.0, 1.0, -2.0, 2.0, 3.0])
    assert statistics.value_at_risk(sample, alpha=0.25) == -2.0
    longer = np.array([5.0, -3.0, 1.0, -2.0, 2.0, 3.0, -1.0, 4.0])
    assert statistics.value_at_risk(longer, alpha=0.25) == -2.0
    assert statistics.value_at_risk(longer, alpha=0.26) == -1.0
    assert statistics.value_at_risk(np.stack([longer, -longer]), alpha=0.25).tolist() == [-2.0, -4.0]


@settings(derandomize=True, deadline=None)
@given(hnp.arrays(np.float64, st.integers(4, 60), elements=st.floats(-0.2, 0.2)), st.floats(0.02, 1.0))
def test_var_is_the_slope_of_the_tail_in_alpha(returns, alpha):
    # α CVaR_α = ∫₀^α F⁻¹, so its slope is F⁻¹(α) = VaR_α; inside a step of F⁻¹, 1/n wide, a difference is exact
    n = len(returns)
    step = 0.49 / n
    middle = (np.ceil(alpha * n - 1e-9) - 0.5) / n  # of the step in which alpha lies
    low, high = middle - step / 2.0, middle + step / 2.0
    slope = (high * statistics.cvar(returns, alpha=high) - low * statistics.cvar(returns, alpha=low)) / step
    assert statistics.value_at_risk(returns, alpha=alpha) == pytest.approx(slope, abs=1e-6)


def test_a_flat_book_has_no_ratios_instead_of_made_up_ones():
    table = performance_of(np.zeros(9), bars_per_year=252.0, alpha=0.05)
    assert table.cagr == table.volatility == table.max_drawdown == table.cvar == 0.0
    assert table.max_drawdown_bars == 0
    for name in ("sharpe", "sortino", "calmar", "omega", "skew", "kurtosis", "tail_ratio", "hit_rate", "profit_factor"):
        assert np.isnan(getattr(table, name)), name


def test_constant_interest_has_no_sharpe_ratio_of_1e15():
    assert np.isnan(performance_of(np.full(977, 0.1), bars_per_year=252.0, alpha=0.05).sharpe)


def test_a_drawdown_that_never_ends_lasts_to_the_last_bar():
    # peak at the start: bars 1..5 all end below it
    assert statistics.longest_drawdown_bars(np.array([-0.5, 0.1, 0.1, 0.1, 0.1])) == 5
    assert statistics.longest_drawdown_bars(np.array([0.5, 0.1])) == 0


@settings(derandomize=True, deadline=None)
@given(hnp.arrays(np.float64, st.integers(4, 60), elements=st.floats(-0.2, 0.2)), st.floats(0.02, 1.0))
def test_cvar_is_never_above_the_mean_and_drawdown_never_above_zero(returns, alpha):
    assert statistics.cvar(returns, alpha=alpha) <= returns.mean() + 1e-12
    assert -1.0 < statistics.max_drawdown(returns) <= 0.0


def test_activity_counts_costs_against_the_profit_before_them():
    # equity 100 -> 120 -> 130: profit 30 after costs of 10, so 10 of 40 gross = 25 %
    # costs over equity before the bar: 5/100, 5/120 -> mean .0458333, two bars a year -> .0916667
    activity = activity_of(
        equity=np.array([100.0, 120.0, 130.0]),
        turnover=np.array([1.0, 0.5]),
        exposure=np.array([0.9, 0.3]),
        costs=np.array([5.0, 5.0]),
        trades=1,
        bars_per_year=2.0,
    )
    assert activity.turnover_per_year == pytest.approx(1.5)
    assert activity.exposure == pytest.approx(0.6)
    assert activity.costs_per_year == pytest.approx(0.0916666667)
    assert activity.costs_of_gross_profit == pytest.approx(0.25)


@pytest.mark.parametrize(
    ("returns", "message"),
    [
        (np.array([0.1]), "at least two returns"),
        (np.zeros((3, 2)), r"got shape \(3, 2\)"),
        (np.array([0.1, -1.0]), "above −1"),
        (np.array([0.1, np.nan]), "finite"),
    ],
)
def test_a_series_that_cannot_be_measured_is_refused(returns, message):
    with pytest.raises(ArgumentError, match=message):
        performance_of(returns, bars_per_year=252.0, alpha=0.05)


def test_a_tail_mass_outside_the_unit_interval_is_refused():
    with pytest.raises(ArgumentError, match=r"tail mass in \(0, 1\], got 5"):
        performance_of(np.array([0.1, 0.2]), bars_per_year=252.0, alpha=5)

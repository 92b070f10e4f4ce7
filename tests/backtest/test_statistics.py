"""Each statistic on a few returns, worked out beside it; four bars make a year, so √4 = 2 annualises."""

import numpy as np
import pytest

from leeward.backtest import statistics
from leeward.backtest.performance import performance_of
from leeward.backtest.result import cash_returns

RETURNS = np.array([0.1, -0.1, 0.0, 0.2])  # mean 0.05; sum of squared deviations 0.05, so std √(0.05 / 3) = 0.1290994
YEAR = 4.0


def test_growth_compounds():
    # 1.1 · 0.9 · 1 · 1.2 = 1.188 in one year; over two bars a year it took two years: √1.188 - 1
    assert statistics.cagr(RETURNS, bars_per_year=YEAR) == pytest.approx(0.188)
    assert statistics.cagr(RETURNS, bars_per_year=2.0) == pytest.approx(1.188**0.5 - 1.0)


def test_volatility_is_the_sample_deviation_of_a_year():
    assert statistics.volatility(RETURNS, bars_per_year=YEAR) == pytest.approx(2 * 0.1290994449)


def test_the_sharpe_ratio_is_in_excess_of_cash():
    # Cash at 8 % a year earns 2 % a bar: (0.05 - 0.02) / 0.1290994 · 2
    assert statistics.sharpe(RETURNS, bars_per_year=YEAR) == pytest.approx(0.7745966692)
    assert statistics.sharpe(RETURNS, bars_per_year=YEAR, cash=0.02) == pytest.approx(0.03 / 0.1290994449 * 2)


def test_cash_has_no_sharpe_ratio_beside_its_own_rate():
    # five days, a weekend among them: cash earns three days' interest over it, and not a fifth of a week each time
    time = np.array(["2024-01-03", "2024-01-04", "2024-01-05", "2024-01-08", "2024-01-09"], dtype="datetime64[ns]")
    cash = cash_returns(time, 0.0365)
    np.testing.assert_allclose(cash, [1e-4, 1e-4, 3e-4, 1e-4])
    table = performance_of(cash, bars_per_year=250.0, alpha=0.5, cash=cash)
    assert np.isnan([table.sharpe, table.sortino, table.omega]).all()
    assert performance_of(cash, bars_per_year=250.0, alpha=0.5, cash=1.5e-4).sharpe == pytest.approx(0.0)


def test_the_sortino_ratio_counts_every_bar_in_its_downside():
    # Below cash of 2 % a bar: -0.12 and -0.02. √((0.0144 + 0.0004) / 4) = 0.06082763; 0.03 / 0.06082763 · 2
    assert statistics.sortino(RETURNS, bars_per_year=YEAR, cash=0.02) == pytest.approx(0.03 / 0.0608276253 * 2)


def test_omega_is_what_was_gained_over_what_was_lost_against_cash():
    # Above 2 %: 0.08 + 0.18 = 0.26; below: 0.12 + 0.02 = 0.14
    assert statistics.omega(RETURNS, cash=0.02) == pytest.approx(0.26 / 0.14)


def test_a_drawdown_counts_from_the_start():
    # Equity 0.8, 0.88, 1.1, 0.99: the first peak is the capital itself.
    returns = np.array([-0.2, 0.1, 0.25, -0.1])
    assert statistics.drawdowns(returns) == pytest.approx([-0.2, -0.12, 0.0, -0.1])
    assert statistics.max_drawdown(returns) == pytest.approx(-0.2)
    assert statistics.longest_drawdown_bars(returns) == 2


def test_value_at_risk_is_the_mildest_of_the_tail():
    # The worst quarter of -0.1, 0, 0.1, 0.2 is its first; the worst half ends at 0.
    assert statistics.value_at_risk(RETURNS, alpha=0.25) == pytest.approx(-0.1)
    assert statistics.value_at_risk(RETURNS, alpha=0.5) == pytest.approx(0.0)


def test_the_tail_ratio_compares_both_tails():
    # Of 21 numbers from -2 to 8 the 5 % quantile is the second, -1.5, and the 95 % one the twentieth, 7.5.
    assert statistics.tail_ratio(np.linspace(-2.0, 8.0, 21)) == pytest.approx(5.0)


def test_bars_without_a_result_are_neither_hits_nor_misses():
    assert performance_of(RETURNS, bars_per_year=YEAR, alpha=0.25).hit_rate == pytest.approx(2 / 3)


def test_calmar_is_growth_over_the_deepest_drawdown():
    assert performance_of(RETURNS, bars_per_year=YEAR, alpha=0.25).calmar == pytest.approx(0.188 / 0.1)

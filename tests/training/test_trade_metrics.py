"""The numbers of a rollout are those a backtest would give the same bars."""

import numpy as np
import pytest

from leeward.backtest.performance import performance_of
from leeward.telemetry import metrics
from leeward.training.trade_metrics import TradeMetrics

OTHERS = ("turnover", "exposure", "n_trades")


def read(simple, *, bars_per_year=4.0, alpha=0.25, cash_rate=0.0):
    """Score of a rollout whose simple returns are `simple` (T, B)."""
    gathered = TradeMetrics(bars_per_year, alpha, cash_rate=cash_rate)
    for row in np.log1p(np.asarray(simple, dtype=float)):
        gathered.step({"step_return": row} | dict.fromkeys(OTHERS, np.zeros(len(row))))
    return gathered.read()


def test_the_sharpe_ratio_of_a_rollout_is_of_simple_returns_in_excess_of_cash():
    # .1 −.1 / 0 .2 pooled over steps and envs: mean .05, std √(.05/3) = .1290994; four bars a year: .05/.1290994 · 2
    found, score = read([[0.1, -0.1], [0.0, 0.2]])
    assert score.sharpe == found[metrics.TRADE_SHARPE] == pytest.approx(0.7745966692)
    # cash at 4 % a year earns .01 a bar: .04/.1290994 · 2
    assert read([[0.1, -0.1], [0.0, 0.2]], cash_rate=0.04)[1].sharpe == pytest.approx(0.6196773354)


def test_a_rollout_of_one_env_scores_as_the_backtest_of_its_bars():
    returns = 0.001 + 0.02 * np.random.default_rng(0).standard_t(4, size=300)
    _, score = read(returns[:, None], bars_per_year=252.0, alpha=0.05, cash_rate=0.02)
    table = performance_of(returns, bars_per_year=252.0, alpha=0.05, cash=0.02 / 252.0)
    assert score.sharpe == pytest.approx(table.sharpe, rel=1e-12)
    assert score.max_drawdown == pytest.approx(table.max_drawdown, rel=1e-12)
    assert score.cvar == pytest.approx(table.cvar, rel=1e-12)
    assert score.growth == pytest.approx(np.log1p(table.cagr), rel=1e-12)


def test_a_rollout_that_never_moves_has_no_sharpe_ratio():
    found, score = read(np.zeros((3, 2)))
    assert np.isnan(score.sharpe) and metrics.TRADE_SHARPE not in found
    assert (score.growth, score.max_drawdown, score.cvar) == (0.0, 0.0, 0.0)


# Log-returns (T, B): env 0 gains 10 %, loses 20 %, loses 10 %; env 1 loses 5 % and then stands still.
RETURNS = np.log([[1.1, 0.95], [0.8, 1.0], [0.9, 1.0]])


def test_a_rollout_is_reduced_over_steps_and_envs():
    gathered = TradeMetrics(bars_per_year=4.0, alpha=1 / 6, cash_rate=0.0)
    for t in range(3):
        gathered.step(
            {
                "step_return": RETURNS[t],
                "turnover": np.array([0.5, 0.1]) * t,
                "exposure": np.array([1.0, 0.4]),
                "n_trades": np.array([1.0, 0.0]),
            }
        )
    found, score = gathered.read()
    assert score.growth == pytest.approx(4.0 * RETURNS.mean())
    assert score.max_drawdown == pytest.approx(0.8 * 0.9 - 1.0)  # of env 0, along its own path
    assert score.cvar == pytest.approx(np.log(0.8))  # one of six
    assert found[metrics.TRADE_TURNOVER] == pytest.approx(0.3)  # (0 + 0.6 + 1.2) / 6
    assert found[metrics.TRADE_EXPOSURE] == pytest.approx(0.7)
    assert found[metrics.TRADE_N_TRADES] == 3.0
    assert (found[metrics.TRADE_SHARPE], found[metrics.TRADE_MAX_DRAWDOWN]) == (score.sharpe, score.max_drawdown)
    for _ in range(2):  # the next rollout starts from nothing
        gathered.step({key: np.zeros(2) for key in gathered.steps})
    found, score = gathered.read()
    assert found[metrics.TRADE_N_TRADES] == 0.0 and score.growth == 0.0

"""A small finished backtest, made without an env: two assets, 60 bars, a ledger a reader can follow."""

import numpy as np
import pytest

from leeward.backtest.calibration import step_weights
from leeward.backtest.result import COSTS, BacktestResult, Outlook


def make_result(name: str = "agent", *, seed: int = 0, n: int = 60, outlook: bool = False) -> BacktestResult:
    rng = np.random.default_rng(seed)
    step_returns = 0.001 + 0.01 * rng.standard_normal(n)
    equity = 1e6 * np.exp(np.concatenate([[0.0], step_returns.cumsum()]))
    weights = rng.choice([0.0, 0.25, 0.5], size=(n, 2))
    closes = 100.0 * np.exp(0.01 * rng.standard_normal((n, 2)).cumsum(0))
    levels = np.array([0.01, 0.04, 0.1, 0.5, 0.9])
    quantiles = 0.01 * np.array([-2.3, -1.7, -1.3, 0.0, 1.3]) * np.ones((n, 1))
    step = (
        Outlook(levels, step_weights(levels), quantiles, np.full(n, -0.0165), np.full(n, -0.021), np.zeros(n))
        if outlook
        else None
    )
    return BacktestResult(
        name=name,
        split="test",
        assets=("AAA", "BBB/USD"),
        time=np.datetime64("2020-01-01", "ns") + np.arange(n + 1) * np.timedelta64(1, "D"),
        equity=equity,
        step_returns=step_returns,
        targets=weights,
        weights=weights,
        units=weights * equity[1:, None] / closes,
        fills=closes,
        closes=closes,
        costs={kind: rng.random(n) for kind in COSTS},
        turnover=rng.random(n),
        bars_per_year=365.25,
        outlook=step,
        outlook_step=step,
        fingerprints={"data": "d" * 64},
    )


@pytest.fixture
def result():
    return make_result

"""Whole runs over a split, and the best policy of the control market."""

import numpy as np
import pytest

from leeward.config.trading import DataConfig, EnvConfig
from leeward.env import Simulation, best_clipped_linear, clipped_linear_growth, replay, replay_targets
from leeward.errors import ArgumentError, DataError
from leeward.market import prepare

from ..support.trading_panels import random_bars, small_market


def test_a_replay_holds_everything_that_happened():
    market = small_market(random_bars(np.random.default_rng(0), n=120, n_assets=3))
    simulation = Simulation(market, EnvConfig(min_weight=-1.0), n_envs=2)
    seen = []

    def decide(observations):
        seen.append(observations)
        return np.tanh(observations[:, :9:3].astype(np.float64))

    run = replay(simulation, decide, "validation")
    split = market.splits["validation"]
    n = split.n_decisions
    assert len(seen) == n + split.start - split.warmup  # warm-up bars are shown, and are not in the result
    assert run.bars.tolist() == list(range(split.start, split.end - 1))
    assert run.weights.shape == run.units.shape == run.orders.shape == (n, 2, 3)
    close = market.bars.close[split.start + 1 : split.end, None, :]
    np.testing.assert_allclose(run.weights, run.units * close / run.equity[:, :, None], rtol=1e-12)
    traded = np.diff(run.units, axis=0, prepend=0.0) * market.bars.open[split.start + 1 : split.end, None, :]
    np.testing.assert_allclose(run.orders, traded, rtol=1e-9, atol=1e-6)
    growth = np.log(run.equity[-1] / run.start_equity)
    np.testing.assert_allclose(run.info["step_return"].sum(axis=0), growth, rtol=1e-9)
    again = replay_targets(simulation, run.targets, "validation")
    np.testing.assert_array_equal(again.equity, run.equity)


def test_buy_and_hold_trades_once():
    market = small_market(random_bars(np.random.default_rng(1), n=120, n_assets=2))
    n = market.splits["test"].n_decisions
    targets = np.full((n, 1, 2), np.nan)
    targets[0] = 0.5
    run = replay_targets(Simulation(market), targets, "test")
    assert run.info["n_trades"][:, 0].tolist() == [2.0] + [0.0] * (n - 1)
    with pytest.raises(ArgumentError, match="targets of the test split must be"):
        replay_targets(Simulation(market), targets[1:], "test")


def test_after_ruin_the_rest_of_a_split_is_cash():
    market = small_market(random_bars(np.random.default_rng(2), n=150, n_assets=1, volatility=0.3))
    config = EnvConfig(account={"gross_limit": 3.0}, costs={"cash_rate": 0.0})
    n = market.splits["train"].n_decisions
    run = replay_targets(Simulation(market, config), np.full((n, 1, 1), 3.0), "train")
    end = int(np.argmax(run.terminated[:, 0]))
    assert run.terminated.sum() == 1 and end < n - 1
    assert (run.units[end:] == 0.0).all() and (run.equity[end:] == run.equity[end]).all()


@pytest.fixture(scope="module")
def control():
    return prepare(DataConfig(source="sample:control", n_bars=8_000, features=()))


def test_the_best_policy_beats_its_neighbours_and_grows_out_of_sample(control):
    config = EnvConfig(min_weight=-1.0)
    best = best_clipped_linear(control, config)
    assert clipped_linear_growth(control, config, best, split="train") == pytest.approx(best.growth, rel=1e-12)
    # 1.5 % of R² at 1 % volatility is worth about 0.8 · 0.1225 · 1 % = 10 bps a bar before costs; after them 5 to 10.
    train, test = control.splits["train"], control.splits["test"]
    assert 5e-4 < best.growth / train.n_decisions < 1.2e-3
    assert clipped_linear_growth(control, config, best, split="test") / test.n_decisions > 3e-4


def test_a_market_without_the_signal_is_refused():
    with pytest.raises(DataError, match="feature_signal"):
        best_clipped_linear(prepare())

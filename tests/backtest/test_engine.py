"""Any policy with `predict` runs over a split, and what is recorded is what the kernel did."""

from types import SimpleNamespace

import numpy as np
import pytest

from leeward.backtest import baselines
from leeward.backtest.engine import run_many, run_policy, run_targets
from leeward.config.trading import CostsConfig, EnvConfig
from leeward.env import Simulation
from leeward.errors import ArgumentError, ShapeError
from leeward.market import Bars

from ..support.panels import market_of, panel

FREE = CostsConfig(commission_bps=0.0, half_spread_bps=0.0, impact_coef=0.0, debit_rate=0.0)


class Counting:
    """A policy with a memory: it counts the calls since the episode started and holds a weight made from the count."""

    def __init__(self) -> None:
        self.calls: list[tuple[int | None, bool]] = []

    def predict(self, observation, state=None, episode_start=None, deterministic=True):
        assert deterministic
        self.calls.append((state, bool(episode_start[0])))
        count = 0 if episode_start[0] else state + 1
        return np.full((1, 2), 0.1 + 0.001 * count, dtype=np.float32), count


class Foretelling(Counting):
    """The same with a distribution that says which state it was asked in."""

    def predict_distribution(self, observation, state=None, episode_start=None):
        memory = -1 if state is None else state
        row = SimpleNamespace(levels=np.array([0.1, 0.5]), quantiles=np.array([[memory, memory + 1.0]]), step=None)
        row.mean, row.var, row.cvar = np.array([memory]), lambda a: np.array([-a]), lambda a: np.array([-2 * a])
        step = SimpleNamespace(**vars(row))
        row.step = step
        return row


def test_memory_warms_up_on_the_embargo_and_starts_once():
    market, policy = market_of(panel()), Counting()
    window = market.split("test")
    result = run_policy(policy, market, EnvConfig(), split="test", alpha=0.05)
    assert [start for _, start in policy.calls] == [True] + [False] * (window.end - 1 - window.warmup - 1)
    # The first decision of the split is the 10th call: 9 embargo bars came before it.
    assert result.targets[0] == pytest.approx([0.109, 0.109], rel=1e-6)
    assert len(result.targets) == window.n_decisions
    assert (result.time == market.bars.time[window.start : window.end]).all()


def test_warm_up_does_not_trade():
    market = market_of(panel())
    result = run_policy(Counting(), market, EnvConfig(), split="test", alpha=0.05)
    assert result.equity[0] == 1_000_000.0
    assert result.turnover[0] == pytest.approx(2 * 0.109, rel=1e-6)  # all of it is bought at the first fill


def test_the_distribution_is_asked_with_the_memory_before_the_decision():
    market = market_of(panel())
    result = run_policy(Foretelling(), market, EnvConfig(), split="test", alpha=0.05)
    n = market.split("test").n_decisions
    assert result.outlook.quantiles[:, 0].tolist() == list(range(8, 8 + n))
    assert result.outlook_step.var == pytest.approx(-0.05)
    assert result.outlook_step.cvar == pytest.approx(-0.1)
    assert run_policy(Counting(), market, EnvConfig(), split="test", alpha=0.05).outlook is None


def test_weights_are_the_policys_own_or_the_steps_between_its_levels():
    market = market_of(panel())
    found = run_policy(Foretelling(), market, EnvConfig(), split="test", alpha=0.05)
    assert found.outlook.weights == pytest.approx([0.3, 0.7])  # the middle of 0.1 and 0.5

    class Weighted(Foretelling):
        def predict_distribution(self, observation, state=None, episode_start=None):
            row = super().predict_distribution(observation, state, episode_start)
            row.weights = np.array([0.2, 0.8])
            return row

    assert run_policy(Weighted(), market, EnvConfig(), split="test", alpha=0.05).outlook.weights.tolist() == [0.2, 0.8]


def test_a_distribution_that_lacks_a_part_is_named():
    class Partial(Counting):
        def predict_distribution(self, observation, state=None, episode_start=None):
            return SimpleNamespace(levels=np.array([0.5]), mean=np.zeros(1), var=abs, cvar=abs)

    with pytest.raises(ArgumentError, match=r"quantiles \(\d+, N\).*got a SimpleNamespace without quantiles"):
        run_policy(Partial(), market_of(panel()), EnvConfig(), split="test", alpha=0.05)


def test_without_costs_the_equity_is_the_arithmetic_of_the_weights():
    # Full in asset 0 from the first open on: equity follows close / first open.
    bars = panel(n_assets=1)
    market = market_of(bars)
    window = market.split("test")
    targets = np.full((window.n_decisions, 1), np.nan)
    targets[0] = 1.0
    result = run_targets(targets, market, EnvConfig(costs=FREE), split="test", name="all")
    closes = bars.close[window.start + 1 : window.end, 0]
    assert result.equity[1:] == pytest.approx(1e6 * closes / bars.open[window.start + 1, 0])
    assert result.returns == pytest.approx(np.expm1(result.step_returns))
    (trade,) = result.trades
    assert trade.is_open
    assert trade.pnl == pytest.approx(result.equity[-1] - 1e6)


def test_profit_of_all_trades_less_interest_is_the_change_of_equity():
    market = market_of(panel())
    config = EnvConfig(min_weight=-1.0)
    rng = np.random.default_rng(3)
    targets = rng.uniform(-0.5, 0.5, size=(market.split("test").n_decisions, 2)) * rng.integers(0, 2, size=(1, 2))
    targets[::7] = 0.0
    result = run_targets(targets, market, config, split="test", name="random")
    assert len(result.trades) > 5
    made = sum(trade.pnl for trade in result.trades) - result.costs["interest"].sum()
    assert made == pytest.approx(result.equity[-1] - result.equity[0], rel=1e-9)
    assert result.exposure == pytest.approx(np.abs(result.weights).sum(axis=1))


def test_many_accounts_at_once_are_the_same_as_one_by_one():
    market, config = market_of(panel()), EnvConfig()
    n = market.split("test").n_decisions
    versions = np.random.default_rng(0).uniform(0.0, 0.5, size=(3, n, 2))
    together = run_many(lambda t: versions[:, t], 3, market, config, split="test")
    for version, returns in zip(versions, together, strict=True):
        alone = run_targets(version, market, config, split="test", name="one")
        assert (alone.step_returns == returns).all()


def test_targets_of_another_length_are_refused():
    market = market_of(panel())
    with pytest.raises(
        ShapeError, match=r"targets of x on test must be \(decisions, assets\) = \(70, 2\), got \(3, 2\)"
    ):
        run_targets(np.zeros((3, 2)), market, EnvConfig(), split="test", name="x")


def test_buy_and_hold_splits_the_capital_once_and_waits_for_a_missing_bar():
    window = market_of(panel()).split("test")
    bars = panel(absent=(window.start + 1, window.start + 4))
    market = market_of(bars)
    result = baselines.buy_and_hold(market, EnvConfig(costs=FREE), split="test")
    change = np.diff(result.units, axis=0, prepend=0.0) != 0.0
    assert np.argwhere(change).tolist() == [[0, 0], [3, 1]]  # each asset is bought once, the second three bars later
    assert result.units[0, 0] == pytest.approx(0.5e6 / bars.open[window.start + 1, 0])


def test_cash_stays_where_it_is():
    market = market_of(panel())
    result = baselines.cash(market, EnvConfig(), split="test")
    assert (result.equity == 1e6).all()
    assert result.trades == ()


def test_ewma_volatility_is_the_recursion():
    # returns .01, −.02, 0: σ² = 1e-4, .94e-4 + .06·4e-4 = 1.18e-4, 1.1092e-4
    close = 100.0 * np.exp(np.cumsum([0.0, 0.01, -0.02, 0.0]))[:, None]
    bars = Bars(
        np.arange(4).astype("datetime64[D]").astype("datetime64[ns]"), ("a",), close, close, close, close, close
    )
    found = baselines.ewma_volatility(bars)[:, 0]
    assert np.isnan(found[0])
    assert found[1:] ** 2 == pytest.approx([1e-4, 1.18e-4, 1.1092e-4])


def test_the_volatility_target_meets_the_tail_it_was_fitted_to():
    market, config = market_of(panel(900)), EnvConfig()
    full = baselines.volatility_target(float("inf"), market, config, split="train").performance(0.05).cvar
    k = baselines.fit_volatility_target(0.6 * full, market, config, alpha=0.05)
    fitted = baselines.volatility_target(k, market, config, split="train")
    assert fitted.performance(0.05).cvar == pytest.approx(0.6 * full, rel=1e-3)
    sigma = baselines.ewma_volatility(market.bars)[market.split("train").start]
    assert fitted.targets[0] == pytest.approx(np.minimum(1.0, k / sigma) / 2)
    assert baselines.fit_volatility_target(2.0 * full, market, config, alpha=0.05) == float("inf")
    with pytest.raises(ArgumentError, match="negative tail"):
        baselines.fit_volatility_target(0.01, market, config, alpha=0.05)


def test_the_timing_null_shifts_the_targets_around_the_end():
    market, config = market_of(panel()), EnvConfig()
    n = market.split("test").n_decisions
    targets = np.random.default_rng(1).uniform(0.0, 0.5, size=(n, 2))
    agent = run_targets(targets, market, config, split="test", name="agent")
    found = baselines.timing_null(agent, market, config, rng=np.random.default_rng(0), n_offsets=1_000)
    # 70 decisions, shifts of 17 (70 // 4) to 53: 37 distinct ones, each once
    expected = [
        run_targets(np.roll(targets, k, axis=0), market, config, split="test", name="x").performance(0.05).sharpe
        for k in range(17, 54)
    ]
    assert np.sort(found.null) == pytest.approx(np.sort(expected))
    assert found.score == pytest.approx(agent.performance(0.05).sharpe)


def test_constant_targets_have_no_timing():
    market = market_of(panel())
    agent = run_targets(np.full((70, 2), 0.5), market, EnvConfig(), split="test", name="agent")
    assert baselines.timing_null(agent, market, EnvConfig(), rng=np.random.default_rng(0)).percentile == 50.0


def test_knowing_the_next_bar_is_seen_as_timing_and_shuffled_knowledge_is_not():
    market, config = market_of(panel(2000, n_assets=1)), EnvConfig(costs=FREE)
    window = market.split("test")
    opens, closes = market.bars.open[window.start + 1 : window.end], market.bars.close[window.start + 1 : window.end]
    knowing = (closes > opens).astype(float)
    rng = np.random.default_rng(0)
    agent = run_targets(knowing, market, config, split="test", name="agent")
    assert baselines.timing_null(agent, market, config, rng=rng).percentile > 99.0
    shuffled = run_targets(rng.permutation(knowing), market, config, split="test", name="agent")
    assert baselines.timing_null(shuffled, market, config, rng=rng).percentile < 95.0


def test_a_ruined_account_is_cash_for_the_rest_of_the_split():
    bars = panel(n_assets=1)
    window = market_of(bars).split("test")
    crash = window.start + 5
    columns = [
        np.where(np.arange(400)[:, None] >= crash, 0.001, 1.0) * getattr(bars, name)
        for name in ("open", "high", "low", "close")
    ]
    crashed = Bars(bars.time, bars.assets, *columns, bars.volume)
    market = market_of(crashed)
    result = run_targets(np.ones((window.n_decisions, 1)), market, EnvConfig(), split="test", name="long")
    assert result.equity[-1] == result.equity[6] == pytest.approx(10_000.0)  # the floor: 1 % of a million
    assert (result.units[6:] == 0.0).all()
    assert np.isfinite(result.performance(0.05).cagr)


def test_what_is_recorded_is_what_a_bare_simulation_gives():
    market, config = market_of(panel()), EnvConfig()
    targets = np.random.default_rng(2).uniform(0.0, 0.5, size=(70, 2))
    result = run_targets(targets, market, config, split="test", name="x")
    simulation = Simulation(market, config, n_envs=1, split="test")
    simulation.place_on_split("test", warm_up=False)
    for t, row in enumerate(targets):
        step = simulation.step(row[None])
        assert result.equity[t + 1] == step["equity"][0]
        assert result.costs["impact"][t] == step["impact"][0]
        assert result.costs["interest"][t] == step["interest_paid"][0]
        # everything is filled at the open of the next bar
        assert result.fills[t] == pytest.approx(market.bars.open[market.split("test").start + 1 + t], rel=1e-12)

"""The kernel against the independent ledger, bar by bar."""

import math

import numpy as np
import pytest

from leeward.audit.run.ledger import Ledger
from leeward.config.trading import AccountConfig, CostsConfig, EnvConfig
from leeward.env import Simulation
from leeward.errors import ConfigError

from ..support.trading_panels import random_bars, small_market

COMPARED = (
    "equity", "cash", "commission", "spread", "impact", "fees", "interest_paid", "interest_earned", "write_off",
    "step_return", "reward_costs_fraction", "turnover", "exposure", "pnl", "n_trades",
)  # fmt: skip
ALL_COSTS = CostsConfig(commission_bps=3.0, half_spread_bps=2.0, fixed_fee=7.0, impact_coef=0.8, cash_rate=0.02)

CASES = {
    "one asset, long only": {"n_assets": 1},
    "one asset, short and leveraged": {"n_assets": 1, "low": -2.0, "high": 2.0, "limit": 2.0},
    "portfolio with missing bars": {"n_assets": 4, "missing": 0.2, "low": -1.0},
    "leveraged portfolio into margin calls": {
        "n_assets": 3,
        "low": -1.5,
        "high": 1.5,
        "limit": 3.0,
        "volatility": 0.12,
        "missing": 0.1,
        "alone": 0.2,
    },
    "ruin in one night": {"n_assets": 2, "low": -2.0, "high": 2.0, "limit": 3.0, "volatility": 0.3},
    "no volume, band, targets left alone": {
        "n_assets": 5,
        "missing": 0.3,
        "volume": False,
        "band": 0.1,
        "alone": 0.3,
    },
}


SHARES = {"per_unit": 0.005, "min_commission": 1.0, "max_commission_bps": 100.0, "commission_bps": 0.0}
TIERS = {"commission_tiers": ((0.0, 10.0), (50_000.0, 5.0), (200_000.0, 2.0))}
PERPETUAL = {"maker_bps": -1.0, "maker_share": 0.4, "funding_rate": 0.11}
BROKERS = {
    "per share with a minimum": {"costs": SHARES},
    "tiers": {"costs": TIERS},
    "maker, taker and funding": {"costs": PERPETUAL, "low": -1.0},
    "lots and a smallest order": {"costs": {"lot_size": 7.0, "min_order": 30_000.0}, "low": -1.0},
    "each asset its own": {
        "costs": {
            "assets": {
                "asset0": SHARES,
                "asset1": TIERS | {"borrow_rate": 0.2},
                "asset2": PERPETUAL | {"lot_size": 0.5},
            }
        },
        "low": -1.0,
    },
    "limits of a desk": {
        "account": {"net_limit": 0.3, "turnover_limit": 0.4, "weight_limits": {"asset1": (-0.1, 0.2)}},
        "low": -1.0,
        "limit": 1.5,
    },
    "everything, with missing bars, margin calls and targets left alone": {
        "costs": SHARES | {"funding_rate": 0.05, "lot_size": 2.0, "min_order": 500.0, "assets": {"asset2": TIERS}},
        "account": {"net_limit": 1.0, "turnover_limit": 1.2, "weight_limits": {"asset0": (0.0, 0.7)}},
        "low": -1.5,
        "high": 1.5,
        "limit": 3.0,
        "volatility": 0.12,
        "missing": 0.15,
        "alone": 0.2,
    },
}


@pytest.mark.parametrize("name", BROKERS)
def test_every_bar_equals_the_ledger_with_the_costs_of_brokers(name):
    case = {"low": 0.0, "high": 1.0, "limit": 1.0, "alone": 0.0} | BROKERS[name]
    panel = {key: case[key] for key in ("missing", "volatility") if key in case}
    config = EnvConfig(
        account=AccountConfig(gross_limit=case["limit"], **case.get("account", {})),
        costs=CostsConfig(**ALL_COSTS.model_dump(exclude_unset=True) | case.get("costs", {})),
    )
    trades = 0.0
    for seed in range(3):
        rng = np.random.default_rng(seed)
        market = small_market(random_bars(rng, n=41, n_assets=3, **panel))
        simulation = Simulation(market, config, n_envs=2)
        simulation.place(2, 41)
        ledgers = [Ledger(market.bars, config, bar=2) for _ in range(2)]
        for _ in range(38):
            targets = rng.uniform(case["low"], case["high"], (2, 3))
            targets[rng.random(targets.shape) < case["alone"]] = np.nan
            step = simulation.step(targets)
            trades += float(step["n_trades"].sum())
            for env, ledger in enumerate(ledgers):
                compare(step, simulation, env, ledger.step(targets[env].tolist()))
    assert trades > 100.0


def test_settings_that_change_nothing_cost_nothing():
    # the long way through the kernel, with terms that say what the short way says, gives the same bits
    rng = np.random.default_rng(3)
    market = small_market(random_bars(rng, n=61, n_assets=3, missing=0.1))
    names = market.bars.assets
    long_way = EnvConfig(costs=CostsConfig(assets={names[0]: {"commission_bps": 1.0}}))
    runs = [Simulation(market, config, n_envs=2) for config in (EnvConfig(), long_way)]
    for simulation in runs:
        simulation.place(2, 61)
    for targets in rng.uniform(-1.0, 1.0, (58, 2, 3)):
        short, long = (simulation.step(targets) for simulation in runs)
        np.testing.assert_allclose(short.info, long.info, rtol=1e-12, atol=1e-9)


def test_an_asset_that_is_not_there_is_named():
    market = small_market(random_bars(np.random.default_rng(0), n=41, n_assets=2))
    with pytest.raises(ConfigError, match=r"env\.costs\.assets: no asset 'B7' in these bars"):
        Simulation(market, EnvConfig(costs=CostsConfig(assets={"B7": {"per_unit": 1.0}})))
    with pytest.raises(ConfigError, match=r"env\.account\.weight_limits: no asset 'B7'"):
        Simulation(market, EnvConfig(account=AccountConfig(weight_limits={"B7": (0.0, 1.0)})))


@pytest.mark.parametrize("name", CASES)
def test_every_bar_equals_the_ledger(name):
    case = {"low": 0.0, "high": 1.0, "limit": 1.0, "band": 0.0, "alone": 0.0} | CASES[name]
    panel = {key: case[key] for key in ("n_assets", "missing", "volatility", "volume") if key in case}
    closed_at, write_offs = [], 0
    for seed in range(8):
        rng = np.random.default_rng(seed)
        market = small_market(random_bars(rng, n=61, **panel))
        account = AccountConfig(gross_limit=case["limit"], rebalance_band=case["band"])
        config = EnvConfig(account=account, costs=ALL_COSTS)
        n_envs = 3
        simulation = Simulation(market, config, n_envs=n_envs)
        simulation.place(2, 61)
        ledgers = [Ledger(market.bars, config, bar=2) for _ in range(n_envs)]
        for _ in range(58):
            targets = rng.uniform(case["low"], case["high"], (n_envs, market.bars.close.shape[1]))
            targets[rng.random(targets.shape) < case["alone"]] = np.nan
            step = simulation.step(targets)
            for env, ledger in enumerate(ledgers):
                truth = ledger.step(targets[env].tolist())
                compare(step, simulation, env, truth)
                closed_at.append(truth["closed_at"])
                write_offs += truth["write_off"] > 0.0
    if "margin" in name:
        assert closed_at.count("open") >= 3 and closed_at.count("close") >= 3
    if "ruin" in name:
        assert write_offs >= 3


def compare(step, simulation, env, truth):
    scale = truth["before"]
    for name in COMPARED:
        size = scale if name in ("cash", "pnl") else max(abs(truth[name]), 1e-6)
        assert step[name][env] == pytest.approx(truth[name], rel=1e-9, abs=1e-9 * size), name
    assert simulation.units[env] == pytest.approx(list(truth["units"].values()), rel=1e-9, abs=1e-9)
    assert bool(step.ends[0, env]) == truth["terminated"]
    costs = sum(step[name][env] for name in ("commission", "fees", "spread", "impact", "interest_paid"))
    gained = step["pnl"][env] - costs + step["interest_earned"][env] + step["write_off"][env]
    assert step["equity"][env] - scale == pytest.approx(gained, abs=1e-9 * scale)


def test_stepping_twice_from_the_same_state_gives_the_same_bits():
    rng = np.random.default_rng(5)
    market = small_market(random_bars(rng, n=83, n_assets=3, missing=0.1))
    actions = rng.uniform(-1.0, 1.0, (40, 7, 3))
    runs = []
    for _ in range(2):
        simulation = Simulation(market, n_envs=7, seed=3, stagger=True)
        first = simulation.restart()
        steps = [simulation.step(targets) for targets in actions]
        runs.append((first, [(s.observations, s.rewards, s.info) for s in steps]))
    np.testing.assert_array_equal(runs[0][0], runs[1][0])
    for one, other in zip(runs[0][1], runs[1][1], strict=True):
        for x, y in zip(one, other, strict=True):
            np.testing.assert_array_equal(x, y)


def test_environments_do_not_see_each_other():
    # 5 envs stepped together equal the same 5 stepped one at a time.
    rng = np.random.default_rng(6)
    market = small_market(random_bars(rng, n=70, n_assets=2))
    actions = rng.uniform(0.0, 1.0, (50, 5, 2))
    together = Simulation(market, n_envs=5, seed=11)
    together.restart()
    alone = [Simulation(market, n_envs=1, seed=11, first_env=i) for i in range(5)]
    for simulation in alone:
        simulation.restart()
    for targets in actions:
        step = together.step(targets)
        for i, simulation in enumerate(alone):
            single = simulation.step(targets[i : i + 1])
            np.testing.assert_array_equal(step.observations[i], single.observations[0])
            np.testing.assert_array_equal(step.info[:, i], single.info[:, 0])
    assert math.isfinite(float(step["equity"].sum()))

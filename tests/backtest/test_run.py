"""A whole backtest in one call, and the verdicts that follow from it."""

import numpy as np
import pytest

from leeward.backtest.files import read_backtest
from leeward.backtest.judgement import judge, judged_split, share_of_best
from leeward.backtest.run import assumptions_of, notes_of, run_backtest
from leeward.config.trading import CostsConfig, DataConfig, EnvConfig
from leeward.env import best_clipped_linear
from leeward.errors import ArgumentError
from leeward.market import prepare


class Signal:
    """Long when the planted signal is up."""

    def __init__(self, market, sign: float = 1.0) -> None:
        self.column, self.sign = market.feature_names.index("feature_signal"), sign

    def predict(self, observation, state=None, episode_start=None, deterministic=True):
        return np.clip(0.5 + self.sign * observation[:, [self.column]], 0.0, 1.0), state


@pytest.fixture(scope="module")
def control():
    return prepare(DataConfig(source="sample:control", n_bars=6000, features=("return_1",)))


def run(market, policy, split="test", **changes):
    options = {"limit": -0.02, "n_offsets": 200, "n_draws": 200}
    return run_backtest(policy, market, EnvConfig(), split=split, rng=np.random.default_rng(0), **(options | changes))


@pytest.fixture(scope="module")
def good(control):
    return run(control, Signal(control))


def test_a_backtest_has_every_baseline_and_its_files_come_back(good, control, tmp_path):
    found = good
    assert list(found.metrics.strategies) == ["agent", "buy_and_hold", "volatility_target", "cash"]
    assert found.metrics.fingerprints["data"] == control.fingerprint
    found.write(tmp_path)
    assert read_backtest(tmp_path).metrics.model_dump_json() == found.metrics.model_dump_json()


def test_the_same_seed_gives_the_same_metrics(good, control):
    assert run(control, Signal(control)).metrics.model_dump_json() == good.metrics.model_dump_json()


def test_a_planted_edge_is_seen_as_timing_and_its_opposite_as_worse_than_cash(good, control):
    assert good.metrics.timing.percentile > 95.0
    bad = run(control, Signal(control, sign=-1.0))
    assert bad.metrics.timing.percentile < 5.0
    verdicts = {v.subject: v for v in judge({"test": bad.metrics})}
    assert verdicts["edge"].headline == "No edge, worse than cash"


def test_the_control_verdict_is_growth_over_that_of_the_best_policy(good, control):
    best = best_clipped_linear(control, EnvConfig())
    window = control.split("test")
    targets = best.targets(control.bars.extra["feature_signal"][window.start : window.end - 1])
    found = run(control, Signal(control), limit=None, best=targets).metrics
    growth = [np.log1p(found.strategies[name].performance["total_return"]) for name in ("agent", "best_policy")]
    assert share_of_best(found) == pytest.approx(growth[0] / growth[1])
    (first, *_) = judge({"test": found}, {"test": found})
    assert first.subject == "control"
    with pytest.raises(ArgumentError, match="best_policy"):
        share_of_best(good.metrics)


def test_verdicts_are_of_the_most_honest_split(control):
    splits = {name: run(control, Signal(control), split=name, n_draws=20).metrics for name in ("train", "validation")}
    assert judged_split(splits) == "validation"
    edge = judge(splits)[-1]
    assert edge.headline == "Not judged, in sample" and "chosen on these bars" in edge.sentence
    edge = judge(splits | {"validation": splits["validation"].model_copy(update={"in_sample": ""})})[-1]
    assert "on validation" in edge.sentence
    assert "Sharpe on train" in edge.sentence
    with pytest.raises(ArgumentError, match="at least one split"):
        judged_split({})


class Replaying:
    """Plays back targets; what it knows was put into them."""

    def __init__(self, targets: np.ndarray, warm_up_bars: int) -> None:
        self.targets, self.warm_up_bars = targets, warm_up_bars

    def predict(self, observation, state=None, episode_start=None, deterministic=True):
        step = 0 if episode_start[0] else state + 1
        return self.targets[None, max(0, step - self.warm_up_bars)], step


def test_the_right_sentence_for_a_planted_edge_for_shuffled_positions_and_for_a_broken_limit():
    market = prepare(DataConfig(source="sample:synthetic", n_bars=3000, features=("return_1",)))
    window = market.split("test")
    rows = slice(window.start + 1, window.end)
    # Long when it believes the next bar rises, and right seven times in ten: far more than 580 bars need to show it
    rng = np.random.default_rng(0)
    right = rng.random((window.n_decisions, 1)) < 0.7
    up = market.bars.close[rows] > market.bars.open[rows]
    knowing = np.where(up == right, 1.0, 0.0)

    def sentences(targets, limit):
        policy = Replaying(targets, window.start - window.warmup)
        metrics = run(market, policy, limit=limit).metrics
        return {v.subject: v.headline for v in judge({"test": metrics})}

    assert sentences(knowing, -0.2) == {"risk": "Limit kept", "edge": "Evidence of an edge"}
    assert sentences(rng.permutation(knowing), -0.2)["edge"].startswith("No e")
    assert sentences(np.ones_like(knowing), -0.01)["risk"] == "Limit broken"


def test_assumptions_name_every_cost_that_is_charged():
    assert assumptions_of(EnvConfig()) == (
        "fills at the next open, 1 bp commission, 1 bp half-spread, square-root impact × 0.5, 5 % a year on debit"
    )
    free = CostsConfig(commission_bps=0.0, half_spread_bps=0.0, impact_coef=0.0, debit_rate=0.0)
    assert assumptions_of(EnvConfig(costs=free)) == "fills at the next open, no trading costs"
    assert assumptions_of(EnvConfig(min_weight=-1.0)).endswith("5 % a year on debit, 3 % a year on shorts")


def test_notes_say_what_the_data_is_not(control):
    assert "feature_signal" in notes_of(control)[0]
    assert "without dividends" in notes_of(prepare())[0]


def test_the_costs_of_brokers_are_among_the_assumptions():
    costs = {"commission_tiers": ((0.0, 10.0), (5e4, 5.0)), "per_unit": 0.005, "min_commission": 1.0}
    more = {"maker_share": 0.4, "maker_bps": -1.0, "funding_rate": 0.1, "assets": {"BTC": {"lot_size": 1.0}}}
    said = assumptions_of(EnvConfig(costs=CostsConfig(**costs, **more)))
    for part in (
        "commission of 10 bp from 0, 5 bp from 50000",
        "0.005 per unit, at least 1 an order",
        "40 % filled as maker at -1 bp",
        "other costs for BTC",
        "10 % a year of funding",
    ):
        assert part in said, said
    assert "1 bp commission" not in said


def test_a_backtest_tells_what_it_is_busy_with_and_how_far_the_bootstrap_is(control):
    told = []
    run(control, Signal(control), n_draws=2000, n_offsets=3, progress=told.append)
    decisions = control.split("test").n_decisions
    chunk = 2_000_000 // decisions  # draws at once
    assert chunk < 2000
    assert told == [
        f"the agent over {decisions} decisions",
        "the baselines",
        "its own timing, shifted 3 times",
        *(f"the bootstrap, {done} of 2000 draws" for done in range(0, 2000, chunk)),
    ]

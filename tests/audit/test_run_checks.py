"""Each check of a run passes on a healthy one, and finds a fault that is put into its files, data or process."""

import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from typing import Any
from unittest import mock

import numpy as np
import pytest
import torch

from leeward.audit.checks import Parts, run_checks
from leeward.audit.findings import Audit
from leeward.audit.run.ledger import Ledger
from leeward.audit.run.subject import open_run, parts_of
from leeward.audit.run.whole import CHECKS
from leeward.backtest.strategies import AGENT, BUY_AND_HOLD
from leeward.env import costs
from leeward.market import Scaler, features, prepare
from leeward.market.features import compute_feature
from leeward.training.checkpoints import load_model

BY_NAME = {check.name: check for check in CHECKS}


@pytest.fixture(scope="module")
def parts(finished) -> Parts:
    """The parts of the healthy run; the first test that needs one makes it."""
    return parts_of(open_run(finished))


def look(parts: Parts, *names: str, **instead: Any) -> Audit:
    """Some checks, with parts in place of the run's own."""
    own = {name: (lambda _, name=name: parts.get(name)) for check in CHECKS for name in check.needs}
    given = Parts(own | {name: (lambda _, value=value: value) for name, value in instead.items()})
    return run_checks([BY_NAME[name] for name in names], given)


def found(audit: Audit) -> tuple[str, str, str]:
    """Severity, title and detail of the one finding."""
    assert len(audit.findings) == 1, audit
    finding = audit.findings[0]
    assert finding.remedy
    return finding.severity, finding.title, finding.detail


# --- files and story --------------------------------------------------------------------------------------------------


def test_a_damaged_file_is_found(parts, run_copy) -> None:
    assert look(parts, "files").passed == ("files",)
    file = run_copy / "best" / "model.zip"
    file.write_bytes(file.read_bytes()[:-100])
    severity, title, detail = found(run_checks([BY_NAME["files"]], parts_of(open_run(run_copy))))
    assert (severity, title) == ("critical", "best is damaged") and "model.zip" in detail


ALERT = {
    "name": "critic_vanishing",
    "severity": "warn",
    "update": 7,
    "metric": "train/critic2_grad_norm",
    "value": 1e-12,
    "threshold": 1e-8,
    "message": "critic 2 gets no gradient",
    "cause": "it was detached",
    "remedy": "look at the heads",
}


def test_every_alert_is_told_once_with_its_story(parts, run_copy) -> None:
    lines = [ALERT, ALERT | {"update": 9, "severity": "error"}, ALERT | {"name": "plateau", "severity": "info"}]
    (run_copy / "alerts.jsonl").write_text("".join(f"{json.dumps(line)}\n" for line in lines))
    first, second = run_checks([BY_NAME["alerts"]], parts_of(open_run(run_copy))).findings
    assert (first.severity, first.title) == ("high", "Alert critic_vanishing: critic 2 gets no gradient")
    assert first.detail == (
        "It fired 2 times, from update 7 to 9. train/critic2_grad_norm was 1e-12, its threshold is 1e-08. "
        "Likely cause: it was detached."
    )
    assert first.remedy == "look at the heads" and (second.severity, second.check) == ("low", "alerts")
    assert "at update 7." in second.detail
    (run_copy / "alerts.jsonl").write_text("")
    assert run_checks([BY_NAME["alerts"]], parts_of(open_run(run_copy))).passed == ("alerts",)
    (run_copy / "alerts.jsonl").write_text('{"name": "cut off')
    assert run_checks([BY_NAME["alerts"]], parts_of(open_run(run_copy))).passed == ("alerts",)
    (run_copy / "alerts.jsonl").write_text('{"name": "cut off\n')
    (line,) = run_checks([BY_NAME["alerts"]], parts_of(open_run(run_copy))).not_run
    assert "alerts.jsonl line 1: not JSON" in line.why


def test_versions_and_openings_are_told(parts) -> None:
    assert look(parts, "seal", "versions").passed == ("seal", "versions")
    severity, title, detail = found(look(parts, "seal", record={"openings": [{"earlier": 0}, {"earlier": 3}]}))
    assert (severity, title) == ("medium", "The test bars were opened more than once") and "4 times" in detail
    run = parts.get("run")
    with mock.patch.object(type(run), "changed_versions", lambda self: ["torch 1 then, 2 now"]):
        assert found(look(parts, "versions"))[2].startswith("torch 1 then, 2 now")


def test_options_that_did_nothing_are_named(parts) -> None:
    config, rows = parts.get("config"), parts.get("progress")
    assert look(parts, "options").passed == ("options",)
    idle = config.model_copy(
        update={
            "ppo": config.ppo.model_copy(update={"target_kl": 99.0}),
            "policy": config.policy.model_copy(update={"use_expln": True}),
            "env": config.env.model_copy(update={"sharpe_memory_bars": 7.0}),
        }
    )
    still = [row | {"risk/multiplier": 0.0, "train/kl_stop_epoch": 2.0, "train/clip_fraction": 0.0} for row in rows]
    titles = {finding.title for finding in look(parts, "options", config=idle, progress=still).findings}
    assert titles == {
        "ppo.target_kl was on and did nothing",
        "risk.limit was on and did nothing",
        "ppo.clip_range was on and did nothing",
        "policy.use_expln is set and nobody reads it",
        "env.sharpe_memory_bars is set and nobody reads it",
    }
    acted = [*still, still[0] | {"train/kl_stop_epoch": 1.0}]
    titles = {finding.title for finding in look(parts, "options", config=idle, progress=acted).findings}
    assert "ppo.target_kl was on and did nothing" not in titles


# --- data -------------------------------------------------------------------------------------------------------------


def test_a_feature_that_knows_the_future_is_found(parts) -> None:
    assert look(parts, "features").passed == ("features",)
    leaky = replace(features.FEATURES["return_1"], compute=lambda series: np.append(np.diff(np.log(series.close)), 0.0))
    with mock.patch.dict(features.FEATURES, return_1=leaky):
        severity, title, _ = found(look(parts, "features", market=prepare(parts.get("config").data)))
    assert (severity, title) == ("critical", "The feature return_1 knows the future")


def test_a_scale_that_was_fitted_on_everything_is_found(parts) -> None:
    assert look(parts, "scaler").passed == ("scaler",)
    market, data = parts.get("market"), parts.get("config").data
    raw = [compute_feature(market.bars, name) for name in market.feature_names]
    whole = Scaler(
        market.feature_names,
        np.array([np.nanmean(each) for each in raw]),
        np.array([np.nanstd(each) or 1.0 for each in raw]),
        data.feature_clip,
    )
    severity, title, _ = found(look(parts, "scaler", market=prepare(data, scaler=whole)))
    assert (severity, title) == ("critical", "The scales of the features know more than the train split")


def test_a_column_of_tomorrow_is_found(parts) -> None:
    assert look(parts, "own_columns").passed == ("own_columns",)
    market = parts.get("market")
    tomorrow = np.append(np.diff(np.log(market.bars.close[:, 0])), 0.0)[:, None]
    bars = replace(market.bars, extra={"feature_oracle": tomorrow})
    severity, _, detail = found(look(parts, "own_columns", market=replace(market, bars=bars)))
    assert severity == "high" and "feature_oracle knows the future" in detail


def test_costs_that_know_the_future_are_found(parts) -> None:
    assert look(parts, "account").passed == ("account",)
    impact = costs.impact_per_root_unit
    with mock.patch.object(costs, "impact_per_root_unit", lambda bars: np.roll(impact(bars), -5, axis=0)):
        severity, title, detail = found(look(parts, "account"))
    assert (severity, title) == ("critical", "The account knows the future") and "what it earned or paid" in detail


def test_the_test_split_is_not_looked_at(parts) -> None:
    # A market whose sealed bars are nonsense gives the same answers.
    market = parts.get("market")
    start = market.split("test").warmup
    spoiled = {}
    for name in ("open", "high", "low", "close"):
        column = getattr(market.bars, name).copy()
        column[start:] = 1e9
        spoiled[name] = column
    other = replace(market, bars=replace(market.bars, **spoiled))
    assert look(parts, "features", "account", market=other).passed == ("features", "account")


# --- backtests --------------------------------------------------------------------------------------------------------


def edited(stored: Any, column: str, change: Callable[[np.ndarray], np.ndarray]) -> Any:
    frame = stored.equity.copy()
    frame[column] = change(frame[column].to_numpy().copy())
    return replace(stored, equity=frame)


def flipped(values: np.ndarray) -> np.ndarray:
    return np.where(np.arange(len(values)) > 3, -values, values)


@pytest.mark.parametrize(
    ("column", "change", "words"),
    [
        (AGENT, lambda equity: equity * np.linspace(1.0, 1.01, len(equity)), "the backtest has equity"),
        ("cost_commission", flipped, "the backtest has commission"),
    ],
    ids=["money from nowhere", "sign of a cost flipped"],
)
def test_an_account_that_does_not_add_up_is_found(parts, column, change, words) -> None:
    assert look(parts, "books").passed == ("books",)
    backtests = parts.get("backtests")
    wrong = backtests | {"validation": edited(backtests["validation"], column, change)}
    severity, title, detail = found(look(parts, "books", backtests=wrong))
    assert (severity, title) == ("critical", "The account of the backtest on validation does not add up")
    assert words in detail


def test_the_kernel_of_a_faulty_process_is_found(parts) -> None:
    # Whoever breaks the ledger's rule and not the kernel's is found as well: one of the two is wrong.
    with mock.patch.object(Ledger, "commission", lambda *args: 0.0):
        audit = look(parts, "books")
    assert [finding.severity for finding in audit.findings] == ["critical", "critical"]


def test_a_backtest_of_another_agent_is_found(parts, run_copy) -> None:
    assert look(parts, "backtest").passed == ("backtest",)
    backtests = parts.get("backtests")
    positions = backtests["train"].positions.copy()
    positions["target"] = positions["target"] * 0.99
    wrong = backtests | {"train": replace(backtests["train"], positions=positions)}
    severity, title, _ = found(look(parts, "backtest", backtests=wrong))
    assert (severity, title) == ("high", "The backtest on train is not of this agent")


def judged(parts: Parts, **changes: Any) -> tuple[str, Any]:
    split, stored = parts.get("judged")
    return split, replace(stored, **changes)


def test_a_tail_that_was_not_foretold_is_found(parts) -> None:
    _, stored = parts.get("judged")
    outcomes = stored.equity["step_return"].to_numpy()[1:]
    rng = np.random.default_rng(0)
    for level, severity, title in (
        (0.1, None, None),
        (0.4, "high", "The tail is worse than foretold"),
        (0.0, "medium", "The tail is milder than foretold"),
    ):
        # A VaR that a share `level` of the bars falls below.
        low = np.zeros(len(outcomes), dtype=bool)
        low[rng.permutation(len(outcomes))[: round(level * len(outcomes))]] = True
        var = np.where(low, outcomes + 1e-6, outcomes - 1e-6)
        calibration = stored.metrics.calibration.model_copy(update={"breaches": int(low.sum())})
        metrics = stored.metrics.model_copy(update={"calibration": calibration})
        changed = judged(parts, outlook_step=replace(stored.outlook_step, var=var), metrics=metrics)
        audit = look(parts, "var", judged=changed)
        assert (audit.passed == ("var",)) if severity is None else (found(audit)[:2] == (severity, title))
    other = stored.metrics.calibration.model_copy(update={"breaches": 10_000})
    metrics = stored.metrics.model_copy(update={"calibration": other})
    audit = look(parts, "var", judged=judged(parts, metrics=metrics))
    assert "metrics.json is not of these series" in audit.findings[0].title
    assert look(parts, "var", judged=judged(parts, outlook_step=None)).not_run[0].why.endswith("one bar ahead")


@pytest.mark.parametrize(
    ("factor", "severity", "title"),
    [
        (1.2, None, None),
        (0.2, "high", "The limit is broken"),
        (0.98, "low", "The tail lies beyond its limit, within what chance can do"),
        (9.0, "low", "Half of the risk budget is unused"),
    ],
)
def test_the_tail_is_held_against_its_limit(parts, factor, severity, title) -> None:
    _, stored = parts.get("judged")
    tail = stored.metrics.strategies[AGENT].performance["cvar"]
    metrics = stored.metrics.model_copy(update={"limit": factor * tail})
    audit = look(parts, "limit", judged=judged(parts, metrics=metrics))
    assert (audit.passed == ("limit",)) if severity is None else (found(audit)[:2] == (severity, title))
    none = judged(parts, metrics=stored.metrics.model_copy(update={"limit": None}))
    assert look(parts, "limit", judged=none).not_run[0].why == "no limit is set (risk.limit)"


def test_a_multiplier_at_its_ceiling_is_found(parts) -> None:
    model = parts.get("twins").model()
    constraint = model.engine.risk_control.constraints[0]
    constraint.multiplier = constraint.config.ceiling
    titles = [finding.title for finding in look(parts, "limit", model=model).findings]
    assert "The multiplier is at its ceiling" in titles
    assert "The multiplier is at its ceiling" not in [finding.title for finding in look(parts, "limit").findings]


def test_what_was_learned_by_heart_is_found(parts) -> None:
    assert look(parts, "out_of_sample").passed == ("out_of_sample",)
    shown = parts.get("shown")
    train = shown["train"]
    n = len(train.step_returns)
    steps = 0.005 + 0.01 * np.random.default_rng(1).normal(size=n)  # a Sharpe ratio near 8
    equity = train.equity[0] * np.exp(np.concatenate([[0.0], np.cumsum(steps)]))
    heart = shown | {"train": replace(train, step_returns=steps, equity=equity)}
    severity, title, detail = found(look(parts, "out_of_sample", shown=heart))
    assert severity in ("high", "medium") and title == "What was learned on train does not carry over"
    assert "by heart" in detail


def with_activity(parts: Parts, **changes: float) -> tuple[str, Any]:
    split, stored = parts.get("judged")
    agent = stored.metrics.strategies[AGENT]
    agent = agent.model_copy(update={"activity": agent.activity | changes})
    strategies = stored.metrics.strategies | {AGENT: agent}
    return split, replace(stored, metrics=stored.metrics.model_copy(update={"strategies": strategies}))


def test_costs_are_held_against_the_profit(parts) -> None:
    ask = {"costs_total": 1000.0, "turnover_per_year": 50.0}
    assert look(parts, "costs", judged=with_activity(parts, **ask, costs_of_gross_profit=0.2)).passed == ("costs",)
    for part, severity in ((0.6, "medium"), (1.4, "high")):
        audit = look(parts, "costs", judged=with_activity(parts, **ask, costs_of_gross_profit=part))
        assert found(audit)[:2] == (severity, "Costs eat the profit")
    audit = look(parts, "costs", judged=with_activity(parts, **ask, costs_of_gross_profit=float("nan")))
    assert found(audit)[1] == "There is no profit before costs"
    config = parts.get("config")
    nothing = config.env.costs.model_copy(update={"commission_bps": 0.0, "half_spread_bps": 0.0})
    free = config.model_copy(update={"env": config.env.model_copy(update={"costs": nothing})})
    judged = with_activity(parts, costs_total=0.0, costs_of_gross_profit=0.0)
    assert found(look(parts, "costs", judged=judged, config=free))[:2] == (
        "high",
        "The backtest charges nothing for trading",
    )


def test_buy_and_hold_in_disguise_is_found(parts) -> None:
    split, stored = parts.get("judged")
    rng, n = np.random.default_rng(0), len(stored.equity)
    own = stored.equity.assign(exposure=rng.uniform(0.0, 1.0, n))
    assert look(parts, "holding", judged=(split, replace(stored, equity=own))).passed == ("holding",)
    half = stored.equity[BUY_AND_HOLD] ** 0.5
    held = stored.equity.assign(**{AGENT: half, "exposure": 0.5})
    severity, title, _ = found(look(parts, "holding", judged=(split, replace(stored, equity=held))))
    assert (severity, title) == ("medium", "The agent is buy and hold in disguise")
    idle = stored.equity.assign(exposure=0.0)
    assert found(look(parts, "holding", judged=(split, replace(stored, equity=idle))))[1] == "The agent stays in cash"


def test_a_memory_that_is_not_warm_is_found(parts) -> None:
    assert look(parts, "warm_up").passed == ("warm_up",)
    agent = load_model(parts.get("run").best)
    policy, core = agent.policy, agent.policy.actor_memory.core
    with torch.no_grad():  # cells that forget nothing and count the bars, and a head that listens
        hidden = policy.actor_memory.hidden
        core.weight_ih_l0.zero_()
        core.weight_hh_l0.zero_()
        core.bias_ih_l0.zero_()
        core.bias_hh_l0.zero_()
        core.bias_ih_l0[hidden : 2 * hidden] = 20.0  # the forget gate
        core.bias_ih_l0[2 * hidden : 3 * hidden] = 0.02
        policy.actor_mlp[0].weight.copy_(torch.eye(hidden))
        policy.actor_mlp[0].bias.zero_()
        # Each cell has 0.5 tanh(0.02) per bar: 0.28 after 63 bars, 0.5 after 319. The head decides at 0.38.
        policy.action_head.net.weight.fill_(8.0)
        policy.action_head.net.bias.fill_(-8.0 * hidden * 0.365)
    severity, title, detail = found(look(parts, "warm_up", agent=agent))
    assert (severity, title) == ("medium", "The memory is not warm when the split begins")
    assert "bars of warm-up that a backtest gives" in detail


def test_a_checkpoint_that_is_older_than_the_backtest_is_found(run_copy) -> None:
    first = sorted((run_copy / "checkpoints").iterdir())[0]
    best = run_copy / "best"
    weights = first if (best / "model.zip").read_bytes() != (first / "model.zip").read_bytes() else None
    assert weights is not None
    shutil.rmtree(best)
    shutil.copytree(weights, best)
    audit = run_checks([BY_NAME["backtest"]], parts_of(open_run(run_copy)))
    assert {finding.check for finding in audit.findings} == {"backtest"}

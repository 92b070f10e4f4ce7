"""The three verdicts of a run, from the metrics of its splits: the same sentences for the terminal and the report."""

from collections.abc import Mapping

import numpy as np

from leeward.backtest.metrics import Metrics, StrategyMetrics
from leeward.backtest.strategies import AGENT, BEST_POLICY, BUY_AND_HOLD, CASH, strategy_of
from leeward.backtest.verdict import Edge, Tail, Verdict, control_verdict, edge_verdict, risk_verdict
from leeward.backtest.wording import percent
from leeward.errors import ArgumentError

__all__ = ["headline", "judge", "judged_split", "share_of_best"]

_ORDER = ("test", "validation", "train")  # the most honest one first


def judged_split(splits: Mapping[str, Metrics]) -> str:
    """The split a verdict is about: test once it was opened, else validation, else train, else the only one."""
    if not splits:
        raise ArgumentError("a verdict needs the metrics of at least one split, got none; run `leeward backtest`")
    return next((name for name in _ORDER if name in splits), next(iter(splits)))


def share_of_best(control: Metrics) -> float:
    """Growth (log of the equity ratio) of the agent over that of the best policy, on the same bars and costs."""
    if BEST_POLICY not in control.strategies:
        raise ArgumentError(
            f"the control market needs the strategy {BEST_POLICY!r}, got {', '.join(control.strategies)}"
        )
    growth = {name: np.log1p(control.strategies[name].performance["total_return"]) for name in (AGENT, BEST_POLICY)}
    return float(growth[AGENT] / growth[BEST_POLICY])


def judge(splits: Mapping[str, Metrics], controls: Mapping[str, Metrics] | None = None) -> tuple[Verdict, ...]:
    """Control (with a control run), risk, and edge (with buy and hold and the timing null beside the agent)."""
    judged = judged_split(splits)
    metrics = splits[judged]
    verdicts: list[Verdict] = []
    if controls:
        verdicts.append(control_verdict([share_of_best(controls[judged_split(controls)])]))
    verdicts.append(_risk(splits, judged))
    if BUY_AND_HOLD in metrics.strategies and metrics.timing is not None:
        verdicts.append(_edge(splits, judged))
    return tuple(verdicts)


def headline(metrics: Metrics) -> str:
    """The result in one line, for somebody who has no time for statistics."""
    agent, hold = metrics.strategies[AGENT], metrics.strategies.get(BUY_AND_HOLD)
    # A week's result times fifty-two is nothing that anybody earned.
    whole_years = metrics.bars >= metrics.bars_per_year
    growth, when = (
        ("cagr", "a year") if whole_years else ("total_return", f"from {metrics.start[:10]} to {metrics.end[:10]}")
    )
    held = "" if hold is None else f", holding {_earned(hold, growth)}"
    cost = -agent.performance["cvar"]
    digits = _digits(cost)
    limit = "" if metrics.limit is None else f", limit {percent(-metrics.limit, digits)}"
    bars = "days" if 200.0 < metrics.bars_per_year < 400.0 else "bars"
    earned = _earned(agent, growth).capitalize()
    return f"{earned} {when}{held}; the worst {bars} cost {percent(cost, digits)} on average{limit}."


def _digits(cost: float) -> int:
    """Two that say something: bars of a minute cost hundredths of a percent."""
    return next((digits for digits in (1, 2, 3) if 100.0 * cost >= 10.0 ** (1 - digits)), 4) if cost > 0.0 else 1


def _earned(strategy: StrategyMetrics, growth: str) -> str:
    value = strategy.performance[growth]
    return f"{'earned' if value >= 0.0 else 'lost'} {percent(abs(value), 1)}"


def _risk(splits: Mapping[str, Metrics], judged: str) -> Verdict:
    metrics = splits[judged]
    tails = [
        Tail(name, split.strategies[AGENT].performance["cvar"], split.strategies[AGENT].intervals["cvar"].interval())
        for name, split in splits.items()
    ]
    beside = {
        strategy_of(name).label: strategy.performance["cvar"]
        for name, strategy in metrics.strategies.items()
        if name != AGENT and strategy_of(name).moves
    }
    return risk_verdict(tails, judged=judged, alpha=metrics.alpha, limit=metrics.limit, baselines=beside)


def _learned_from(metrics: Metrics) -> str:
    """What was compared with the bars of the run, or else what the name of the split says."""
    if metrics.in_sample is not None:
        return metrics.in_sample
    known = {"train": "These are the bars the agent is trained on", "validation": "The agent is chosen on these bars"}
    return known.get(metrics.split, "")


def _edge(splits: Mapping[str, Metrics], judged: str) -> Verdict:
    metrics = splits[judged]
    assert metrics.timing is not None
    train = splits.get("train") if judged != "train" else None
    agent = metrics.strategies[AGENT]
    cash = metrics.differences.get(CASH)
    return edge_verdict(
        Edge(
            sharpe_in=None if train is None else train.strategies[AGENT].performance["sharpe"],
            sharpe_out=agent.performance["sharpe"],
            sharpe_hold=metrics.strategies[BUY_AND_HOLD].performance["sharpe"],
            difference=metrics.differences[BUY_AND_HOLD]["sharpe"].interval(),
            timing_percentile=metrics.timing.percentile,
            seeds=metrics.seeds,
            assumptions=metrics.assumptions,
            in_sample=_learned_from(metrics),
            openings=metrics.openings,
            against_cash=None if cash is None else cash["cagr"].interval(),
            idle=agent.activity["exposure"] == 0.0,
        ),
        judged=judged,
    )

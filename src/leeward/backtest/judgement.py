"""The three verdicts of a run, from the metrics of its splits: the same sentences for the terminal and the report."""

from collections.abc import Mapping

import numpy as np

from leeward.backtest.metrics import AGENT, Metrics
from leeward.backtest.verdict import Edge, Tail, Verdict, control_verdict, edge_verdict, risk_verdict
from leeward.errors import ArgumentError

__all__ = ["BUY_AND_HOLD", "BEST_POLICY", "judged_split", "share_of_best", "judge"]

BUY_AND_HOLD, BEST_POLICY = "buy_and_hold", "best_policy"
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


def _risk(splits: Mapping[str, Metrics], judged: str) -> Verdict:
    metrics = splits[judged]
    tails = [
        Tail(name, split.strategies[AGENT].performance["cvar"], split.strategies[AGENT].intervals["cvar"].interval())
        for name, split in splits.items()
    ]
    beside = {
        name.replace("_", " "): strategy.performance["cvar"]
        for name, strategy in metrics.strategies.items()
        if name not in (AGENT, "cash")
    }
    return risk_verdict(tails, judged=judged, alpha=metrics.alpha, limit=metrics.limit, baselines=beside)


def _edge(splits: Mapping[str, Metrics], judged: str) -> Verdict:
    metrics = splits[judged]
    assert metrics.timing is not None
    train = splits.get("train") if judged != "train" else None
    return edge_verdict(
        Edge(
            sharpe_in=None if train is None else train.strategies[AGENT].performance["sharpe"],
            sharpe_out=metrics.strategies[AGENT].performance["sharpe"],
            sharpe_hold=metrics.strategies[BUY_AND_HOLD].performance["sharpe"],
            difference=metrics.differences[BUY_AND_HOLD]["sharpe"].interval(),
            timing_percentile=metrics.timing.percentile,
            seeds=metrics.seeds,
            assumptions=metrics.assumptions,
        ),
        judged=judged,
    )

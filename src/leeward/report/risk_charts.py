"""Charts of what luck could have done: tails and Sharpe ratios per split with their intervals, and the timing null."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from leeward.backtest.files import StoredBacktest
from leeward.backtest.metrics import Metrics
from leeward.backtest.strategies import AGENT, strategy_of
from leeward.backtest.wording import percent, share
from leeward.report.figure import Figure, Trace, color, in_sight, level, numbers

__all__ = ["tails_chart", "sharpes_chart", "differences_chart", "timing_chart"]

_HEADROOM = 1.2  # of the highest bar: the label above must not cover it
_ROOM_FOR_LABEL = 0.1  # of the rows: likewise


def tails_chart(splits: Mapping[str, StoredBacktest]) -> Figure:
    """CVaR with its interval, per split and strategy, and the limit."""
    first = next(iter(splits.values())).metrics
    layout = _layout("log-return of a bar", ".2~%", list(splits))
    note = f"Mean of the worst {share(first.alpha)} of bars with its 90 % bootstrap interval."
    traces = _forest(splits, "cvar")
    drawn = [value for trace in traces for value in trace["x"] if value is not None]
    if first.limit is not None and in_sight(first.limit, drawn):
        layout |= level(first.limit, f"limit {percent(first.limit)}")
        layout["yaxis"]["range"][1] += _ROOM_FOR_LABEL * len(splits)
    elif first.limit is not None:
        note += f" The limit of {percent(first.limit)} is far below."
    return Figure("tails", "Tail in and out of sample", note, traces, layout)


def sharpes_chart(splits: Mapping[str, StoredBacktest]) -> Figure:
    """Sharpe ratio with its interval, per split and strategy."""
    layout = _layout("Sharpe ratio, a year", "", list(splits))
    note = "What was learned on train is worth what is left of it further down. 90 % bootstrap intervals."
    return Figure("sharpes", "Sharpe in and out of sample", note, _forest(splits, "sharpe"), layout)


def differences_chart(metrics: Metrics) -> Figure | None:
    """Agent minus each baseline, Sharpe ratio."""
    rows = {name: stats["sharpe"] for name, stats in metrics.differences.items() if np.isfinite(stats["sharpe"].low)}
    if not rows:
        return None
    agent = metrics.strategies[AGENT].performance["sharpe"]
    points = [agent - metrics.strategies[name].performance["sharpe"] for name in rows]
    trace: Trace = {
        "type": "scatter",
        "mode": "markers",
        "x": numbers(points),
        "y": [-row for row in range(len(rows))],
        "marker": {"color": color("accent"), "size": 9},
        "error_x": _whiskers(points, [i.low for i in rows.values()], [i.high for i in rows.values()], "accent"),
        "showlegend": False,
        "hovertemplate": "%{x:.2f}<extra></extra>",
    }
    names = [f"minus {strategy_of(name).label}" for name in rows]
    layout = _layout("difference of Sharpe ratios", "", names) | level(0.0, "", tone="ink-3")
    note = "On the same resampled bars, so that what both share cancels. An interval across 0 shows nothing."
    return Figure("differences", "Against the baselines", note, [trace], layout, height=230)


def timing_chart(metrics: Metrics) -> Figure | None:
    """Sharpe ratios of the agent's own targets at other times, and the agent's."""
    timing = metrics.timing
    null = np.array([]) if timing is None else np.array([v for v in timing.null if np.isfinite(v)])
    if timing is None or len(null) < 20 or np.ptp(null) <= 0.0:  # constant targets have no timing to judge
        return None
    counts, edges = np.histogram(null, bins=40)
    trace: Trace = {
        "type": "bar",
        "x": numbers((edges[1:] + edges[:-1]) / 2.0),
        "y": numbers(counts / len(null)),
        "marker": {"color": color("ink-4")},
        "showlegend": False,
        "hovertemplate": "Sharpe %{x:.2f}: %{y:.1%}<extra></extra>",
    }
    highest = float(counts.max()) / len(null)
    layout: dict[str, Any] = {
        "xaxis": {"title": {"text": "Sharpe ratio, a year"}, "type": "linear"},
        "yaxis": {"title": {"text": "share of shifts"}, "tickformat": ".0%", "range": [0.0, _HEADROOM * highest]},
        "bargap": 0.08,
        "hovermode": "closest",
    } | level(timing.score, f"agent, percentile {timing.percentile:.0f}", tone="accent")
    if timing.score > (edges[0] + edges[-1]) / 2.0:  # to the left of a line on the right, where there is room
        layout["annotations"][0] |= {"xanchor": "right", "xshift": -3}
    note = f"The agent's own targets shifted by {len(null)} offsets in time: same positions, same costs, other days."
    return Figure("timing", "Timing against chance", note, [trace], layout, height=230)


def _forest(splits: Mapping[str, StoredBacktest], statistic: str) -> list[Trace]:
    known = dict.fromkeys(name for stored in splits.values() for name in stored.metrics.strategies)
    names = [name for name in known if strategy_of(name).moves]
    traces: list[Trace] = []
    for place, name in reversed(list(enumerate(names))):  # the agent last: drawn on top, first in the legend
        having = [
            (s, stored.metrics.strategies[name]) for s, stored in splits.items() if name in stored.metrics.strategies
        ]
        points = [strategy.performance[statistic] for _, strategy in having]
        intervals = [strategy.intervals[statistic] for _, strategy in having]
        style = strategy_of(name)
        rows = [list(splits).index(split) + 0.2 * (place - (len(names) - 1) / 2.0) for split, _ in having]
        traces.append(
            {
                "type": "scatter",
                "mode": "markers",
                "name": style.label,
                "x": numbers(points),
                "y": [-row for row in rows],
                "marker": {"color": color(style.tone), "size": 9, "symbol": style.symbol},
                "error_x": _whiskers(points, [i.low for i in intervals], [i.high for i in intervals], style.tone),
                "customdata": [split for split, _ in having],
                "hovertemplate": "%{customdata}: %{x}<extra>%{fullData.name}</extra>",
            }
        )
    return traces


def _whiskers(points: list[float], lows: list[float], highs: list[float], tone: str) -> dict[str, Any]:
    return {
        "type": "data",
        "symmetric": False,
        "array": numbers(high - point for high, point in zip(highs, points, strict=True)),
        "arrayminus": numbers(point - low for low, point in zip(lows, points, strict=True)),
        "color": color(tone),
        "thickness": 1.4,
        "width": 4,
    }


def _layout(title: str, tickformat: str, rows: list[str]) -> dict[str, Any]:
    named = {"tickvals": [-i for i in range(len(rows))], "ticktext": rows, "range": [0.4 - len(rows), 0.6]}
    return {
        "xaxis": {"title": {"text": title}, "type": "linear", "tickformat": tickformat},
        "yaxis": {"showgrid": False, "automargin": True, "ticksuffix": "  "} | named,
        "hovermode": "closest",
    }

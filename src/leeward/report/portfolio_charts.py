"""Charts of a portfolio: weights, gross and net exposure, what each asset earned, and how much was traded."""

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from leeward.backtest.files import StoredBacktest
from leeward.backtest.strategies import AGENT
from leeward.backtest.wording import percent
from leeward.report.figure import Figure, Trace, color, line, numbers, stamps, thin
from leeward.report.position_charts import most_held

__all__ = ["contributions", "portfolio_charts"]

_MOST_LAYERS = 8
_HUES = ("accent", "open", "ink-2", "bad", "accent-fill", "bad-fill", "ink-3", "ink-4")


def portfolio_charts(stored: StoredBacktest) -> list[Figure]:
    """Empty for a single asset, whose own chart shows all of it but the turnover."""
    if len(stored.metrics.assets) < 2:
        return [_turnover(stored)]
    return [_weights(stored), _exposure(stored), _contribution(stored), _turnover(stored)]


def contributions(stored: StoredBacktest) -> dict[str, float]:
    """Profit of each asset over the initial equity, before costs and interest."""
    found = {}
    for asset, rows in stored.positions.groupby("asset", sort=False):
        units, fill, close = (np.nan_to_num(rows[name].to_numpy()) for name in ("units", "fill", "close"))
        before, last = np.concatenate([[0.0], units[:-1]]), np.concatenate([close[:1], close[:-1]])
        profit = units * close - before * last - (units - before) * fill
        found[str(asset)] = float(profit.sum() / stored.equity[AGENT].iloc[0])
    return found


def _table(stored: StoredBacktest, column: str) -> tuple[list[str], dict[str, NDArray[np.float64]]]:
    """Times and one row of values per asset, the most held first, thinned."""
    wide = stored.positions.pivot(index="time", columns="asset", values=column)
    rows = thin(len(wide))
    time = stamps(pd.DatetimeIndex(wide.index[rows]))
    return time, {asset: wide[asset].to_numpy()[rows] for asset in most_held(stored)}


def _weights(stored: StoredBacktest) -> Figure:
    time, weights = _table(stored, "weight")
    layers = dict(list(weights.items())[:_MOST_LAYERS])
    left = list(weights.values())[_MOST_LAYERS:]
    if left:
        layers["others"] = np.sum(left, axis=0)
    short = any((values < 0.0).any() for values in layers.values())
    traces: list[Trace] = []
    for place, (asset, values) in enumerate(layers.items()):
        tone = color(_HUES[place % len(_HUES)])
        look = {"line": {"width": 1.2 if short else 0.5, "color": tone}}
        # A stack of long and short positions would hide one behind the other: lines then.
        stack = {} if short else {"stackgroup": "one", "fillcolor": tone}
        traces.append(line(asset, time, values, name=asset, hovertemplate="%{y:.1%}", **look, **stack))
    layout = {"yaxis": {"title": {"text": "of equity"}, "tickformat": ".0%"}}
    note = "Fraction of equity in each asset at the close; what is left is cash."
    return Figure("weights", "Weights", note, traces, layout, height=340, wide=True)


def _exposure(stored: StoredBacktest) -> Figure:
    time, weights = _table(stored, "weight")
    stacked = np.stack(list(weights.values()))
    gross, net = np.abs(stacked).sum(axis=0), stacked.sum(axis=0)
    traces = [
        line("gross", time, gross, name="gross", line={"color": color("ink-2"), "width": 1.3}),
        line(AGENT, time, net, name="net", line={"color": color("accent"), "width": 1.6}),
    ]
    layout = {"yaxis": {"title": {"text": "of equity"}, "tickformat": ".0%", "rangemode": "tozero"}}
    note = "Gross: the sum of all sizes. Net: long less short."
    return Figure("exposure", "Exposure", note, traces, layout)


def _contribution(stored: StoredBacktest) -> Figure:
    found = dict(sorted(contributions(stored).items(), key=lambda item: item[1]))
    trace: Trace = {
        "type": "bar",
        "orientation": "h",
        "x": numbers(found.values()),
        "y": list(found),
        "marker": {"color": [color("accent" if value >= 0.0 else "bad") for value in found.values()]},
        "showlegend": False,
        "hovertemplate": "%{y}: %{x:.2%}<extra></extra>",
    }
    layout = {
        "xaxis": {"title": {"text": "of initial equity"}, "type": "linear", "tickformat": ".1%"},
        "yaxis": {"type": "category", "showgrid": False, "ticksuffix": "  "},
        "hovermode": "closest",
    }
    note = f"Profit of each asset before costs and interest; together {percent(sum(found.values()))}."
    return Figure("contribution", "Contribution", note, [trace], layout, height=max(200, 60 + 26 * len(found)))


def _turnover(stored: StoredBacktest) -> Figure:
    frame = stored.equity
    traded = np.nancumsum(frame["turnover"].to_numpy())
    rows = thin(len(frame))
    time = stamps(pd.DatetimeIndex(frame.index[rows]))
    layout = {"yaxis": {"title": {"text": "× equity"}, "rangemode": "tozero"}}
    yearly = stored.metrics.strategies[AGENT].activity["turnover_per_year"]
    note = f"Running sum of what was traded, over equity: {yearly:.1f} times a year."
    look = {"name": "traded", "showlegend": False}
    return Figure(
        "turnover", "Turnover", note, [line(AGENT, time, traded[rows], **look)], layout, height=220, wide=True
    )

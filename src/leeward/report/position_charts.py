"""Charts of what was held: price with the trades on it and the exposure below, and what it cost."""

import numpy as np
import pandas as pd

from leeward.backtest.files import StoredBacktest
from leeward.backtest.result import COSTS
from leeward.backtest.strategies import AGENT
from leeward.report.figure import Figure, Trace, color, line, numbers, plain, stamps, thin

__all__ = ["choice_sentence", "costs_chart", "most_held", "position_charts"]

_MOST_ASSETS = 3
_MOST_MARKS = 400


def position_charts(stored: StoredBacktest) -> list[Figure]:
    """One chart for each of the most-held assets."""
    ranked = most_held(stored)[:_MOST_ASSETS]
    return [_of_asset(stored, asset, f"position_{i}") for i, asset in enumerate(ranked)]


def choice_sentence(stored: StoredBacktest) -> str:
    """Which assets have a chart of their own, where not all do."""
    ranked = most_held(stored)
    if len(ranked) <= _MOST_ASSETS:
        return ""
    shown, others = ranked[:_MOST_ASSETS], ranked[_MOST_ASSETS:]
    return f"Prices of the {_MOST_ASSETS} most held: {', '.join(shown)}; not of {', '.join(others)}."


def most_held(stored: StoredBacktest) -> list[str]:
    """Assets by their mean size, the largest first."""
    held = stored.positions.assign(size=stored.positions["weight"].abs()).groupby("asset")["size"].mean()
    return [str(asset) for asset in held.sort_values(ascending=False, kind="stable").index]


def _of_asset(stored: StoredBacktest, asset: str, key: str) -> Figure:
    rows = stored.positions[stored.positions["asset"] == asset]
    kept = thin(len(rows))
    time = stamps(pd.DatetimeIndex(rows["time"]))
    x = [time[i] for i in kept]
    price = line(AGENT, x, rows["close"].to_numpy()[kept], name="close", line={"color": color("ink-2"), "width": 1.3})
    weight = line(
        AGENT,
        x,
        rows["weight"].to_numpy()[kept],
        name="weight",
        yaxis="y2",
        fill="tozeroy",
        fillcolor=color("accent-soft"),
        line={"color": color("accent"), "width": 1.2, "shape": "hv"},
        hovertemplate="%{y:.0%}",
    )
    trades = stored.trades[stored.trades["asset"] == asset]
    closes = pd.Series(rows["close"].to_numpy(), index=pd.DatetimeIndex(rows["time"]))
    marks = [
        _marks(trades, closes, "entry_time", "entry", "triangle-up"),
        _marks(trades[trades["is_open"] == 0], closes, "exit_time", "exit", "triangle-down-open"),
    ]
    layout = {
        "yaxis": {"title": {"text": f"{plain(asset)}, price"}, "domain": [0.34, 1.0], "tickformat": "~s"},
        "yaxis2": {"title": {"text": "weight"}, "domain": [0.0, 0.26], "tickformat": ".0%", "anchor": "x", "nticks": 4},
        "xaxis": {"anchor": "y2"},
    }
    trips = f"{len(trades)} round trip{'' if len(trades) == 1 else 's'}"
    note = f"{trips}. Weight is the fraction of equity held at each close."
    if len(trades) > _MOST_MARKS:
        note += f" The {_MOST_MARKS} largest are marked."
    return Figure(key, f"Positions in {asset}", note, [price, weight, *marks], layout, height=420, wide=True)


def _marks(trades: pd.DataFrame, closes: "pd.Series[float]", time: str, name: str, symbol: str) -> Trace:
    """At the close of the bar: the average price of a position built up over months would float beside the line."""
    shown = trades.sort_values("peak_weight", ascending=False, kind="stable").head(_MOST_MARKS)
    return {
        "type": "scatter",
        "mode": "markers",
        "name": name,
        "x": stamps(pd.DatetimeIndex(shown[time])),
        "y": numbers(closes.loc[pd.DatetimeIndex(shown[time])].to_numpy()),
        "marker": {
            "symbol": symbol,
            "size": 7,
            "color": color("accent"),
            "line": {"width": 1, "color": color("accent")},
        },
        "hovertemplate": "%{y:.6~g}",
    }


def costs_chart(stored: StoredBacktest) -> Figure | None:
    """Running sum of each cost, in percent of the equity at the start."""
    frame = stored.equity
    kinds = [kind for kind in COSTS if frame[f"cost_{kind}"].abs().sum() > 0.0]
    if not kinds:
        return None
    rows = thin(len(frame))
    x = stamps(pd.DatetimeIndex(frame.index[rows]))
    tones = ("accent", "ink-2", "ink-3", "ink-4", "bad")
    traces = []
    for kind, tone in zip(kinds, tones, strict=False):
        paid = np.nancumsum(frame[f"cost_{kind}"].to_numpy())[rows] / frame[AGENT].iloc[0]
        look = {"stackgroup": "one", "line": {"width": 0.5, "color": color(tone)}, "fillcolor": color(tone)}
        traces.append(line(kind, x, paid, **look))
    layout = {"yaxis": {"title": {"text": "of initial equity"}, "tickformat": ".2~%"}}
    return Figure("costs", "Costs paid", "Running sum, as a share of the initial equity.", traces, layout, wide=True)

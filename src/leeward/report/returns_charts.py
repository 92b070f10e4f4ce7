"""Charts of what was earned: equity, drawdown, rolling Sharpe ratio, months, distribution of returns."""

from typing import Any

import numpy as np
import pandas as pd
from numpy.lib.stride_tricks import sliding_window_view
from numpy.typing import NDArray

from leeward.backtest import statistics
from leeward.backtest.files import StoredBacktest
from leeward.backtest.result import cash_returns
from leeward.backtest.strategies import AGENT, BUY_AND_HOLD, strategy_of
from leeward.backtest.wording import number, percent, share
from leeward.report.figure import Figure, Trace, color, in_sight, level, limit_line, line, numbers, stamps, thin

__all__ = ["equity_chart", "drawdown_chart", "rolling_charts", "months_chart", "distribution_chart"]

_MONTHS = ("Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec")
_ROLLING_POINTS = 300


def equity_chart(stored: StoredBacktest, key: str = "equity", *, title: str = "Equity") -> Figure:
    """Growth of 1 for the agent and every baseline."""
    time, rows = _time(stored)
    lines = [
        line(name, time, stored.equity[name].to_numpy()[rows] / stored.equity[name].iloc[0]) for name in _names(stored)
    ]
    layout = {"yaxis": {"title": {"text": "value of 1"}, "type": "log", "tickformat": ".4~g", "nticks": 7}}
    note = "Growth of 1 unit of money after all costs, marked at every close."
    return Figure(key, title, note, lines, layout, height=380, wide=True, scales=True)


def drawdown_chart(stored: StoredBacktest) -> Figure:
    """Distance from the highest equity so far."""
    time, rows = _time(stored)
    lines: list[Trace] = []
    for name in _names(stored):
        if not strategy_of(name).moves:
            continue
        depth = np.concatenate([[0.0], statistics.drawdowns(stored.returns(name))])[rows]
        fill = {"fill": "tozeroy", "fillcolor": color("accent-soft")} if name == AGENT else {}
        lines.append(line(name, time, depth, **fill))
    layout = {"yaxis": {"title": {"text": "below the peak"}, "tickformat": ".2~%", "rangemode": "tozero"}}
    return Figure("drawdown", "Drawdown", "Fraction lost since the highest equity so far.", lines, layout)


def rolling_charts(stored: StoredBacktest) -> list[Figure]:
    """Sharpe ratio and CVaR over a moving year (a third of the split when that is shorter), the limit as a line."""
    metrics = stored.metrics
    window = int(min(round(metrics.bars_per_year), metrics.bars // 3))
    if window < 20:
        return []
    ends = thin(metrics.bars - window + 1, _ROLLING_POINTS)
    time = stamps(pd.DatetimeIndex(stored.equity.index))
    x = [time[window + end] for end in ends]
    idle = sliding_window_view(cash_returns(stored.time, metrics.cash_rate), window)[ends]
    sharpes, tails = [], []
    for name in (name for name in _names(stored) if strategy_of(name).moves):
        windows = sliding_window_view(stored.returns(name), window)[ends]  # (points, window)
        sharpes.append(line(name, x, statistics.sharpe(windows, bars_per_year=metrics.bars_per_year, cash=idle)))
        tails.append(line(name, x, statistics.cvar(np.log1p(windows), alpha=metrics.alpha)))
    span = f"Over the last {window} bars."
    tail_layout: dict[str, Any] = {"yaxis": {"title": {"text": "log-return of a bar"}, "tickformat": ".2~%"}}
    drawn = [value for trace in tails for value in trace["y"] if value is not None]
    beyond = ""
    if metrics.limit is not None and in_sight(metrics.limit, drawn):
        tails.append(limit_line(metrics.limit, x))
    elif metrics.limit is not None:
        beyond = f" The limit of {percent(metrics.limit)} is far below."
    return [
        Figure(
            "rolling_sharpe",
            "Rolling Sharpe ratio",
            f"{span} Annualised, in excess of cash.",
            sharpes,
            {"yaxis": {"title": {"text": "Sharpe, a year"}}},
        ),
        Figure(
            "rolling_cvar",
            f"Rolling CVaR, worst {share(metrics.alpha)}",
            f"{span} Mean log-return of the worst bars.{beyond}",
            tails,
            tail_layout,
        ),
    ]


def months_chart(stored: StoredBacktest) -> Figure | None:
    """Return of every month, and of the year."""
    equity = stored.equity[AGENT]
    time = pd.DatetimeIndex(equity.index)
    by_month = equity.groupby([time.year, time.month]).last()
    if len(by_month) < 3:
        return None
    before = np.concatenate([[equity.iloc[0]], by_month.to_numpy()[:-1]])
    change = by_month.to_numpy() / before - 1.0
    years = sorted({int(year) for year, _ in by_month.index})
    grid = np.full((len(years), 13), np.nan)
    for (year, month), value in zip(by_month.index, change, strict=True):
        grid[years.index(int(year)), int(month) - 1] = value
    grid[:, 12] = np.expm1(np.nansum(np.log1p(grid[:, :12]), axis=1))
    reach = float(np.nanmax(np.abs(grid[:, :12])))
    text = [[number(100.0 * v, 1) if np.isfinite(v) else "" for v in row] for row in grid]
    trace: Trace = {
        "type": "heatmap",
        "x": [*_MONTHS, "Year"],
        "y": [str(year) for year in years],
        "z": [numbers(row) for row in grid],
        "text": text,
        "texttemplate": "%{text}",
        "textfont": {"size": 11},
        "zmin": -reach,
        "zmax": reach,
        "colorscale": [[0, color("bad-fill")], [0.5, color("card")], [1, color("accent-fill")]],
        "showscale": False,
        "xgap": 2,
        "ygap": 2,
        "hovertemplate": "%{x} %{y}: %{text} %<extra></extra>",
    }
    layout = {
        "yaxis": {"type": "category", "autorange": "reversed", "showgrid": False, "ticksuffix": " "},
        "xaxis": {"type": "category", "side": "top", "showgrid": False, "showline": False},
        "hovermode": "closest",
        "margin": {"l": 44, "t": 26, "b": 6},
        "showlegend": False,
    }
    height = 60 + 34 * len(years)
    return Figure("months", "Months", "Return of the agent, percent.", [trace], layout, height=height, wide=True)


def distribution_chart(stored: StoredBacktest) -> Figure:
    """Histogram of the risk variable with VaR, CVaR and the limit."""
    metrics = stored.metrics
    agent = np.log1p(stored.returns(AGENT))
    reach = float(np.quantile(np.abs(agent), 0.998)) or 1e-4
    edges = np.linspace(-reach, reach, 62)
    traces = [_bars(AGENT, agent, edges, 0.75)]
    if BUY_AND_HOLD in metrics.strategies:
        traces.append(_outline(BUY_AND_HOLD, np.log1p(stored.returns(BUY_AND_HOLD)), edges))
    table = metrics.strategies[AGENT].performance
    marks = [level(table["var"], "VaR", tone="ink-2"), level(table["cvar"], "CVaR", tone="accent")]
    seen = metrics.limit is not None and in_sight(metrics.limit, [reach, table["cvar"]])
    if metrics.limit is not None and seen:
        marks.append(level(metrics.limit, "limit"))
    for height, mark in enumerate(sorted(marks, key=lambda m: m["shapes"][0]["x0"])):
        mark["annotations"][0]["yshift"] = -14 * height  # near lines must not write over each other
    layout = {
        "xaxis": {"title": {"text": "log-return of a bar"}, "tickformat": ".2~%", "type": "linear"},
        "yaxis": {"title": {"text": "share of bars"}, "tickformat": ".0%"},
        "bargap": 0.06,
        "hovermode": "closest",
        "shapes": [shape for mark in marks for shape in mark["shapes"]],
        "annotations": [text for mark in marks for text in mark["annotations"]],
    }
    note = (
        f"One bar, net of costs. VaR and CVaR: historical, at {share(metrics.alpha)}, of the agent. "
        "The end bins hold all beyond."
    )
    if metrics.limit is not None and not seen:
        note += f" The limit of {percent(metrics.limit)} is far below."
    return Figure("distribution", "Returns of a bar", note, traces, layout)


def _bars(name: str, values: NDArray[np.float64], edges: NDArray[np.float64], opacity: float) -> Trace:
    heights, middle = _shares(values, edges)
    style = strategy_of(name)
    look = {"color": color(style.tone), "opacity": opacity}
    return {"type": "bar", "name": style.label, "x": numbers(middle), "y": numbers(heights), "marker": look}


def _outline(name: str, values: NDArray[np.float64], edges: NDArray[np.float64]) -> Trace:
    heights, middle = _shares(values, edges)
    look = {"color": color(strategy_of(name).tone), "width": 1.3, "shape": "hvh"}
    return line(name, numbers(middle), heights, line=look)


def _shares(values: NDArray[np.float64], edges: NDArray[np.float64]) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    counts, _ = np.histogram(np.clip(values, edges[0], edges[-1]), bins=edges)
    return counts / len(values), (edges[1:] + edges[:-1]) / 2.0


def _names(stored: StoredBacktest) -> list[str]:
    """Baselines first, so that the agent is drawn on top."""
    return [*reversed([name for name in stored.metrics.strategies if name != AGENT]), AGENT]


def _time(stored: StoredBacktest) -> tuple[list[str], NDArray[np.int64]]:
    rows = thin(len(stored.equity))
    return stamps(pd.DatetimeIndex(stored.equity.index[rows])), rows

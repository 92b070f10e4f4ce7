"""A chart as plain data: plotly traces and layout whose colours are names of CSS variables, so that a theme can change.

The page script fills in fonts, grid and colours; here stand only the numbers, the units and what differs.
"""

import html
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from leeward.backtest.strategies import strategy_of
from leeward.backtest.wording import percent

__all__ = [
    "Figure",
    "Trace",
    "MOST_POINTS",
    "line",
    "in_sight",
    "level",
    "limit_line",
    "numbers",
    "plain",
    "stamps",
    "thin",
    "color",
]

Trace = dict[str, Any]
_INTRADAY, _TICKS = re.compile(r"\d{4}-\d\d-\d\d \d\d:\d\d"), 6
_FAR = 4.0
MOST_POINTS = 1500  # of a line: more cannot be seen and make the file heavy


@dataclass(frozen=True, eq=False)
class Figure:
    """One chart of the page."""

    key: str  # id in the page
    title: str
    note: str  # what to see, with units
    data: list[Trace]
    layout: dict[str, Any] = field(default_factory=dict)
    height: int = 260  # pixels
    wide: bool = False  # the whole row
    scales: bool = False  # offers log and linear

    def spec(self) -> dict[str, Any]:
        axis = _trading_time([trace["x"] for trace in self.data if trace.get("x")]) | self.layout.get("xaxis", {})
        return {"data": self.data, "layout": self.layout | ({"xaxis": axis} if axis else {}), "height": self.height}


def _trading_time(columns: list[list[Any]]) -> dict[str, Any]:
    """An axis on which bars of less than a day stand side by side, so that no line is drawn over a night."""
    stamps = sorted({x for column in columns for x in column if isinstance(x, str) and _INTRADAY.fullmatch(x)})
    if len(stamps) < 2:
        return {}
    firsts = [i for i, stamp in enumerate(stamps) if i == 0 or stamp[:10] != stamps[i - 1][:10]]
    if len(firsts) < _TICKS:  # a few days: the hours matter
        at = sorted({round(i) for i in np.linspace(0, len(stamps) - 1, _TICKS - 2)})
        texts = [f"{pd.Timestamp(stamps[i]):%-d %b %H:%M}" for i in at]
    else:
        at = firsts[:1]
        for i in firsts:  # no nearer than labels are wide
            if i - at[-1] >= len(stamps) / _TICKS:
                at.append(i)
        texts = [f"{pd.Timestamp(stamps[i]):%-d %b}" for i in at]
    texts[0] += f"<br>{stamps[0][:4]}"
    return {
        "type": "category",
        "categoryorder": "array",
        "categoryarray": stamps,
        "tickvals": [stamps[i] for i in at],
        "ticktext": texts,
        "tickangle": 0,
    }


def color(name: str) -> str:
    """A colour of the theme."""
    return f"var(--{name})"


def line(strategy: str, x: Sequence[str | float | None], y: Iterable[float], /, **changes: Any) -> Trace:
    """A line named and drawn as a strategy is; `changes` are plotly's own keys."""
    style = strategy_of(strategy)
    trace: Trace = {
        "type": "scatter",
        "mode": "lines",
        "name": plain(style.label),
        "x": list(x),
        "y": numbers(y),
        "line": {"color": color(style.tone), "width": style.width, "dash": style.dash},
    }
    return trace | changes


def level(value: float, label: str, *, tone: str = "bad") -> dict[str, Any]:
    """Layout pieces of a vertical line with its label."""
    style = {"color": color(tone), "width": 1.4, "dash": "dash"}
    upright = {"y0": 0, "y1": 1, "yref": "paper", "x0": value, "x1": value, "xref": "x"}
    up = {"x": value, "xanchor": "left", "y": 1, "yref": "paper", "yanchor": "top", "xshift": 3}
    font = {"size": 11, "color": color(tone)}
    text = {"text": label, "showarrow": False, "bgcolor": color("card"), "font": font, "borderpad": 1}
    return {"shapes": [{"type": "line", "line": style} | upright], "annotations": [text | up]}


def limit_line(limit: float, x: Sequence[str | float | None]) -> Trace:
    """The limit across a chart over time. The legend names it: a label beside the line would cover the curves there."""
    return {
        "type": "scatter",
        "mode": "lines",
        "name": f"limit {percent(limit)}",
        "x": [x[0], x[-1]],
        "y": [limit, limit],
        "line": {"color": color("bad"), "width": 1.4, "dash": "dash"},
        "hoverinfo": "skip",
    }


def in_sight(limit: float, drawn: Sequence[float]) -> bool:
    """Whether a line at the limit leaves room for what is drawn: one that is far away would press it flat."""
    return abs(limit) <= _FAR * max((abs(value) for value in drawn), default=0.0)


def numbers(values: Iterable[float]) -> list[float | None]:
    """Six significant digits are more than a screen shows; what is not finite is a gap."""
    return [float(f"{value:.6g}") if np.isfinite(value) else None for value in values]


def plain(text: str) -> str:
    """A name from outside in a text of plotly, which reads some of HTML there: links, among others."""
    return html.escape(text, quote=False)


def stamps(time: pd.DatetimeIndex) -> list[str]:
    """Dates where bars are days, else dates with hours and minutes."""
    daily = bool((time == time.normalize()).all())
    return [str(stamp) for stamp in time.strftime("%Y-%m-%d" if daily else "%Y-%m-%d %H:%M")]


def thin(n: int, most: int = MOST_POINTS) -> NDArray[np.int64]:
    """At most `most` evenly spread rows, the first and the last among them."""
    if n <= most:
        return np.arange(n)
    return np.unique(np.linspace(0, n - 1, most).round().astype(np.int64))

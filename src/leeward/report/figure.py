"""A chart as plain data: plotly traces and layout whose colours are names of CSS variables, so that a theme can change.

The page script fills in fonts, grid and colours; here stand only the numbers, the units and what differs.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

__all__ = ["Figure", "Trace", "MOST_POINTS", "line", "level", "numbers", "stamps", "thin", "color"]

Trace = dict[str, Any]
MOST_POINTS = 1500  # of a line: more cannot be seen and make the file heavy

# Order of the strategies and how each is drawn; the agent alone has the accent.
_STYLES = {
    "agent": ("accent", 2.4, "solid"),
    "buy_and_hold": ("ink-2", 1.5, "solid"),
    "volatility_target": ("ink-3", 1.5, "dash"),
    "best_policy": ("ink-2", 1.5, "dashdot"),
    "cash": ("ink-3", 1.0, "dot"),
}


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
        return {"data": self.data, "layout": self.layout, "height": self.height}


def color(name: str) -> str:
    """A colour of the theme."""
    return f"var(--{name})"


def line(style: str, x: Sequence[str | float | None], y: Iterable[float], /, **changes: Any) -> Trace:
    """A line in the style of a strategy; `changes` are plotly's own keys."""
    tone, width, dash = _STYLES.get(style, ("ink-3", 1.2, "solid"))
    trace: Trace = {
        "type": "scatter",
        "mode": "lines",
        "name": style.replace("_", " "),
        "x": list(x),
        "y": numbers(y),
        "line": {"color": color(tone), "width": width, "dash": dash},
    }
    return trace | changes


def level(value: float, label: str, *, tone: str = "bad", axis: str = "y") -> dict[str, Any]:
    """Layout pieces of a horizontal (axis "y") or vertical ("x") line with its label."""
    across = {"x0": 0, "x1": 1, "xref": "paper", "y0": value, "y1": value, "yref": "y"}
    upright = {"y0": 0, "y1": 1, "yref": "paper", "x0": value, "x1": value, "xref": "x"}
    at = {"x": 1, "xref": "paper", "xanchor": "right", "y": value, "yanchor": "bottom"}
    up = {"x": value, "xanchor": "left", "y": 1, "yref": "paper", "yanchor": "top", "xshift": 3}
    style = {"color": color(tone), "width": 1.4, "dash": "dash"}
    return {
        "shapes": [{"type": "line", "line": style} | (across if axis == "y" else upright)],
        "annotations": [
            {"text": label.replace("-", "−"), "showarrow": False, "bgcolor": color("card")}
            | {"font": {"size": 11, "color": color(tone)}, "borderpad": 1}
            | (at if axis == "y" else up)
        ],
    }


def numbers(values: Iterable[float]) -> list[float | None]:
    """Six significant digits are more than a screen shows; what is not finite is a gap."""
    return [float(f"{value:.6g}") if np.isfinite(value) else None for value in values]


def stamps(time: pd.DatetimeIndex) -> list[str]:
    """Dates where bars are days, else dates with hours and minutes."""
    daily = bool((time == time.normalize()).all())
    return [str(stamp) for stamp in time.strftime("%Y-%m-%d" if daily else "%Y-%m-%d %H:%M")]


def thin(n: int, most: int = MOST_POINTS) -> NDArray[np.int64]:
    """At most `most` evenly spread rows, the first and the last among them."""
    if n <= most:
        return np.arange(n)
    return np.unique(np.linspace(0, n - 1, most).round().astype(np.int64))

"""Charts of what the agent said would happen: the fan of the next bar, and whether it was right."""

import numpy as np
import pandas as pd
import torch
from numpy.typing import NDArray

from leeward.backtest import calibration
from leeward.backtest.files import StoredBacktest
from leeward.backtest.result import Outlook
from leeward.backtest.strategies import AGENT, CASH
from leeward.backtest.wording import share
from leeward.maths import quantile
from leeward.report.figure import Figure, Trace, color, line, numbers, stamps

__all__ = ["outlook_charts"]

_BANDS = ((0.05, 0.95, "accent-soft"), (0.25, 0.75, "accent-mid"))
_FAN_BARS = 250


def outlook_charts(stored: StoredBacktest) -> list[Figure]:
    """Empty when the policy offered no distribution."""
    if stored.outlook_step is not None:
        step = stored.outlook_step
        outcomes = stored.equity["step_return"].to_numpy()[1:]
        return [_fan(stored, step, outcomes), _coverage(step, outcomes), *_pit(stored)]
    if stored.outlook is not None:
        return [_fan(stored, stored.outlook, None)]
    return []


def _fan(stored: StoredBacktest, outlook: Outlook, outcomes: NDArray[np.float64] | None) -> Figure:
    n = len(outlook.quantiles)
    rows = np.arange(max(0, n - _FAN_BARS), n)
    x = stamps(pd.DatetimeIndex(stored.equity.index[1:][rows]))
    traces: list[Trace] = []
    for low, high, tone in _BANDS:
        edge = {"color": color(tone), "width": 0}
        traces.append(line("edge", x, _at(outlook, low)[rows], line=edge, showlegend=False, hoverinfo="skip"))
        band = {"fill": "tonexty", "fillcolor": color(tone), "hoverinfo": "skip"}
        name = f"{share(low)} to {share(high)}"
        traces.append(line("edge", x, _at(outlook, high)[rows], line=edge, name=name, **band))
    traces.append(line(AGENT, x, _at(outlook, 0.5)[rows], name="median", line={"color": color("accent"), "width": 1.4}))
    unit = "discounted return" if outcomes is None else "log-return of a bar"
    layout = {"yaxis": {"title": {"text": unit}, "tickformat": ".2~%"}}
    if outcomes is not None:
        dots = {"mode": "markers", "marker": {"color": color("ink-2"), "size": 4}, "name": "what came"}
        traces.append(line(AGENT, x, outcomes[rows], **dots))
        title, note = "Outlook for the next bar", f"Predicted before each of the last {len(rows)} bars, and what came."
    else:
        title, note = "Outlook", f"Predicted distribution of the discounted return, last {len(rows)} bars."
    return Figure("fan", title, note, traces, layout, height=340, wide=True)


def _coverage(outlook: Outlook, outcomes: NDArray[np.float64]) -> Figure:
    shares = calibration.coverage(outlook.quantiles, outcomes)
    unit = (0.0, 1.0)
    traces = [
        line(CASH, unit, (0.0, 1.0), name="calibrated"),
        line(AGENT, numbers(outlook.levels), shares, mode="lines+markers", marker={"size": 5}),
    ]
    layout = {
        "xaxis": {"title": {"text": "predicted level"}, "type": "linear", "tickformat": ".0%", "range": [0, 1]},
        "yaxis": {"title": {"text": "share of bars below"}, "tickformat": ".0%", "range": [0, 1]},
        "hovermode": "closest",
    }
    gap = calibration.coverage_error(outlook.levels, outlook.quantiles, outcomes)
    note = f"Mean gap between level and coverage {gap:.3f}; 0 is perfect."
    return Figure("coverage", "Coverage", note, traces, layout)


def _pit(stored: StoredBacktest) -> list[Figure]:
    found = stored.metrics.calibration
    if found is None:
        return []
    n = len(found.pit)
    trace: Trace = {
        "type": "bar",
        "x": numbers((np.arange(n) + 0.5) / n),
        "y": numbers(found.pit),
        "marker": {"color": color("accent"), "opacity": 0.75},
        "showlegend": False,
        "hovertemplate": "%{x:.0%}: %{y:.2f}<extra></extra>",
    }
    layout = {
        "xaxis": {"title": {"text": "where the outcome stood"}, "type": "linear", "tickformat": ".0%"},
        "yaxis": {"title": {"text": "density, 1 = calibrated"}},
        "bargap": 0.06,
        "hovermode": "closest",
    }
    expected = (
        f"{found.breaches} of {found.bars} bars at or below the predicted VaR ({share(stored.metrics.alpha)} expected)."
    )
    tests = {
        "Kupiec": found.kupiec_p,
        "Christoffersen": found.christoffersen_p,
        "Acerbi-Szekely": found.acerbi_szekely_p,
    }
    note = f"{expected} p-values: {', '.join(f'{name} {_chance(p)}' for name, p in tests.items())}."
    return [Figure("pit", "Probability integral transform", note, [trace], layout)]


def _chance(p: float) -> str:
    return "not defined" if np.isnan(p) else "below 0.01" if p < 0.01 else f"{p:.2f}"


def _at(outlook: Outlook, level: float) -> NDArray[np.float64]:
    """Quantile at `level` (n,), as the agent reads its own."""
    return np.asarray(quantile.at_level(torch.tensor(outlook.quantiles), torch.tensor(outlook.levels), level).numpy())

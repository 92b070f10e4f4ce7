"""Charts of how it was learned: one small curve per quantity of progress.csv."""

from typing import Any

import numpy as np
import pandas as pd

from leeward.backtest.strategies import AGENT
from leeward.report.figure import Figure, limit_line, line, numbers, thin
from leeward.telemetry import metrics

__all__ = ["training_charts"]

_STEPS = metrics.TOTAL_TIMESTEPS.name
# metric, title, unit; those that a run did not log are left out
_CURVES = (
    (metrics.EP_REW_MEAN, "Episode reward", "log-return"),
    (metrics.TRADE_SHARPE, "Sharpe ratio while training", "a year"),
    (metrics.RISK_CVAR_MEASURED, "Measured tail", "log-return"),
    (metrics.RISK_MULTIPLIER, "Risk multiplier", "λ"),
    (metrics.EXPLAINED_VARIANCE, "Explained variance", "1 = perfect"),
    (metrics.CALIBRATION_ERROR, "Calibration error of the critic", "0 = perfect"),
    (metrics.POLICY_ENTROPY, "Policy entropy", "nats"),
    (metrics.APPROX_KL, "KL to the old policy", "nats"),
    (metrics.VALUE_LOSS, "Value loss", "return scale"),
    (metrics.GRAD_NORM_RAW, "Gradient norm", "before the clip"),
    (metrics.LEARNING_RATE, "Learning rate", "a step"),
    (metrics.TRADE_TURNOVER, "Turnover", "of equity, a bar"),
)


def training_charts(progress: pd.DataFrame, *, limit: float | None = None) -> list[Figure]:
    """Small multiples over env steps (or over logged rows when those are not there)."""
    steps = progress[_STEPS].to_numpy(dtype=float) if _STEPS in progress else np.arange(len(progress), dtype=float)
    figures = []
    for metric, title, unit in _CURVES:
        name = metric.name
        if name not in progress:
            continue
        values = progress[name].to_numpy(dtype=float)
        known = np.flatnonzero(np.isfinite(values) & np.isfinite(steps))
        if len(known) < 2:
            continue
        rows = known[thin(len(known), 400)]
        layout: dict[str, Any] = {
            "xaxis": {"title": {"text": "env steps"}, "type": "linear", "tickformat": "~s"},
            "yaxis": {"title": {"text": unit}, "nticks": 5, "tickformat": "~g"},
            "showlegend": False,
        }
        key = "train_" + name.replace("/", "_")
        curve = line(AGENT, numbers(steps[rows]), values[rows], name=name, showlegend=False)
        curve["line"]["width"] = 1.6
        drawn = [curve]
        if metric == metrics.RISK_CVAR_MEASURED and limit is not None:
            drawn.append(limit_line(limit, curve["x"]))
            layout["showlegend"] = True
        figures.append(Figure(key, title, name, drawn, layout, height=200))
    return figures

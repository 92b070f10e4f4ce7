"""Charts of how it was learned: one small curve per quantity of progress.csv."""

from typing import Any

import numpy as np
import pandas as pd

from leeward.report.figure import Figure, level, line, numbers, thin

__all__ = ["training_charts"]

_STEPS = "time/total_timesteps"
# metric, title, unit; those that a run did not log are left out
_CURVES = (
    ("rollout/ep_rew_mean", "Episode reward", "log-return"),
    ("trade/sharpe", "Sharpe ratio while training", "a year"),
    ("risk/cvar_measured", "Measured tail", "log-return"),
    ("risk/multiplier", "Risk multiplier", "λ"),
    ("train/explained_variance", "Explained variance", "1 = perfect"),
    ("train/calibration_error", "Calibration error of the critic", "0 = perfect"),
    ("train/policy_entropy", "Policy entropy", "nats"),
    ("train/approx_kl", "KL to the old policy", "nats"),
    ("train/value_loss", "Value loss", "return scale"),
    ("train/grad_norm_raw", "Gradient norm", "before the clip"),
    ("train/learning_rate", "Learning rate", "a step"),
    ("trade/turnover", "Turnover", "of equity, a bar"),
)


def training_charts(progress: pd.DataFrame, *, limit: float | None = None) -> list[Figure]:
    """Small multiples over env steps (or over logged rows when those are not there)."""
    steps = progress[_STEPS].to_numpy(dtype=float) if _STEPS in progress else np.arange(len(progress), dtype=float)
    figures = []
    for metric, title, unit in _CURVES:
        if metric not in progress:
            continue
        values = progress[metric].to_numpy(dtype=float)
        known = np.flatnonzero(np.isfinite(values) & np.isfinite(steps))
        if len(known) < 2:
            continue
        rows = known[thin(len(known), 400)]
        layout: dict[str, Any] = {
            "xaxis": {"title": {"text": "env steps"}, "type": "linear", "tickformat": "~s"},
            "yaxis": {"title": {"text": unit}, "nticks": 5, "tickformat": "~g"},
            "showlegend": False,
        }
        if metric == "risk/cvar_measured" and limit is not None:
            layout |= level(limit, f"limit {limit:.1%}")
        key = "train_" + metric.replace("/", "_")
        curve = line("agent", numbers(steps[rows]), values[rows], name=metric)
        curve["line"]["width"] = 1.6
        figures.append(Figure(key, title, metric, [curve], layout, height=200))
    return figures

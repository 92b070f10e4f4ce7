"""The trading metrics of a rollout, from the env's info arrays."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass

import numpy as np
from numpy.typing import NDArray

from leeward.backtest import BacktestResult, statistics

__all__ = ["Score", "TradeMetrics", "score_of"]

_KEYS = ("step_return", "reward_costs_fraction", "turnover", "exposure", "n_trades")


@dataclass(frozen=True)
class Score:
    """What a person follows during training: of the exploring policy, or of the deterministic one on a split."""

    growth: float  # log-growth a year
    sharpe: float  # annualised; NaN for an account that never moves
    max_drawdown: float  # fraction, zero or negative
    cvar: float  # log-return of a bar, mean of the worst `risk.alpha`

    def as_dict(self) -> dict[str, float]:
        return asdict(self)


def score_of(result: BacktestResult, alpha: float) -> Score:
    performance = result.performance(alpha)
    growth = float(np.log(result.equity[-1] / result.equity[0])) / performance.years
    return Score(growth, performance.sharpe, performance.max_drawdown, performance.cvar)


class TradeMetrics:
    """Gathers (T, B) arrays step by step and reduces them once per rollout; with n_jobs, of the first process."""

    def __init__(self, bars_per_year: float, alpha: float) -> None:
        self.bars_per_year, self.alpha = bars_per_year, alpha
        self.steps: dict[str, list[NDArray[np.float64]]] = {key: [] for key in _KEYS}

    def step(self, arrays: Mapping[str, NDArray[np.float64]]) -> None:
        """Take in the `info_arrays` of a TradingVecEnv."""
        for key in _KEYS:
            self.steps[key].append(arrays[key].copy())

    def read(self) -> tuple[dict[str, float], Score]:
        """The metrics of the rollout under their registered names, and the four that are shown; starts anew."""
        arrays = {key: np.stack(values) for key, values in self.steps.items()}  # (T, B)
        self.steps = {key: [] for key in _KEYS}
        returns, costs = arrays["step_return"], arrays["reward_costs_fraction"]
        finite = np.isfinite(costs)
        spread = float(returns.std())
        score = Score(
            growth=float(returns.mean()) * self.bars_per_year,
            sharpe=float(returns.mean()) / spread * self.bars_per_year**0.5 if spread > 0 else 0.0,
            max_drawdown=float(statistics.max_drawdown(np.expm1(returns.T)).min()),
            cvar=float(statistics.cvar(returns.ravel(), alpha=self.alpha)),
        )
        metrics = {
            "trade/costs_fraction": float(costs[finite].mean()) if finite.any() else float("nan"),
            "trade/costs_dropped": float((~finite).sum()),
            "trade/turnover": float(arrays["turnover"].mean()),
            "trade/exposure": float(arrays["exposure"].mean()),
            "trade/n_trades": float(arrays["n_trades"].sum()),
            "trade/sharpe": score.sharpe,
            "trade/max_drawdown": score.max_drawdown,
        }
        return metrics, score

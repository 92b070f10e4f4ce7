"""The trading metrics of a rollout, from the env's info arrays."""

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass

import numpy as np
from numpy.typing import NDArray

from leeward.backtest import BacktestResult, statistics
from leeward.telemetry import metrics
from leeward.telemetry.metrics import Numbers

__all__ = ["EpisodeScore", "Score", "TradeMetrics", "read_score", "score_of"]

_KEYS = ("step_return", "turnover", "exposure", "n_trades")


@dataclass(frozen=True)
class Score:
    """What a person follows during training: of the exploring policy, or of the deterministic one on a split."""

    growth: float  # log-growth a year
    sharpe: float  # annualised, of simple returns in excess of cash; NaN for an account that never moves
    max_drawdown: float  # fraction, zero or negative
    cvar: float  # log-return of a bar, mean of the worst `risk.alpha`

    def as_dict(self) -> dict[str, float]:
        return asdict(self)


@dataclass(frozen=True)
class EpisodeScore:
    """The same of an env of Gymnasium, which has no account."""

    mean_return: float  # of whole episodes; NaN before the first has ended

    def as_dict(self) -> dict[str, float]:
        return asdict(self)


def read_score(values: Mapping[str, float]) -> Score | EpisodeScore:
    """What `as_dict` gave."""
    kind = EpisodeScore if "mean_return" in values else Score
    return kind(**values)


def score_of(result: BacktestResult, alpha: float) -> Score:
    performance = result.performance(alpha)
    growth = float(np.log(result.equity[-1] / result.equity[0])) / performance.years
    return Score(growth, performance.sharpe, performance.max_drawdown, performance.cvar)


class TradeMetrics:
    """Gathers (T, B) arrays step by step and reduces them once per rollout; with n_jobs, of the first process."""

    def __init__(self, bars_per_year: float, alpha: float, *, cash_rate: float) -> None:
        self.bars_per_year, self.alpha, self.cash_rate = bars_per_year, alpha, cash_rate
        self.begin()

    def begin(self) -> None:
        """A rollout begins; what one that was given up had brought is forgotten."""
        self.steps: dict[str, list[NDArray[np.float64]]] = {key: [] for key in _KEYS}

    def step(self, arrays: Mapping[str, NDArray[np.float64]]) -> None:
        """Take in the `info_arrays` of a TradingVecEnv."""
        for key in _KEYS:
            self.steps[key].append(arrays[key].copy())

    def read(self) -> tuple[Numbers, Score]:
        """The metrics of the rollout, and the four numbers that are shown; starts anew."""
        arrays = {key: np.stack(values) for key, values in self.steps.items()}  # (T, B)
        self.begin()
        returns = arrays["step_return"]
        simple = np.expm1(returns)
        year, idle = self.bars_per_year, self.cash_rate / self.bars_per_year
        score = Score(
            growth=float(returns.mean()) * self.bars_per_year,
            sharpe=float(statistics.sharpe(simple.ravel(), bars_per_year=year, cash=idle)),
            max_drawdown=float(statistics.max_drawdown(simple.T).min()),
            cvar=float(statistics.cvar(returns.ravel(), alpha=self.alpha)),
        )
        numbers = {
            metrics.TRADE_TURNOVER: float(arrays["turnover"].mean()),
            metrics.TRADE_EXPOSURE: float(arrays["exposure"].mean()),
            metrics.TRADE_N_TRADES: float(arrays["n_trades"].sum()),
            metrics.TRADE_MAX_DRAWDOWN: score.max_drawdown,
        }
        if math.isfinite(score.sharpe):  # an account that never moves has none
            numbers[metrics.TRADE_SHARPE] = score.sharpe
        return numbers, score

"""The trading metrics of a rollout, from the env's info arrays."""

import numpy as np
from numpy.typing import NDArray

from leeward.env.sb3 import TradingVecEnv

__all__ = ["TradeMetrics"]

_KEYS = ("step_return", "reward_costs_fraction", "turnover", "exposure", "n_trades", "equity")


class TradeMetrics:
    """Gathers (T, B) arrays step by step and reduces them once per rollout."""

    def __init__(self, env: TradingVecEnv, bars_per_year: float) -> None:
        self.env, self.bars_per_year = env, bars_per_year
        self.steps: dict[str, list[NDArray[np.float64]]] = {key: [] for key in _KEYS}

    def step(self) -> None:
        arrays = self.env.info_arrays
        for key in _KEYS:
            self.steps[key].append(arrays[key].copy())

    def read(self) -> dict[str, float]:
        """The metrics of the rollout, under their registered names; starts anew."""
        arrays = {key: np.stack(values) for key, values in self.steps.items()}  # (T, B)
        self.steps = {key: [] for key in _KEYS}
        returns, costs = arrays["step_return"], arrays["reward_costs_fraction"]
        finite = np.isfinite(costs)
        spread = float(returns.std())
        wealth = np.exp(np.cumsum(returns, axis=0))
        peak = np.maximum.accumulate(np.maximum(wealth, 1.0), axis=0)
        return {
            "trade/costs_fraction": float(costs[finite].mean()) if finite.any() else float("nan"),
            "trade/costs_dropped": float((~finite).sum()),
            "trade/turnover": float(arrays["turnover"].mean()),
            "trade/exposure": float(arrays["exposure"].mean()),
            "trade/n_trades": float(arrays["n_trades"].sum()),
            "trade/sharpe": float(returns.mean()) / spread * self.bars_per_year**0.5 if spread > 0 else 0.0,
            "trade/max_drawdown": float((wealth / peak - 1.0).min()),
        }

"""From an action to target weights."""

from typing import Any

import gymnasium as gym
import numpy as np
from numpy.typing import NDArray

from leeward.config.trading import EnvConfig
from leeward.errors import EnvironmentFault
from leeward.market.bars import FloatArray

__all__ = ["Actions", "Positions", "Weights", "make_actions"]


class Weights:
    """A Box action is the target weight of each asset, cut to the box."""

    def __init__(self, config: EnvConfig, n_assets: int) -> None:
        self.low, self.high, self.n_assets = config.min_weight, config.max_weight, n_assets
        self.space: gym.Space[Any] = gym.spaces.Box(self.low, self.high, (n_assets,), np.float32)

    def targets(self, actions: NDArray[Any]) -> FloatArray:  # (B, A) -> (B, A)
        weights = np.asarray(actions, dtype=np.float64).reshape(-1, self.n_assets)
        if not np.isfinite(weights.sum()):  # the sum of finite weights is finite
            row = int(np.argmin(np.isfinite(weights).all(axis=1)))
            raise EnvironmentFault(
                f"env {row}: an action must be finite weights, got {weights[row]}; the policy diverged"
            )
        return np.minimum(np.maximum(weights, self.low), self.high)


class Positions:
    """A discrete action picks one of the configured positions, for each asset."""

    def __init__(self, config: EnvConfig, n_assets: int) -> None:
        self.positions, self.n_assets = np.asarray(config.positions, dtype=np.float64), n_assets
        count = len(self.positions)
        self.space: gym.Space[Any] = (
            gym.spaces.Discrete(count) if n_assets == 1 else gym.spaces.MultiDiscrete([count] * n_assets)
        )

    def targets(self, actions: NDArray[Any]) -> FloatArray:  # (B,) or (B, A) -> (B, A)
        choice = np.asarray(actions).reshape(-1, self.n_assets)
        if choice.dtype.kind not in "iu":
            raise EnvironmentFault(f"a discrete action must be an integer, got {choice.dtype}")
        if choice.min() < 0 or choice.max() >= len(self.positions):
            raise EnvironmentFault(
                f"an action must be 0 … {len(self.positions) - 1}, got {choice.min()} … {choice.max()}"
            )
        return np.asarray(self.positions[choice])


Actions = Weights | Positions
_KINDS: dict[str, type[Weights] | type[Positions]] = {"weights": Weights, "positions": Positions}


def make_actions(config: EnvConfig, n_assets: int) -> Actions:
    return _KINDS[config.action](config, n_assets)

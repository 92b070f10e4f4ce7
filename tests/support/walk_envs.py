"""Noisy walks, each env on a scale of its own: what several processes of one run share.

A worker imports the file in which its envs are defined, so this one imports nothing heavy.
"""

import os
from collections.abc import Callable
from functools import partial
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces

__all__ = ["ENVS", "FailingWalk", "MaskedWalk", "SeenWalk", "Walk", "functions"]

ENVS = 5


class Walk(gymnasium.Env[Any, Any]):
    """A noisy walk that is rewarded near its own target, on another scale in every env; ends and cuts at random."""

    def __init__(self, index: int, actions: str = "discrete") -> None:
        self.index = index
        self.observation_space = spaces.Box(-np.inf, np.inf, (3,), np.float32)
        self.action_space = spaces.Discrete(3) if actions == "discrete" else spaces.Box(-1.0, 1.0, (2,))

    def _look(self) -> np.ndarray:
        return np.array([self.place, self.np_random.normal(), self.index], dtype=np.float32)

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[np.ndarray, dict[str, Any]]:
        super().reset(seed=seed)
        self.place, self.total, self.age = 0.0, 0.0, 0
        return self._look(), {}

    def step(self, action: Any) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        self.age += 1
        self.place = 0.9 * self.place + 0.3 * (float(np.mean(action)) - 0.5) + 0.1 * self.np_random.normal()
        # The last env is a hundred times the first: statistics of one share are not those of all.
        reward = 10.0 ** (self.index / 2) * (1.0 - abs(self.place - 0.3))
        terminated = bool(self.np_random.random() < 0.1)
        return self._look(), float(reward), terminated, self.age >= 7, {"is_success": terminated}


class MaskedWalk(Walk):
    """One action is forbidden, and which one moves with time."""

    def action_masks(self) -> np.ndarray:
        return np.arange(3) != self.age % 3

    def step(self, action: Any) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        assert int(action) != self.age % 3
        return super().step(action)


class FailingWalk(Walk):
    """Env 3 fails in its 20th step."""

    def __init__(self, index: int, how: str) -> None:
        super().__init__(index)
        self.how, self.clock = how, 0

    def step(self, action: Any) -> Any:
        self.clock += 1
        found = super().step(action)
        if self.index == 3 and self.clock == 20:
            if self.how == "raises":
                raise ValueError("the exchange is closed")
            if self.how == "dies":
                os._exit(7)
            return np.full(3, np.nan, dtype=np.float32), *found[1:]
        return found


class SeenWalk(Walk):
    """Shows an image, channels last, beside its vector."""

    def __init__(self, index: int) -> None:
        super().__init__(index)
        parts = {"image": spaces.Box(0, 255, (36, 36, 1), np.uint8), "vector": self.observation_space}
        self.observation_space = spaces.Dict(parts)

    def _look(self) -> Any:
        return {"image": np.full((36, 36, 1), self.index, np.uint8), "vector": super()._look()}


def functions(n_envs: int = ENVS, kind: type[Walk] = Walk, **more: Any) -> list[Callable[[], gymnasium.Env[Any, Any]]]:
    return [partial(kind, index, **more) for index in range(n_envs)]

"""Envs with a known return distribution or a known best action, stepped as one batch."""

from typing import Any

import numpy as np
from gymnasium import spaces
from stable_baselines3.common.vec_env import VecEnv


class Batched(VecEnv):
    """The part of a VecEnv that every env here shares: `observe`, `reward` and a fixed episode length."""

    length = 1
    render_mode = None

    def __init__(self, n: int, observation: spaces.Space[Any], action: spaces.Space[Any], seed: int = 0) -> None:
        super().__init__(n, observation, action)
        self.rng = np.random.default_rng(seed)
        self.clock = 0

    def observe(self) -> Any:
        raise NotImplementedError

    def begin(self) -> None:
        """Draw what an episode is about."""

    def reward(self, actions: np.ndarray) -> np.ndarray:
        raise NotImplementedError

    def reset(self) -> Any:
        self.clock = 0
        self.begin()
        return self.observe()

    def step_async(self, actions: np.ndarray) -> None:
        self.actions = actions

    def step_wait(self) -> Any:
        rewards = self.reward(self.actions).astype(np.float32)
        self.clock += 1
        done = self.clock == self.length
        infos: list[dict[str, Any]] = [{} for _ in range(self.num_envs)]
        if done:
            return self.reset(), rewards, np.ones(self.num_envs, bool), infos
        return self.observe(), rewards, np.zeros(self.num_envs, bool), infos

    def close(self) -> None: ...

    def get_attr(self, name: str, indices: Any = None) -> list[Any]:
        return [getattr(self, name)] * self.num_envs

    def set_attr(self, name: str, value: Any, indices: Any = None) -> None:
        setattr(self, name, value)

    def env_method(self, name: str, *arguments: Any, indices: Any = None, **kwargs: Any) -> list[Any]:
        raise NotImplementedError

    def env_is_wrapped(self, wrapper: Any, indices: Any = None) -> list[bool]:
        return [False] * self.num_envs

    def has_attr(self, name: str) -> bool:
        return hasattr(self, name)


class Chain(Batched):
    """`length` steps of independent rewards from `draw`, whatever is done; the observation is the time, one-hot."""

    def __init__(self, n: int, length: int, draw: Any, seed: int = 0) -> None:
        self.length, self.draw = length, draw
        super().__init__(n, spaces.Box(0.0, 1.0, (length,)), spaces.Discrete(2), seed)

    def observe(self) -> np.ndarray:
        return np.tile(np.eye(self.length, dtype=np.float32)[self.clock], (self.num_envs, 1))

    def reward(self, actions: np.ndarray) -> np.ndarray:
        return np.asarray(self.draw(self.rng, self.num_envs))

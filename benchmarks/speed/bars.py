"""An env that costs next to nothing: random features and rewards for all envs at once.

The workload of a trading agent: 18 features per bar, Discrete(3), 512-bar episodes with random phase.
"""

import functools
from collections.abc import Callable
from typing import Any

import gymnasium
import numpy as np
from stable_baselines3.common.vec_env import VecEnv

EPISODE, FEATURES = 512, 18


class BatchedBars(VecEnv):
    """`n_envs` of them; `first` is the number of its first env among those of other processes."""

    def __init__(self, n_envs: int, first: int = 0) -> None:
        space = gymnasium.spaces.Box(-10.0, 10.0, (FEATURES,), np.float32)
        self.render_mode = None
        super().__init__(n_envs, space, gymnasium.spaces.Discrete(3))
        self.rng = np.random.default_rng(first)
        self.clock = self.rng.integers(0, EPISODE, n_envs)  # staggered: lock-step would flatter RecurrentPPO

    def _observe(self) -> np.ndarray:
        return self.rng.standard_normal((self.num_envs, FEATURES), dtype=np.float32)

    def shard(self, first: int, count: int) -> Callable[[], VecEnv]:
        """`count` of the envs for another process (`n_jobs`)."""
        return functools.partial(BatchedBars, count, first)

    def reset(self) -> np.ndarray:
        return self._observe()

    def step_async(self, actions: np.ndarray) -> None:
        self.chosen = actions

    def step_wait(self) -> Any:
        self.clock += 1
        dones = self.clock >= EPISODE
        self.clock[dones] = 0
        infos: list[dict[str, Any]] = [{} for _ in range(self.num_envs)]
        observation = self._observe()
        rewards = (self.chosen - 1) * observation[:, 0]
        for env in np.flatnonzero(dones):
            infos[env] = {"TimeLimit.truncated": True, "terminal_observation": observation[env].copy()}
            observation[env] = self.rng.standard_normal(FEATURES, dtype=np.float32)  # of the next episode
        return observation, rewards, dones, infos

    def close(self) -> None:
        """Nothing to release."""

    def get_attr(self, attr_name: str, indices: Any = None) -> list[Any]:
        return [getattr(self, attr_name)] * self.num_envs

    def set_attr(self, attr_name: str, value: Any, indices: Any = None) -> None:
        setattr(self, attr_name, value)

    def env_method(self, method_name: str, *args: Any, indices: Any = None, **kwargs: Any) -> list[Any]:
        raise AttributeError(method_name)

    def env_is_wrapped(self, wrapper_class: Any, indices: Any = None) -> list[bool]:
        return [False] * self.num_envs

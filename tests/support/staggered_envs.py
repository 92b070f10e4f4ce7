"""Small envs with staggered episodes, some with a risk variable of their own, and a record of what they gave.

All axis sizes differ.
"""

import math
from collections.abc import Callable, Iterable
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray
from stable_baselines3.common.vec_env import DummyVecEnv, VecEnvWrapper

__all__ = ["ACTIONS", "OBSERVATIONS", "Earning", "Recorder", "Staggered", "earning", "staggered"]

Array = NDArray[np.float64]

OBSERVATIONS: dict[str, spaces.Space[Any]] = {
    "vector": spaces.Box(-9.0, 9.0, (5,)),
    "dict": spaces.Dict({"place": spaces.Box(-9.0, 9.0, (4,)), "phase": spaces.Discrete(6)}),
    "image": spaces.Box(0, 255, (1, 36, 36), np.uint8),
}
ACTIONS: dict[str, spaces.Space[Any]] = {
    "discrete": spaces.Discrete(3),
    "multidiscrete": spaces.MultiDiscrete([2, 4]),
    "multibinary": spaces.MultiBinary(2),
    "box": spaces.Box(-2.0, 3.0, (2,)),
}


class Staggered(gymnasium.Env[Any, Any]):
    """Random observations and rewards that depend on them and on the action; episodes end at random, in both ways.

    Rewards are unit · (r + shift) + offset, r of the size of 1.
    """

    def __init__(
        self,
        index: int,
        observation: str = "vector",
        action: str = "box",
        ends: float = 0.2,
        unit: float = 1.0,
        shift: float = 0.0,
        offset: float = 0.0,
    ) -> None:
        self.observation_space, self.action_space = OBSERVATIONS[observation], ACTIONS[action]
        self.kind, self.ends = observation, ends
        self.unit, self.shift, self.offset = unit, shift, offset
        self.rng = np.random.default_rng([11, index])

    def reset(self, **_: Any) -> tuple[Any, dict[str, Any]]:
        return self._look(), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        varying = float(self.level + 0.3 * np.mean(action) + self.rng.normal())
        reward = self.unit * (varying + self.shift) + self.offset
        ended = self.rng.random() < self.ends
        terminated = ended and self.rng.random() < 0.5
        return self._look(), reward, bool(terminated), bool(ended and not terminated), {}

    def _look(self) -> Any:
        self.level = self.rng.normal()
        if self.kind == "image":
            return self.rng.integers(0, 256, (1, 36, 36)).astype(np.uint8)
        vector = (self.level + self.rng.normal(size=5)).astype(np.float32).clip(-9, 9)
        if self.kind == "dict":
            return {"place": vector[:4], "phase": int(self.rng.integers(6))}
        return vector


def staggered(n_envs: int, *, first: int = 0, **kwargs: Any) -> DummyVecEnv:
    def maker(index: int) -> Callable[[], Staggered]:
        return lambda: Staggered(index, **kwargs)

    return DummyVecEnv([maker(index) for index in range(first, first + n_envs)])


class Earning(Staggered):
    """Gives a step_return of its own: of the reward's kind, but neither equal to it nor a multiple of it."""

    def __init__(self, index: int, *, tells: bool = True, **kwargs: Any) -> None:
        super().__init__(index, **kwargs)
        self.tells = tells

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        observation, reward, terminated, truncated, info = super().step(action)
        if self.tells:
            info["step_return"] = math.sinh(reward) / 3.0 - 0.1
        return observation, reward, terminated, truncated, info


def earning(n_envs: int, *, tells: Iterable[int] | None = None, **kwargs: Any) -> DummyVecEnv:
    """`tells`: the envs that give a step_return; None = all."""
    telling = set(range(n_envs) if tells is None else tells)

    def maker(index: int) -> Callable[[], Earning]:
        return lambda: Earning(index, tells=index in telling, **kwargs)

    return DummyVecEnv([maker(index) for index in range(n_envs)])


class Recorder(VecEnvWrapper):
    """Keeps every step as the envs gave it, before anything else sees it."""

    def __init__(self, venv: Any) -> None:
        super().__init__(venv)
        self.rewards: list[Array] = []
        self.told: list[Array] = []  # step_return, nan where there is none
        self.dones: list[NDArray[np.bool_]] = []
        self.truncated: list[NDArray[np.bool_]] = []
        self.actions: list[NDArray[Any]] = []
        self.successors: list[Any] = []  # the observation each step led to: the final one at an episode's end

    def reset(self) -> Any:
        return self.venv.reset()

    def step_async(self, actions: NDArray[Any]) -> None:
        self.actions.append(np.array(actions))
        self.venv.step_async(actions)

    def step_wait(self) -> Any:
        observation, rewards, dones, infos = self.venv.step_wait()
        self.rewards.append(np.array(rewards, dtype=np.float64))
        self.told.append(np.array([info.get("step_return", np.nan) for info in infos], dtype=np.float64))
        self.dones.append(np.array(dones))
        self.truncated.append(np.array([bool(info.get("TimeLimit.truncated", False)) for info in infos]))
        successors = np.array(observation)
        for env in np.flatnonzero(dones):
            successors[env] = infos[env]["terminal_observation"]
        self.successors.append(successors)
        return observation, rewards, dones, infos

    def variable(self) -> Array:  # (T, B)
        told = np.array(self.told)
        return np.where(np.isnan(told), np.array(self.rewards), told)

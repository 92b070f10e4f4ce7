"""An env for every space, one that masks actions, and a VecEnv whose state can be put back."""

from collections.abc import Callable
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces
from stable_baselines3.common.monitor import Monitor
from stable_baselines3.common.vec_env import DummyVecEnv, VecEnv

__all__ = ["ACTIONS", "OBSERVATIONS", "Masked", "Restorable", "World", "vector"]

OBSERVATIONS: dict[str, spaces.Space[Any]] = {
    "vector": spaces.Box(-np.inf, np.inf, (3,), np.float32),
    "double": spaces.Box(-10.0, 10.0, (2, 2), np.float64),
    "discrete": spaces.Discrete(5),
    "image": spaces.Box(0, 255, (36, 36, 1), np.uint8),
    "dict": spaces.Dict({"a": spaces.Box(-1, 1, (2,), np.float32), "b": spaces.Discrete(3)}),
}
ACTIONS: dict[str, spaces.Space[Any]] = {
    "discrete": spaces.Discrete(3),
    "shifted": spaces.Discrete(3, start=-1),
    "multi_discrete": spaces.MultiDiscrete([2, 3]),
    "multi_binary": spaces.MultiBinary(4),
    "box": spaces.Box(np.float32([-1.0, -2.0]), np.float32([1.0, 4.0])),
}


class World(gymnasium.Env[Any, Any]):
    """Random observations; the reward is the mean action; ends after 7 steps or is cut after 5, by turns."""

    def __init__(self, observations: str = "vector", actions: str = "discrete") -> None:
        self.observation_space, self.action_space = OBSERVATIONS[observations], ACTIONS[actions]
        self.episodes = self.steps = 0

    def _look(self) -> Any:
        self.observation_space.seed(int(self.np_random.integers(2**31)))
        return self.observation_space.sample()

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.steps = 0
        return self._look(), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        assert self.action_space.contains(action), f"{action!r} is not in {self.action_space}"
        self.steps += 1
        cut = self.episodes % 2 == 1
        terminated, truncated = not cut and self.steps >= 7, cut and self.steps >= 5
        self.episodes += terminated or truncated
        return self._look(), float(np.mean(action)), terminated, truncated, {"is_success": bool(terminated)}


class Masked(World):
    """Of every action dimension, one choice is forbidden, and which one moves with time."""

    def __init__(self, actions: str = "discrete") -> None:
        super().__init__("vector", actions)

    def sizes(self) -> list[int]:
        space = self.action_space
        if isinstance(space, spaces.Discrete):
            return [int(space.n)]
        return [int(n) for n in space.nvec] if isinstance(space, spaces.MultiDiscrete) else [2] * space.shape[0]

    def action_masks(self) -> np.ndarray:
        parts = []
        for size in self.sizes():
            mask = np.ones(size, dtype=bool)
            mask[self.steps % size] = False
            parts.append(mask)
        return np.concatenate(parts)

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        start = getattr(self.action_space, "start", 0)
        for size, chosen in zip(self.sizes(), np.ravel(np.asarray(action) - start), strict=True):
            assert chosen != self.steps % size, f"step {self.steps}: {action} is masked"
        return super().step(action)


class Restorable(VecEnv):
    """Noisy walks, all envs as one array; `state` and `restore` give and take everything there is."""

    render_mode = None

    def __init__(self, n_envs: int = 3, actions: str = "discrete", seed: int = 5) -> None:
        super().__init__(n_envs, OBSERVATIONS["vector"], ACTIONS[actions])
        self.rng = np.random.default_rng(seed)
        self.place, self.age = np.zeros(n_envs), np.zeros(n_envs, dtype=int)
        self.actions: Any = None

    def state(self) -> dict[str, Any]:
        return {"rng": self.rng.bit_generator.state, "place": self.place.copy(), "age": self.age.copy()}

    def restore(self, state: dict[str, Any]) -> None:
        self.rng.bit_generator.state = state["rng"]
        self.place, self.age = state["place"].copy(), state["age"].copy()

    def _look(self) -> np.ndarray:
        noise = self.rng.standard_normal(self.num_envs)
        return np.stack([self.place, noise, np.cos(self.age)], 1).astype(np.float32)

    def reset(self) -> np.ndarray:
        self.place, self.age = np.zeros(self.num_envs), np.zeros(self.num_envs, dtype=int)
        return self._look()

    def step_async(self, actions: np.ndarray) -> None:
        self.actions = actions

    def step_wait(self) -> tuple[np.ndarray, np.ndarray, np.ndarray, list[dict[str, Any]]]:
        push = np.asarray(self.actions, dtype=float).reshape(self.num_envs, -1).mean(1)
        self.place = 0.9 * self.place + 0.3 * push + 0.1 * self.rng.standard_normal(self.num_envs)
        self.age = self.age + 1
        rewards = (1.0 - np.abs(self.place - 0.5)).astype(np.float32)
        terminated, truncated = self.rng.random(self.num_envs) < 0.05, self.age >= 11
        dones = terminated | truncated
        seen = self._look()
        infos: list[dict[str, Any]] = [{} for _ in range(self.num_envs)]
        for i in np.flatnonzero(dones):
            infos[i] = {
                "terminal_observation": seen[i].copy(),
                "TimeLimit.truncated": bool(truncated[i] and not terminated[i]),
                "episode": {"r": float(rewards[i]), "l": int(self.age[i]), "t": 0.0},
            }
        self.place[dones], self.age[dones] = 0.0, 0
        seen[dones] = self._look()[dones]
        return seen, rewards, dones, infos

    def close(self) -> None: ...

    def get_attr(self, attr_name: str, indices: Any = None) -> list[Any]:
        return [getattr(self, attr_name)] * self.num_envs

    def set_attr(self, attr_name: str, value: Any, indices: Any = None) -> None:
        setattr(self, attr_name, value)

    def env_method(self, method_name: str, *args: Any, indices: Any = None, **kwargs: Any) -> list[Any]:
        return [getattr(self, method_name)(*args, **kwargs)]

    def env_is_wrapped(self, wrapper_class: Any, indices: Any = None) -> list[bool]:
        return [False] * self.num_envs


def vector(make: Callable[[], gymnasium.Env[Any, Any]] = World, n_envs: int = 2) -> DummyVecEnv:
    return DummyVecEnv([lambda: Monitor(make())] * n_envs)

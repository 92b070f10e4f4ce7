"""RunningReturn: the return of the episode so far, as one more observation.

A constraint on the tail of *episode* returns is not Markov: whether another loss breaks it depends on what was gained
before. With the running return in the observation it is Markov again.
"""

from typing import Any, cast

import gymnasium as gym
import numpy as np
from numpy.typing import NDArray

from leeward.errors import ArgumentError

__all__ = ["RunningReturn", "extended_space"]


def extended_space(space: gym.Space[Any]) -> gym.spaces.Box:
    """A flat Box with one more, unbounded entry."""
    if not isinstance(space, gym.spaces.Box) or len(space.shape) != 1:
        raise ArgumentError(f"RunningReturn needs a flat Box observation, got {space}; flatten it first")
    low, high = np.append(space.low, -np.inf), np.append(space.high, np.inf)
    return gym.spaces.Box(low.astype(space.dtype), high.astype(space.dtype), dtype=cast(Any, space.dtype.type))


class RunningReturn(gym.ObservationWrapper[Any, Any, Any]):
    """Appends the sum of info["step_return"], or of the reward where the env gives none, since the reset."""

    shows_running_return = True

    def __init__(self, env: gym.Env[Any, Any]) -> None:
        super().__init__(env)
        self.observation_space = extended_space(env.observation_space)
        self._total = 0.0

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[NDArray[Any], dict[str, Any]]:
        self._total = 0.0
        observation, info = self.env.reset(seed=seed, options=options)
        return self.observation(observation), info

    def step(self, action: Any) -> tuple[NDArray[Any], float, bool, bool, dict[str, Any]]:
        observation, reward, terminated, truncated, info = self.env.step(action)
        self._total += float(info.get("step_return", reward))
        return self.observation(observation), float(reward), terminated, truncated, info

    def observation(self, observation: Any) -> NDArray[Any]:
        return np.append(observation, np.asarray(self._total, dtype=observation.dtype))

    @property
    def attackable(self) -> NDArray[np.bool_]:
        """What the wrapped env marks, and not the running return, which is state of the account."""
        return np.append(self.env.get_wrapper_attr("attackable"), False)

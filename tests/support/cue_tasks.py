"""Twelve small tasks whose best action is known: every action space, input, policy and critic.

A cue in {0, 1, 2} decides which action is right at each of the three steps of an episode. A policy with memory sees the
cue at the first step only. The rows cover every *pair* of settings. A run has found the optimum when the deterministic
policy is right at every step for every cue.
"""

from itertools import combinations
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces
from stable_baselines3.common.vec_env import DummyVecEnv

__all__ = ["ROWS", "Cue", "Row", "cue_envs", "finds_the_optimum", "missing_pairs"]

Row = tuple[str, str, str, str]  # action, input, memory, critic
ACTIONS: dict[str, spaces.Space[Any]] = {
    "Discrete": spaces.Discrete(3),
    "MultiDiscrete": spaces.MultiDiscrete([3, 2]),
    "MultiBinary": spaces.MultiBinary(2),
    "Box": spaces.Box(-2.0, 2.0, (1,)),  # wide enough that the clip of exploring actions does not move the best mean
}
INPUTS: dict[str, spaces.Space[Any]] = {
    "vector": spaces.Box(0.0, 1.0, (4,)),
    "Dict": spaces.Dict({"cue": spaces.Box(0.0, 1.0, (4,)), "clock": spaces.Discrete(3)}),
    "image": spaces.Box(0, 255, (1, 36, 36), np.uint8),
}
POLICIES = ("none", "lstm", "gru")
CRITICS = ("quantile", "categorical")
# What is right for each cue.
RIGHT: dict[str, list[Any]] = {
    "Discrete": [0, 1, 2],
    "MultiDiscrete": [[0, 0], [1, 1], [2, 0]],
    "MultiBinary": [[0, 0], [0, 1], [1, 0]],
    "Box": [[-0.8], [0.0], [0.8]],
}
CLOSE = 0.15  # how near a continuous action must come

ROWS = [
    (action, seen, POLICIES[(a + i) % 3], CRITICS[(a + i) % 2])
    for a, action in enumerate(ACTIONS)
    for i, seen in enumerate(INPUTS)
]


def missing_pairs() -> list[tuple[str, str]]:
    """Pairs of settings that no row holds."""
    settings = (tuple(ACTIONS), tuple(INPUTS), POLICIES, CRITICS)
    wanted = {(x, y) for left, right in combinations(settings, 2) for x in left for y in right}
    return sorted(wanted - {pair for row in ROWS for pair in combinations(row, 2)})


class Cue(gymnasium.Env[Any, Any]):
    """Three steps; the right action depends on the cue, which `remembered` shows at the first step only."""

    def __init__(self, action: str, seen: str, remembered: bool, seed: int) -> None:
        self.observation_space, self.action_space = INPUTS[seen], ACTIONS[action]
        self.action, self.seen, self.remembered = action, seen, remembered
        self.rng = np.random.default_rng(seed)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        self.cue = int(self.rng.integers(3)) if options is None else int(options["cue"])
        self.clock = 0
        return self.look(), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        error = np.abs(np.asarray(action, dtype=float) - np.asarray(RIGHT[self.action][self.cue], dtype=float))
        reward = -float(np.mean(error**2 if self.action == "Box" else error > 0))
        self.clock += 1
        return self.look(), reward, self.clock == 3, False, {}

    def look(self) -> Any:
        shown = self.cue if self.clock == 0 or not self.remembered else 3  # 3: nothing to be seen
        if self.seen == "image":
            image = np.zeros((1, 36, 36), dtype=np.uint8)
            image[0, 9 * shown : 9 * shown + 9] = 255
            return image
        vector = np.eye(4, dtype=np.float32)[shown]
        return {"cue": vector, "clock": min(self.clock, 2)} if self.seen == "Dict" else vector


def cue_envs(row: Row, seed: int) -> DummyVecEnv:
    """Eight envs of a row."""
    action, seen, memory, _ = row
    remembered = memory != "none"
    return DummyVecEnv([lambda i=i: Cue(action, seen, remembered, 100 * seed + i) for i in range(8)])  # type: ignore[misc]


def finds_the_optimum(model: Any, row: Row) -> bool:
    """Right at every step for every cue, acting deterministically."""
    action, seen, memory, _ = row
    env = Cue(action, seen, memory != "none", seed=0)
    for cue in range(3):
        observation, state, done = env.reset(options={"cue": cue})[0], None, False
        while not done:
            chosen, state = model.predict(observation, state, deterministic=True)
            if np.abs(np.asarray(chosen, dtype=float) - RIGHT[action][cue]).max() > (CLOSE if action == "Box" else 0.0):
                return False
            observation, _, done, _, _ = env.step(chosen)
    return True

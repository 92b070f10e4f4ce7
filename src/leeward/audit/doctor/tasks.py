"""Five small tasks with known answers. Each needs one thing of a learner that a trading task needs too.

An action is a place in [0, 1]: of a weight between its bounds, or of a position in the list of them. A score is 1 for
the best policy and 0 for one that knows nothing.
"""

from dataclasses import dataclass
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray

from leeward.config.trading import EnvConfig

__all__ = ["TASKS", "Gamble", "Remembering", "Seeing", "TailTask", "Task", "Waiting", "action_space"]

Array = NDArray[np.float32]


def action_space(config: EnvConfig) -> spaces.Space[Any]:
    """Of the same kind as the trading env's, for one asset."""
    if config.action == "positions":
        return spaces.Discrete(len(config.positions))
    return spaces.Box(config.min_weight, config.max_weight, (1,), np.float32)


class Task(gymnasium.Env[Array, Any]):
    """What the tasks share: a place for an action, an episode of `length` steps, three numbers to see."""

    name = "one action"
    needs = "to do what pays"
    length = 1

    def __init__(self, space: spaces.Space[Any], seed: int) -> None:
        self.action_space, self.observation_space = space, spaces.Box(-2.0, 2.0, (3,), np.float32)
        self.rng = np.random.default_rng(seed)
        self.t, self.cue, self.first = 0, 1.0, 0.0

    def place(self, action: Any) -> float:
        """Where in [0, 1] an action is."""
        if isinstance(self.action_space, spaces.Discrete):
            return float(int(action) / (self.action_space.n - 1))
        assert isinstance(self.action_space, spaces.Box)
        low, high = float(self.action_space.low[0]), float(self.action_space.high[0])
        return float(np.clip((float(np.ravel(action)[0]) - low) / (high - low), 0.0, 1.0))

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Array, dict[str, Any]]:
        self.t, self.cue, self.first = 0, float(self.rng.choice([-1.0, 1.0])), 0.0
        return self.look(), {}

    def step(self, action: Any) -> tuple[Array, float, bool, bool, dict[str, Any]]:
        signed = 2.0 * self.place(action) - 1.0
        if self.t == 0:
            self.first = signed
        reward = self.reward(signed)
        self.t += 1
        return self.look(), reward, self.t >= self.length, False, {}

    def look(self) -> Array:
        return np.zeros(3, dtype=np.float32)

    def reward(self, signed: float) -> float:
        """Of an action in [−1, 1]."""
        return signed


class Seeing(Task):
    """What pays depends on what is seen."""

    name = "observation"
    needs = "to tell two observations apart"

    def look(self) -> Array:
        return np.array([self.cue, 0.0, 0.0], dtype=np.float32)

    def reward(self, signed: float) -> float:
        return self.cue * signed


class Waiting(Task):
    """The first action decides, and is paid for at the end."""

    name = "delayed reward"
    needs = "to credit an action three steps before its reward"
    length = 4

    def look(self) -> Array:
        return np.array([float(self.t == 0), self.first, self.t / self.length], dtype=np.float32)

    def reward(self, signed: float) -> float:
        return self.first if self.t == self.length - 1 else 0.0


class Remembering(Task):
    """What pays at the end was shown at the start."""

    name = "memory"
    needs = "to remember what was seen two steps before"
    length = 3

    def look(self) -> Array:
        last = float(self.t == self.length - 1)
        return np.array([self.cue if self.t == 0 else 0.0, last, 0.0], dtype=np.float32)

    def reward(self, signed: float) -> float:
        return self.cue * signed if self.t == self.length - 1 else 0.0


@dataclass(frozen=True)
class Gamble:
    """A position of size a earns a · x: 0.2 on average, and a crash of 1.5 below its good days now and then.

    `allowed` is the position whose tail is the limit.
    """

    alpha: float
    crash: float  # probability
    good: float
    allowed: float

    @classmethod
    def of(cls, alpha: float, config: EnvConfig) -> "Gamble":
        crash = min(max(0.1, alpha), 0.8)
        # Where a policy that knows nothing does not stand; of a list of positions, a little above the second one.
        steps = len(config.positions) - 1 if config.action == "positions" else 4
        return cls(alpha, crash, 0.2 + 1.5 * crash, 1.2 / steps if steps > 1 else 0.5)

    @property
    def tail(self) -> float:
        """CVaR_alpha of a whole position."""
        crashed = min(self.crash / self.alpha, 1.0)
        return self.good - 1.5 * crashed

    @property
    def limit(self) -> float:
        return self.allowed * self.tail

    def score(self, place: float) -> float:
        """1 at the position that keeps the limit and uses it, 0 at none and at one and a half times the limit."""
        if self.allowed == 0.5:  # all or nothing: nothing keeps it
            return 1.0 - place
        if place <= self.allowed:
            return place / self.allowed
        return max(0.0, 1.0 - (place - self.allowed) / (0.5 * self.allowed))


class TailTask(Task):
    """More pays more, and has a tail beyond its limit: the best position is the largest one that keeps it."""

    name = "tail"
    needs = "to give up return for a tail within its limit"

    def __init__(self, space: spaces.Space[Any], seed: int, gamble: Gamble) -> None:
        super().__init__(space, seed)
        self.gamble = gamble

    def reward(self, signed: float) -> float:
        move = self.gamble.good - 1.5 * float(self.rng.random() < self.gamble.crash)
        return 0.5 * (signed + 1.0) * move


TASKS: tuple[type[Task], ...] = (Task, Seeing, Waiting, Remembering)

"""The entropy coefficient: one decay, a plateau that only decides when it starts, and a floor that always holds."""

import math
from collections import deque
from typing import Any

from leeward.config.learning import Entropy
from leeward.maths import schedules

__all__ = ["EntropySchedule"]

_SLOPE_WINDOW = 10


class EntropySchedule:
    """Owns the decay's start and the recent entropies."""

    def __init__(self, start: float, config: Entropy) -> None:
        self.start, self.config = start, config
        self.decay_from: float | None = None if config.plateau_updates is not None else 0.0
        self.history: deque[float] = deque(maxlen=max(_SLOPE_WINDOW, config.plateau_updates or 0))

    def nominal(self, progress: float) -> float:
        """The coefficient by its schedule alone; `progress` runs from 0 to 1."""
        if self.config.end is None or self.decay_from is None or self.decay_from >= 1.0:
            return self.start
        share = (progress - self.decay_from) / (1.0 - self.decay_from)
        return schedules.BY_NAME[self.config.schedule](max(share, 0.0), self.start, self.config.end)

    def effective(self, progress: float) -> float:
        return max(self.nominal(progress), self.config.floor)

    def log_std_scale(self, progress: float) -> float:
        """What is added to the log standard deviation of Gaussian actions."""
        if self.config.std_scale_end is None:
            return 0.0
        return math.log(schedules.BY_NAME[self.config.std_scale_schedule](progress, 1.0, self.config.std_scale_end))

    def observe(self, entropy: float, progress: float) -> None:
        """Take in the mean entropy of an update; a plateau starts the decay, once."""
        self.history.append(entropy)
        window = self.config.plateau_updates
        waiting = self.decay_from is None and window is not None and len(self.history) >= window
        if waiting and abs(self.slope(window or 0)) < self.config.plateau_slope:
            self.decay_from = progress

    def slope(self, window: int = _SLOPE_WINDOW) -> float:
        """Least-squares slope of the last entropies, in nats per update; 0 before there are two."""
        recent = list(self.history)[-window:]
        n = len(recent)
        if n < 2:
            return 0.0
        centre, mean = (n - 1) / 2, sum(recent) / n
        spread = sum((i - centre) ** 2 for i in range(n))
        return sum((i - centre) * (value - mean) for i, value in enumerate(recent)) / spread

    def state_dict(self) -> dict[str, Any]:
        return {"decay_from": self.decay_from, "history": list(self.history)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.decay_from = state["decay_from"]
        self.history = deque(state["history"], maxlen=self.history.maxlen)

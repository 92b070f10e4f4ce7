"""The entropy coefficient: one decay, a plateau that only decides when it starts, and a floor that always holds."""

import math
from collections import deque
from typing import Any

from leeward.config.learning import Entropy
from leeward.maths import schedules

__all__ = ["EntropySchedule"]

_SLOPE_WINDOW = 10


class EntropySchedule:
    """Owns the moment from which the coefficient decays, and the recent entropies. `progress` runs from 0 to 1."""

    def __init__(self) -> None:
        self.decay_from: float | None = None  # None: the plateau has not been seen yet
        self.history: deque[float] = deque(maxlen=_SLOPE_WINDOW)

    def nominal(self, progress: float, start: float, config: Entropy) -> float:
        """The coefficient by its schedule alone."""
        begin = 0.0 if config.plateau_updates is None else self.decay_from
        if config.end is None or begin is None or begin >= 1.0:
            return start
        share = (progress - begin) / (1.0 - begin)
        return schedules.BY_NAME[config.schedule](max(share, 0.0), start, config.end)

    def effective(self, progress: float, start: float, config: Entropy) -> float:
        return max(self.nominal(progress, start, config), config.floor)

    @staticmethod
    def log_std_scale(progress: float, config: Entropy) -> float:
        """What is added to the log standard deviation of Gaussian actions."""
        if config.std_scale_end is None:
            return 0.0
        return math.log(schedules.BY_NAME[config.std_scale_schedule](progress, 1.0, config.std_scale_end))

    def observe(self, entropy: float, progress: float, config: Entropy) -> None:
        """Take in the mean entropy of an update; a plateau starts the decay, once."""
        window = config.plateau_updates
        needed = max(_SLOPE_WINDOW, window or 0)
        if self.history.maxlen != needed:
            self.history = deque(self.history, maxlen=needed)
        self.history.append(entropy)
        waiting = self.decay_from is None and window is not None and len(self.history) >= window
        if waiting and abs(self.slope(window or 0)) < config.plateau_slope:
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
        history = state["history"]
        self.history = deque(history, maxlen=max(_SLOPE_WINDOW, len(history)))

"""How far training must have come, counted from the rollouts that were learned from: schedules are compared with it."""

from leeward.telemetry import metrics
from leeward.telemetry.metrics import Numbers

__all__ = ["Course"]


class Course:
    """The steps of one call of `learn`, in a count of its own."""

    def __init__(self) -> None:
        self._done, self._total = 0, 0

    def begin(self, done: int, total: int) -> None:
        """`learn` begins after `done` steps and ends after `total` of them."""
        self._done, self._total = done, total

    def learned_from(self, steps: int, remaining: float) -> Numbers:
        """Of a rollout of so many steps, by schedules that took `remaining` for the progress that is left; nothing
        outside of `learn`, and in processes that are told what to do."""
        if self._total == 0:
            return {}
        self._done += steps
        left = max(self._total - self._done, 0) / self._total
        return {metrics.PROGRESS_DEV: abs(remaining - left)}

"""What a health rule is: frozen data, and a pure function from the history of a run to the value that is judged.

The table of all rules is in `rules`; who keeps the history and says when one fires is the `monitor`.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Literal, NamedTuple

from leeward.telemetry.alerts import Severity
from leeward.telemetry.metrics import Metric

__all__ = [
    "Facts",
    "History",
    "Judge",
    "Reading",
    "Rule",
    "changes",
    "largest",
    "only_if",
    "outside",
    "over",
    "smallest",
]


@dataclass(frozen=True)
class Facts:
    """What a number alone does not tell: where training is, and the settings that numbers are compared with."""

    update: int = 1  # of this model; the first is 1
    progress: float = 0.0  # share of training that is done, from 0 to 1
    steps: int = 2048  # of a rollout, of all envs together
    max_grad_norm: float | None = None
    max_entropy: float | None = None  # nats, of discrete actions
    noise_scale: float = 1.0  # what the schedule of the exploration noise multiplies its width by
    ceilings: tuple[float, ...] = ()  # of the multipliers, one for each constraint
    several_steps: bool = True  # an update takes more than one; the KL of the first is 0 by itself
    support: bool = False  # the critics' atoms have a support that moves


class Reading(NamedTuple):
    """A value, and the name of the metric it was read from."""

    value: float
    metric: str


@dataclass(frozen=True)
class History:
    """What rules may look at; the newest value of a series, this update's, is its last."""

    now: Mapping[str, float]  # every number of this update, by name
    members: Mapping[str, tuple[str, ...]] = field(default_factory=dict)  # names of this update, by registered name
    past: Mapping[str, tuple[float, ...]] = field(default_factory=dict)  # of single metrics, as far as rules look back
    first: Mapping[str, float] = field(default_factory=dict)  # the first value of a metric
    peak: Mapping[str, float] = field(default_factory=dict)  # its largest
    facts: Facts = Facts()

    def get(self, metric: Metric) -> float | None:
        """Its value in this update, if it was measured."""
        return self.now.get(metric.name)

    def all(self, metric: Metric) -> list[Reading]:
        """The values of a family, or of the metric of every constraint."""
        return [Reading(self.now[name], name) for name in self.members.get(metric.name, ())]

    def series(self, metric: Metric, length: int) -> tuple[float, ...] | None:
        """Its last values, this update's among them; None before there are so many."""
        values = self.past.get(metric.name, ())
        return values[-length:] if len(values) >= length and metric.name in self.now else None


Judge = Callable[[History], Reading | None]


@dataclass(frozen=True)
class Rule:
    """When a number is a sign of trouble, why that may be, and what to do about it."""

    name: str
    severity: Severity
    reads: tuple[Metric, ...]  # the first is the one it is filed under
    judge: Judge | None  # None: it is no number but an error that stops training
    threshold: float
    fires: Literal["above", "below"]
    what: str  # what is judged, in words
    cause: str
    remedy: str
    check: str  # how to see for oneself that it is so
    warmup: int = 0  # updates at the start in which it does not look
    least: int = 0  # steps of a rollout; it says nothing of shorter ones, in which what it judges is chance
    persistence: int = 1  # updates in a row
    rearm: int = 20  # updates without it, after which it may fire again
    window: int = 1  # values of each metric that it looks at
    series: Metric | None = None  # 0/1: it is there
    beside: tuple[Metric, Metric] | None = None  # a series, and the metric whose value it shows while it is there

    def holds(self, value: float, threshold: float) -> bool:
        """Whether a value is on the wrong side; what is not a number is."""
        return not (value <= threshold if self.fires == "above" else value >= threshold)


def largest(*metrics: Metric) -> Judge:
    """The largest of all these metrics, and of the members of families among them."""

    def judge(history: History) -> Reading | None:
        found = [reading for metric in metrics for reading in history.all(metric)]
        return max(found, default=None, key=_size)

    return judge


def smallest(*metrics: Metric) -> Judge:
    def judge(history: History) -> Reading | None:
        found = [reading for metric in metrics for reading in history.all(metric)]
        return min(found, default=None, key=lambda reading: reading.value)

    return judge


def over(metric: Metric, unit: Callable[[History], float | None]) -> Judge:
    """A metric in the unit that the history gives; not judged where there is none."""

    def judge(history: History) -> Reading | None:
        value, one = history.get(metric), unit(history)
        return None if value is None or one is None or one == 0.0 else Reading(value / one, metric.name)

    return judge


def outside(metric: Metric) -> Judge:
    """How many times a positive number is too large or too small."""

    def judge(history: History) -> Reading | None:
        value = history.get(metric)
        return None if value is None or value <= 0.0 else Reading(max(value, 1.0 / value), metric.name)

    return judge


def only_if(condition: Callable[[History], bool], judge: Judge) -> Judge:
    """Judged only where the condition holds."""
    return lambda history: judge(history) if condition(history) else None


def changes(metric: Metric, length: int, judge: Callable[[tuple[float, ...]], float | None]) -> Judge:
    """Judged by a metric's last values."""

    def by_series(history: History) -> Reading | None:
        values = history.series(metric, length)
        value = None if values is None else judge(values)
        return None if value is None else Reading(value, metric.name)

    return by_series


def _size(reading: Reading) -> float:
    # What is not a number is larger than any.
    return reading.value if reading.value == reading.value else float("inf")

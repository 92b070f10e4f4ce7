"""Watches a run: keeps as much of its numbers as the rules look at, and says when one of them fires."""

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any

from leeward.telemetry import metrics
from leeward.telemetry.alerts import Alert
from leeward.telemetry.health import Facts, History, Reading, Rule
from leeward.telemetry.metrics import ALERT, Metric, Numbers, find
from leeward.telemetry.rules import RULES

__all__ = ["Monitor"]

_WINDOWS: dict[str, int] = {}  # how many values of a metric are kept
for _rule in RULES.values():
    for _metric in _rule.reads:
        _WINDOWS[_metric.name] = max(_WINDOWS.get(_metric.name, 1), _rule.window)
_LOOKED_BACK = {name: size for name, size in _WINDOWS.items() if size > 1}
# Rules that compare with the start of a run, or with its best, read these.
_REMEMBERED = tuple(m.name for m in (metrics.POLICY_ENTROPY, metrics.STD, metrics.EP_REW_MEAN, metrics.RET_STD))
_WALL_CLOCK = "time/"  # differs from process to process, so it is no state of a run


@cache
def _registered(name: str) -> str:
    metric = find(name)
    return name if metric is None else metric.name


@dataclass
class _State:
    """Of one rule: updates in a row in which it held, and since when it has been quiet after it fired."""

    streak: int = 0
    since: int = 0  # the update in which the streak began
    fired: bool = False  # and not yet armed again
    ever: bool = False
    quiet: int = 0


class Monitor:
    """Owns the history that rules look at; `judge` takes in the numbers of an update and returns what is wrong."""

    def __init__(self) -> None:
        self.thresholds: dict[str, float] = {}  # other than the table's
        self.off: frozenset[str] = frozenset()
        self.alerts: list[Alert] = []
        self._past: dict[str, deque[float]] = {}
        self._first: dict[str, float] = {}
        self._peak: dict[str, float] = {}
        self._states = {name: _State() for name in RULES}
        self._pending: dict[str, float] = {}

    def configure(self, thresholds: Mapping[str, float], off: frozenset[str]) -> None:
        """Other thresholds than the table's, and the rules that are silent; from the next update on."""
        self.thresholds, self.off = dict(thresholds), off

    def threshold(self, rule: Rule) -> float:
        return self.thresholds.get(rule.name, rule.threshold)

    def note(self, numbers: Mapping[Metric, float]) -> None:
        """Numbers that others measured between two updates: they are judged with the next."""
        self._pending |= {metric.name: float(value) for metric, value in numbers.items()}

    @property
    def pending(self) -> dict[str, float]:
        """What was noted and is not judged yet, by name."""
        return dict(self._pending)

    def judge(self, numbers: Mapping[Metric, float], facts: Facts) -> tuple[Numbers, list[Alert]]:
        """The series of the rules, 0 or 1, and the alerts of this update, the gravest first."""
        history = self._history({metric.name: float(value) for metric, value in numbers.items()}, facts)
        series: Numbers = {}
        fired: list[Alert] = []
        for rule in RULES.values():
            reading = None if rule.judge is None else rule.judge(history)
            if reading is None or facts.update <= rule.warmup or facts.steps < rule.least:
                if rule.series is not None and any(metric.name in history.members for metric in rule.reads):
                    series[rule.series] = 0.0
                if self._states[rule.name].ever:
                    series[ALERT.of(rule=rule.name)] = 0.0
                continue
            holds = rule.holds(reading.value, self.threshold(rule))
            if rule.series is not None:
                series[rule.series] = float(holds)
            if rule.beside is not None:
                shown, source = rule.beside
                series[shown] = history.now.get(source.name, 0.0) if holds else 0.0
            if rule.name not in self.off and self._step(rule, holds, facts.update):
                fired.append(self._alert(rule, reading, facts.update))
            state = self._states[rule.name]
            if state.ever:
                series[ALERT.of(rule=rule.name)] = float(state.streak >= rule.persistence)
        fired.sort(key=lambda alert: ("error", "warn", "info").index(alert.severity))
        self.alerts += fired
        return series, fired

    def raised(self, name: str, error: Exception, update: int) -> Alert:
        """The alert of an error that stopped training."""
        return self.say(name, " ".join(str(error).split()), update)

    def say(self, name: str, message: str, update: int) -> Alert:
        """An alert of a rule that judges no number."""
        rule = RULES[name]
        alert = Alert(name, rule.severity, update, "", 1.0, self.threshold(rule), message, rule.cause, rule.remedy)
        self.alerts.append(alert)
        return alert

    def forget(self, metric: Metric) -> None:
        """What follows is not comparable with what was measured of it before."""
        self._past.pop(metric.name, None)

    def restart(self) -> None:
        """Training went back: what was seen since is void, but that it was seen."""
        for state in self._states.values():
            state.streak, state.since, state.fired, state.quiet = 0, 0, False, 0
        self._past.clear()
        self._pending.clear()

    @property
    def error_lasts(self) -> bool:
        """Whether a rule of the gravest kind holds, whether or not it was told again."""
        errors = (rule for rule in RULES.values() if rule.severity == "error" and rule.judge is not None)
        return any(self._states[rule.name].streak >= rule.persistence for rule in errors)

    def since(self, alert: Alert) -> int:
        """The update in which what the alert tells of was first there."""
        return self._states[alert.name].since or alert.update

    def _history(self, now: dict[str, float], facts: Facts) -> History:
        now, self._pending = self._pending | now, {}
        members: dict[str, list[str]] = {}
        for name in now:
            members.setdefault(_registered(name), []).append(name)
        for name, size in _LOOKED_BACK.items():
            if name in now:
                self._past.setdefault(name, deque(maxlen=size)).append(now[name])
        for name in _REMEMBERED:
            if name in now:
                self._first.setdefault(name, now[name])
                self._peak[name] = max(self._peak.get(name, now[name]), now[name])
        return History(
            now=now,
            members={name: tuple(found) for name, found in members.items()},
            past={name: tuple(values) for name, values in self._past.items()},
            first=self._first,
            peak=self._peak,
            facts=facts,
        )

    def _step(self, rule: Rule, holds: bool, update: int) -> bool:
        """Count; whether it fires now."""
        state = self._states[rule.name]
        if not holds:
            state.streak = 0
            if state.fired:
                state.quiet += 1
                if state.quiet >= rule.rearm:
                    state.fired, state.quiet = False, 0
            return False
        state.quiet = 0
        state.streak += 1
        if state.streak == 1:
            state.since = update
        if state.fired or state.streak < rule.persistence:
            return False
        state.fired = state.ever = True
        return True

    def _alert(self, rule: Rule, reading: Reading, update: int) -> Alert:
        threshold, state = self.threshold(rule), self._states[rule.name]
        since = "" if state.streak == 1 else f" since update {state.since}"
        message = f"{rule.what}: {reading.metric} gives {reading.value:.4g}, {rule.fires} {threshold:g}{since}"
        return Alert(
            rule.name, rule.severity, update, reading.metric, reading.value, threshold, message, rule.cause, rule.remedy
        )

    def state_dict(self) -> dict[str, Any]:
        """What an exact resume needs: alerts that were raised, and how near the rules are to firing."""
        return {
            "alerts": [alert.as_dict() for alert in self.alerts],
            "past": {name: list(values) for name, values in self._past.items() if not name.startswith(_WALL_CLOCK)},
            "first": dict(self._first),
            "peak": dict(self._peak),
            "rules": {
                name: [state.streak, state.since, state.fired, state.ever, state.quiet]
                for name, state in self._states.items()
                if state != _State() and not any(read.name.startswith(_WALL_CLOCK) for read in RULES[name].reads)
            },
            "pending": dict(self._pending),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.alerts[:] = [Alert.from_dict(alert) for alert in state["alerts"]]
        self._past = {
            name: deque((float(value) for value in values), maxlen=_LOOKED_BACK[name])
            for name, values in state["past"].items()
            if name in _LOOKED_BACK
        }
        self._first, self._peak, self._pending = dict(state["first"]), dict(state["peak"]), dict(state["pending"])
        kept = {name: _State(*values) for name, values in state["rules"].items() if name in RULES}
        self._states = {name: kept.get(name, _State()) for name in RULES}

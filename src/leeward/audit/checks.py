"""How checks run: each says which parts of its subject it needs, and what cannot be had is the reason it does not run.

Parts are made when first asked for, and kept; so is the reason why one cannot be made.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from leeward.audit.findings import Audit, Fault, Finding, NotRun
from leeward.errors import EnvironmentFault, LeewardError, TrainingDiverged, one_line

__all__ = ["CannotRun", "Check", "Parts", "reason", "run_checks"]

# What reading a damaged file, or driving a model that a file spoiled, can raise. It is told, not swallowed.
_TROUBLE = (
    LeewardError, OSError, ValueError, TypeError, LookupError, AttributeError, ArithmeticError, RuntimeError,
    AssertionError, MemoryError, EOFError,
)  # fmt: skip
# What a learner says when it cannot go on from here: not a fault of the audit.
_STOPPED = (TrainingDiverged, EnvironmentFault)


class CannotRun(Exception):
    """A part is not there, or a check has nothing to look at; the message says why."""


class _Stopped(CannotRun):
    """A part is not there because the learner or its env cannot go on: that is itself something to tell."""


class Parts:
    """What there is to look at, by name; `makers` make each part, the others given."""

    def __init__(self, makers: Mapping[str, Callable[["Parts"], Any]]) -> None:
        self._makers = dict(makers)
        self._made: dict[str, Any] = {}
        self._missing: dict[str, CannotRun] = {}
        self._told: set[str] = set()

    def get(self, name: str) -> Any:
        """The part, or `CannotRun` with the reason."""
        if name in self._missing:
            raise self._missing[name]
        if name not in self._made:
            try:
                self._made[name] = self._makers[name](self)
            except CannotRun as error:
                self._missing[name] = error
                raise
            except _TROUBLE as error:
                kind = _Stopped if isinstance(error, _STOPPED) else CannotRun
                self._missing[name] = kind(reason(error))
                raise self._missing[name] from error
        return self._made[name]

    def is_news(self, words: str) -> bool:
        """Whether this was not told before."""
        new = words not in self._told
        self._told.add(words)
        return new


@dataclass(frozen=True)
class Check:
    """One question. `find` is given the parts it needs, and gives what is wrong; nothing means that it passed."""

    name: str
    question: str
    needs: tuple[str, ...]
    find: Callable[..., Iterable[Fault]]


def run_checks(checks: Sequence[Check], parts: Parts, progress: Callable[[str], None] = lambda name: None) -> Audit:
    """Every check that can run; `progress` is told which one is at work."""
    total = Audit(questions={check.name: check.question for check in checks})
    for check in checks:
        progress(check.name)
        total += _run(check, parts)
    return total


def _run(check: Check, parts: Parts) -> Audit:
    try:
        given = [parts.get(name) for name in check.needs]
        faults = list(check.find(*given))
    except CannotRun as error:
        if not isinstance(error, _Stopped) or not parts.is_news(str(error)):
            return Audit(not_run=(NotRun(check.name, str(error)),))
        faults = [_stopped(error)]
    except _STOPPED as error:
        faults = [_stopped(error)]
    except _TROUBLE as error:
        return Audit(not_run=(NotRun(check.name, reason(error)),))
    if not faults:
        return Audit(passed=(check.name,))
    return Audit(findings=tuple(Finding(check.name, f.severity, f.title, f.detail, f.remedy) for f in faults))


def _stopped(error: Exception) -> Fault:
    return Fault(
        "critical",
        "Training cannot go on from here",
        one_line(error),
        "Look at what the message names: an env that gives what is no number, or weights that have left all bounds.",
    )


def reason(error: BaseException) -> str:
    """An error as a reason: its own words, and its class where it is not one of ours."""
    return one_line(error) if isinstance(error, LeewardError) else f"{type(error).__name__}: {one_line(error)}"

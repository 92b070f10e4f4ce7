"""The fault gallery as a table: `python -m tools.faults [WORD ...]`.

Each fault is put into a real run. Before any rule looks, the first update is found at which its stated quantity leaves
the range of five healthy twins; from there it is counted until an alert names the fault. Then, with the fault still in
the process, the audit looks at the model: at its alerts, and by checks of its own.
"""

import math
import sys
import tempfile
from collections.abc import Sequence
from functools import cache
from pathlib import Path

from tests.support.faults import FAULTS, Fault, Story, train
from tests.support.market_faults import MARKET_FAULTS, MarketFault, audited

from leeward.audit import Audit, model
from leeward.telemetry.rules import RULES

__all__ = ["first_shown", "main"]

_TWINS = 5
_QUICK = 3  # updates of persistence


@cache
def _twins(setup: str, updates: int) -> tuple[Story, ...]:
    settings = next(each for fault in FAULTS for each in (fault.setup, fault.twin) if repr(each) == setup)
    assert settings is not None
    return tuple(train(None, settings, updates, seed=100 + i) for i in range(_TWINS))


def first_shown(fault: Fault, story: Story, twins: Sequence[Story]) -> int | None:
    """The first update at which the quantity is outside of what healthy twins have in theirs; None: it never is."""
    if not fault.shows_in:
        return fault.at  # the round ended by an error
    for update, row in enumerate(story.numbers, 1):
        healthy = [
            each.numbers[update - 1][fault.shows_in] for each in twins if fault.shows_in in each.numbers[update - 1]
        ]
        value = row.get(fault.shows_in)
        if update < fault.at or value is None:
            continue
        if not healthy or not min(healthy) <= value <= max(healthy):
            return update
    return None


def _checks(audit: Audit) -> list[str]:
    """The audit's own checks that found something, its list of alerts aside."""
    return list(dict.fromkeys(finding.check for finding in audit.findings if finding.check != "alerts"))


def _is_told(audit: Audit, names: Sequence[str]) -> bool:
    """Whether an alert of one of these names is among the findings, with its story."""
    titles = [finding.title for finding in audit.findings if finding.check == "alerts"]
    return any(title.startswith(f"Alert {name}:") for title in titles for name in names)


@cache
def _of_healthy(setup: str, updates: int) -> tuple[str, ...]:
    """What the audit's own checks find in a healthy twin."""
    settings = next(fault.setup for fault in FAULTS if repr(fault.setup) == setup)
    return tuple(_checks(train(None, settings, updates, look=model).found))


class _Table:
    """Lines as they come, and the counts below them."""

    def __init__(self) -> None:
        self.waits: list[float] = []
        self.slow = self.by_audit = self.by_checks = self.n = 0

    def say(self, line: str) -> None:
        sys.stdout.write(f"{line}\n")
        sys.stdout.flush()

    def add(self, fault: Fault) -> None:
        story = train(fault, fault.setup, fault.updates, look=model)
        setup = fault.setup if fault.twin is None else fault.twin
        shown = first_shown(fault, story, _twins(repr(setup), fault.updates))
        named = next((alert for alert in story.alerts if alert.name in fault.alerts), None)
        usual = _of_healthy(repr(fault.setup), fault.updates) if fault.at > 1 else ()
        checks = [check for check in _checks(story.found) if check not in usual]
        told = _is_told(story.found, fault.alerts)
        self.n, self.by_audit, self.by_checks = self.n + 1, self.by_audit + told, self.by_checks + bool(checks)
        if named is not None and RULES[named.name].persistence > _QUICK:
            self.slow += 1  # such a rule is counted apart
        else:
            self.waits.append(math.inf if named is None or shown is None else named.update - shown)
        cells = (
            fault.name, fault.shows_in or "an error", shown or "–", named.update if named else "–",
            named.name if named else "NOTHING", "yes" if told else "NO", ", ".join(checks) or "–",
        )  # fmt: skip
        self.say(f"| {' | '.join(str(cell) for cell in cells)} |")

    def add_market(self, fault: MarketFault) -> None:
        with tempfile.TemporaryDirectory() as folder:
            found = audited(fault, Path(folder) / "run")
        checks = [check for check in _checks(found) if check in fault.checks]
        told = bool(checks) or _is_told(found, fault.alerts)
        self.n, self.by_audit, self.by_checks = self.n + 1, self.by_audit + told, self.by_checks + bool(checks)
        self.say(f"| {fault.name} | the run | – | – | – | {'yes' if told else 'NO'} | {', '.join(checks) or '–'} |")


def main(words: list[str]) -> None:
    """Print the table, and how many faults were named within 1 update and within 3, and by the audit."""
    table = _Table()
    table.say("| fault | shows in | from update | named in | by | by the audit | by which of its own checks |")
    table.say("|---|---|---|---|---|---|---|")
    for fault in FAULTS:
        if all(word in fault.name for word in words):
            table.add(fault)
    for market_fault in MARKET_FAULTS:
        if all(word in market_fault.name for word in words):
            table.add_market(market_fault)
    table.say("")
    for most in (1, 3):
        count = sum(wait <= most for wait in table.waits)
        table.say(f"Named within {most} of the first update that shows it: {count} of {len(table.waits)}.")
    table.say(f"Named by a rule that waits longer than {_QUICK} updates, counted apart: {table.slow}.")
    table.say(f"Named by the audit in the same process: {table.by_audit} of {table.n}; its own checks found something")
    table.say(f"that healthy twins have not, alerts aside, in {table.by_checks}.")


if __name__ == "__main__":
    main(sys.argv[1:])

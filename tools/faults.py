"""The fault gallery as a table: `python -m tools.faults [WORD ...]`.

Each fault is put into a real run. Before any rule looks, the first update is found at which its stated quantity leaves
the range of five healthy twins; from there it is counted until an alert names the fault.
"""

import math
import sys
from collections.abc import Sequence
from functools import cache

from tests.support.faults import FAULTS, Fault, Story, train

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


def main(words: list[str]) -> None:
    """Print the table, and how many faults were named within 1 update and within 3."""
    chosen = [fault for fault in FAULTS if all(word in fault.name for word in words)]
    sys.stdout.write(f"{'fault':44} {'shows in':36} {'from':>5} {'named':>5}  by\n")
    waits: list[float] = []
    slow = 0
    for fault in chosen:
        story = train(fault, fault.setup, fault.updates)
        setup = fault.setup if fault.twin is None else fault.twin
        shown = first_shown(fault, story, _twins(repr(setup), fault.updates))
        named = next((alert for alert in story.alerts if alert.name in fault.alerts), None)
        from_, at = "–" if shown is None else str(shown), "–" if named is None else str(named.update)
        by = "NOTHING" if named is None else named.name
        sys.stdout.write(f"{fault.name:44} {fault.shows_in or 'an error':36} {from_:>5} {at:>5}  {by}\n")
        sys.stdout.flush()
        if named is not None and RULES[named.name].persistence > _QUICK:
            slow += 1  # such a rule is counted apart
            continue
        waits.append(math.inf if named is None or shown is None else named.update - shown)
    for most in (1, 3):
        count = sum(wait <= most for wait in waits)
        sys.stdout.write(f"named within {most} of the first that shows: {count} of {len(waits)}\n")
    sys.stdout.write(f"named by a rule that waits longer than {_QUICK} updates, counted apart: {slow}\n")


if __name__ == "__main__":
    main(sys.argv[1:])

"""The fault gallery as a table: `python -m tools.faults [WORD ...]`.

Each fault is put into a real run. Before any rule looks, the first update is found at which its stated quantity leaves
the range of five healthy twins; from there it is counted until an alert names the fault.
"""

import math
import sys
from collections.abc import Iterable
from functools import cache

from tests.support.faults import FAULTS, Fault, Story, train

__all__ = ["first_shown", "main"]

_TWINS = 5


@cache
def _twins(setup: str, updates: int) -> tuple[Story, ...]:
    settings = next(fault.setup for fault in FAULTS if repr(fault.setup) == setup)
    return tuple(train(None, settings, updates, seed=100 + i) for i in range(_TWINS))


def first_shown(fault: Fault, story: Story, twins: Iterable[Story]) -> int | None:
    """The first update at which the quantity is outside of what healthy twins had up to the end; None: it never is."""
    if not fault.shows_in:
        return fault.at  # the round ended by an error
    healthy = [row[fault.shows_in] for twin in twins for row in twin.numbers if fault.shows_in in row]
    low, high = (min(healthy), max(healthy)) if healthy else (math.inf, -math.inf)
    for update, row in enumerate(story.numbers, 1):
        value = row.get(fault.shows_in)
        if update >= fault.at and value is not None and not low <= value <= high:
            return update
    return None


def main(words: list[str]) -> None:
    """Print the table, and how many faults were named within 1 update and within 3."""
    chosen = [fault for fault in FAULTS if all(word in fault.name for word in words)]
    sys.stdout.write(f"{'fault':44} {'shows in':36} {'from':>5} {'named':>5}  by\n")
    waits: list[float] = []
    for fault in chosen:
        story = train(fault, fault.setup, fault.updates)
        # A fault that is there from the start has no healthy twin of its own settings: the plain one is it.
        setup = {} if fault.at == 1 else fault.setup
        shown = first_shown(fault, story, _twins(repr(setup), fault.updates))
        named = next((alert for alert in story.alerts if alert.name in fault.alerts), None)
        from_, at = "–" if shown is None else str(shown), "–" if named is None else str(named.update)
        by = "NOTHING" if named is None else named.name
        sys.stdout.write(f"{fault.name:44} {fault.shows_in or 'an error':36} {from_:>5} {at:>5}  {by}\n")
        sys.stdout.flush()
        waits.append(math.inf if named is None or shown is None else named.update - shown)
    for most in (1, 3):
        count = sum(wait <= most for wait in waits)
        sys.stdout.write(f"named within {most} of the first that shows: {count} of {len(waits)}\n")


if __name__ == "__main__":
    main(sys.argv[1:])

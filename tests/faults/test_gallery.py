"""Every fault of the gallery is put into a real run; the alert that names it comes in time, and not without the fault.

`make faults` prints the table: when each fault first showed beside healthy twins, and when it was named.
"""

import json
from functools import cache
from typing import Any

import pytest

from ..support.faults import FAULTS, Fault, Story, train


@cache
def healthy(setup: str, updates: int) -> Story:
    return train(None, _settings(setup), updates)


def _settings(setup: str) -> dict[str, Any]:
    return next(fault.setup for fault in FAULTS if repr(fault.setup) == setup)


def named(story: Story, fault: Fault) -> list[int]:
    """The updates in which an alert named the fault."""
    return [alert.update for alert in story.alerts if alert.name in fault.alerts]


@pytest.mark.parametrize("fault", FAULTS, ids=repr)
def test_a_fault_is_named_in_time(fault: Fault) -> None:
    story = train(fault, fault.setup, fault.updates)
    found = named(story, fault)
    told = json.dumps([(alert.name, alert.update, alert.value) for alert in story.alerts])
    assert found, f"nothing named it: {told}; {story.error}"
    assert fault.at <= found[0] <= fault.at + fault.within, told


@pytest.mark.parametrize("fault", [fault for fault in FAULTS if fault.at > 1], ids=repr)
def test_its_healthy_twin_hears_nothing(fault: Fault) -> None:
    story = healthy(repr(fault.setup), fault.updates)
    assert story.error == ""
    assert [alert.line for alert in story.alerts if alert.severity != "info"] == []


def test_there_are_thirty_faults_of_different_kinds() -> None:
    assert len({fault.name for fault in FAULTS}) == len(FAULTS) >= 30

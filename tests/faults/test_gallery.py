"""Every fault of the gallery is put into a real run; the alert that names it comes in time, and not without the fault.

`make faults` prints the table: when each fault first showed beside healthy twins, and when it was named.
"""

import json
from functools import cache
from pathlib import Path
from typing import Any

import pytest

import leeward.audit

from ..support.faults import FAULTS, Fault, Story, train
from ..support.market_faults import MARKET_FAULTS, MarketFault, audited


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


@pytest.mark.parametrize("fault", MARKET_FAULTS, ids=repr)
def test_a_fault_of_a_market_is_named_by_the_audit_in_the_same_process(fault: MarketFault, tmp_path: Path) -> None:
    found = audited(fault, tmp_path / "run").findings
    assert {finding.check for finding in found} & set(fault.checks), found
    alerts = {finding.title.partition(":")[0].removeprefix("Alert ") for finding in found if finding.check == "alerts"}
    assert not fault.alerts or alerts & set(fault.alerts), alerts


def test_what_was_told_in_training_is_told_by_the_audit_of_a_model() -> None:
    fault = next(fault for fault in FAULTS if fault.name == "time limit treated as an end")
    audit = train(fault, fault.setup, fault.updates, look=leeward.audit.model).found
    titles = [finding.title for finding in audit.findings if finding.check == "alerts"]
    assert "Alert time_limit_as_end" in [title.partition(":")[0] for title in titles]
    assert "rollout" in {finding.check for finding in audit.findings}, "and its own check sees the same"
    healthy = train(None, fault.setup, fault.updates, look=leeward.audit.model).found
    assert healthy.findings == () and "alerts" in healthy.passed


def test_there_are_thirty_faults_of_different_kinds() -> None:
    assert len({fault.name for fault in FAULTS}) == len(FAULTS) >= 30

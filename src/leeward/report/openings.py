"""What a reader of the report must know about the seal, from the record in run.json."""

from collections.abc import Mapping
from typing import Any

__all__ = ["openings_list", "seal_sentence"]


def seal_sentence(run: Mapping[str, Any], judged: str) -> str:
    """How often the test bars had been looked at; empty where nobody kept count."""
    if not isinstance(run.get("openings"), list):
        return ""
    entries = _entries(run)
    bars = "these bars" if judged == "test" else "its test bars"
    if not entries:
        return f"No opening of {bars} is on the record." if judged == "test" else "The test split is sealed."
    # An entry counts what came before it, this run's own openings among them.
    beside = entries[-1].get("earlier", 0) - (len(entries) - 1)
    others = f", and runs beside it {_times(beside)} by then" if beside > 0 else ""
    worth = ": the more often, the less a result on them is worth" if len(entries) + max(beside, 0) > 1 else ""
    return f"This run has opened {bars} {_times(len(entries))}{others}{worth}."


def openings_list(run: Mapping[str, Any]) -> str:
    """Every opening: when, under what name, and how many had been before."""
    shown = (f"{e.get('time')} ({e.get('split')}, {e.get('earlier', 'unknown')} before)" for e in _entries(run))
    return ", ".join(shown) or "none"


def _entries(run: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Of the bars the run was trained on."""
    openings = run.get("openings")
    found = openings if isinstance(openings, list) else []
    return [e for e in found if isinstance(e, dict) and e.get("data") == run.get("data_fingerprint")]


def _times(count: int) -> str:
    return {1: "once", 2: "twice"}.get(count, f"{count} times")

"""Every alert that fired while a model was trained, with its story."""

from collections.abc import Iterator
from typing import Any

from leeward.audit.findings import Fault, Severity
from leeward.telemetry.alerts import AlertRecord

__all__ = ["alerts_tell"]

_OF_ALERT: dict[str, Severity] = {"error": "high", "warn": "medium", "info": "low"}
_WORST = ("info", "warn", "error")


def alerts_tell(alerts: list[AlertRecord]) -> Iterator[Fault]:
    """Every alert that fired, as one finding with its story."""
    by_name: dict[str, list[AlertRecord]] = {}
    for alert in alerts:
        by_name.setdefault(str(alert.get("name", alert.get("metric", "?"))), []).append(alert)
    for name, fired in by_name.items():
        worst = max(fired, key=lambda alert: _rank(alert))
        updates = sorted(int(alert["update"]) for alert in fired if isinstance(alert.get("update"), int | float))
        when = f"at update {updates[0]}" if updates else "at an unknown update"
        if len(fired) > 1 and updates:
            when = f"{len(fired)} times, from update {updates[0]} to {updates[-1]}"
        value, threshold = worst.get("value"), worst.get("threshold")
        measured = f" {worst.get('metric', '?')} was {_number(value)}, its threshold is {_number(threshold)}."
        yield Fault(
            _OF_ALERT.get(str(worst.get("severity")), "medium"),
            f"Alert {name}: {worst.get('message', 'it fired')}",
            f"It fired {when}.{measured if worst.get('metric') and value is not None else ''} Likely cause: "
            f"{worst.get('cause') or 'not stated'}.",
            str(worst.get("remedy") or "See docs/metrics.md."),
        )


def _rank(alert: AlertRecord) -> int:
    severity = str(alert.get("severity"))
    return _WORST.index(severity) if severity in _WORST else 1


def _number(value: Any) -> str:
    return f"{value:.4g}" if isinstance(value, int | float) else str(value)

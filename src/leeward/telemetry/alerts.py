"""What a health rule says when it fires: one frozen record, and its form as a line of `alerts.jsonl`."""

import json
import logging
import math
import sys
from dataclasses import asdict, dataclass
from typing import Any, Literal

__all__ = ["Alert", "AlertRecord", "Severity", "announce"]

AlertRecord = dict[str, Any]  # an alert as a file has it; one of another version may have other keys

Severity = Literal["info", "warn", "error"]


@dataclass(frozen=True)
class Alert:
    """One alert: what was seen, since when it may matter, why it may be so, and what to try."""

    name: str  # of the rule
    severity: Severity
    update: int  # the first is 1
    metric: str  # the number that was judged; empty where training stopped by an error
    value: float
    threshold: float
    message: str
    cause: str
    remedy: str

    @property
    def line(self) -> str:
        """For a console: what, and what to try."""
        return (
            f"{self.severity}: {self.name}, update {self.update}: {self.message}. Likely: {self.cause}. "
            f"Try: {self.remedy} (leeward explain {self.name})"
        )

    def as_dict(self) -> dict[str, Any]:
        """Plain data; JSON has no number that is not finite, so such a value becomes null."""
        return {key: None if _is_nonfinite(value) else value for key, value in asdict(self).items()}

    def as_json(self) -> str:
        return json.dumps(self.as_dict(), ensure_ascii=False)

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> "Alert":
        """What `as_dict` gave; null becomes NaN again."""
        numbers = {key: math.nan if values[key] is None else float(values[key]) for key in ("value", "threshold")}
        return cls(**(values | numbers))


def _is_nonfinite(value: Any) -> bool:
    return isinstance(value, float) and not math.isfinite(value)


_LEVELS = {"info": logging.INFO, "warn": logging.WARNING, "error": logging.ERROR}


def announce(alert: Alert, *, verbose: int = 0) -> None:
    """One line: on stdout for who asked for numbers there, else by the logger `leeward`, which shows warnings and
    errors on stderr unless somebody has configured it otherwise."""
    if verbose > 0:
        sys.stdout.write(f"{alert.line}\n")
    else:
        logging.getLogger("leeward").log(_LEVELS[alert.severity], alert.line)

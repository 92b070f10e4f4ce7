"""population.jsonl: one JSON object an event, on the disk before anybody acts on it."""

import json
import os
from pathlib import Path
from typing import Any

from leeward.durable import naming, write_atomically
from leeward.errors import RunDirectoryError

__all__ = ["FILE", "EventLog", "read_events"]

FILE = "population.jsonl"
Event = dict[str, Any]


class EventLog:
    """Appends events; what a process that was killed inside its last line left of it is cut off first."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.events = read_events(path)
        if path.is_file() and not path.read_bytes().endswith(b"\n"):
            write_atomically(path, "".join(_line(event) for event in self.events))

    def write(self, event: str, **values: Any) -> None:
        entry = {"event": event, **values}
        with naming(self.path), self.path.open("a", encoding="utf-8") as file:
            file.write(_line(entry))
            file.flush()
            os.fsync(file.fileno())
        self.events.append(entry)


def read_events(path: Path) -> list[Event]:
    """Every whole line."""
    if not path.is_file():
        return []
    *lines, _ = path.read_text(encoding="utf-8").split("\n")
    return [_event(path, number, line) for number, line in enumerate(lines, start=1)]


def _event(path: Path, number: int, line: str) -> Event:
    try:
        event = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise RunDirectoryError(f"{path} line {number}: not JSON ({error}); restore the file from a copy") from None
    if not isinstance(event, dict) or not isinstance(event.get("event"), str):
        raise RunDirectoryError(f"{path} line {number}: expected an object with 'event', got {line:.80}")
    return event


def _line(event: Event) -> str:
    return json.dumps(event, ensure_ascii=False, allow_nan=False) + "\n"

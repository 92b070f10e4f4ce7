"""population.jsonl: one JSON object an event, on the disk before anybody acts on it."""

import json
import os
from pathlib import Path
from typing import Any

from leeward.durable import naming, read_lines, write_atomically
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
    events = read_lines(path) if path.is_file() else []
    for event in events:
        if not isinstance(event.get("event"), str):
            raise RunDirectoryError(f"{path}: expected objects with 'event', got {event!r:.80}; restore it from a copy")
    return events


def _line(event: Event) -> str:
    return json.dumps(event, ensure_ascii=False, allow_nan=False) + "\n"

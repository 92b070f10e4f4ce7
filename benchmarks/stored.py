"""Runs that are kept as lines of JSON: each is found by its key, and made when it is missing."""

import argparse
import json
import statistics
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import torch

__all__ = ["Stored", "command_line", "median_and_range"]

Row = dict[str, Any]


class Stored:
    """The lines of a file; a key is a part of a line that no other line has. `seconds` are of CPU time."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.rows: list[Row] = [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []

    def find(self, **key: Any) -> Row | None:
        return next((row for row in self.rows if key.items() <= row.items()), None)

    def get(self, **key: Any) -> Row:
        row = self.find(**key)
        if row is None:
            raise SystemExit(f"no run of {key} in {self.path.name}; use --all")
        return row

    def ensure(self, make: Callable[[], Row], **key: Any) -> None:
        """Make the run of this key and append its line, unless there is one."""
        if self.find(**key) is not None:
            return
        begin = time.process_time()
        made = make()
        row = key | {"seconds": round(time.process_time() - begin, 1)} | made
        with self.path.open("a") as file:
            file.write(json.dumps(row) + "\n")
        self.rows.append(row)
        print(key, f"{row['seconds']} s", flush=True)


def median_and_range(values: Iterable[float], form: str = ".0%") -> str:
    values = list(values)
    return f"{statistics.median(values):{form}} ({min(values):{form}} … {max(values):{form}})"


def command_line(
    description: str | None, table: Callable[[], str], path: Path, actions: dict[str, Callable[[], None]]
) -> None:
    """Do the actions whose names are given (`--all` ...); `--table` prints the table, `--write` also stores it."""
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name in (*actions, "table", "write"):
        parser.add_argument(f"--{name}", action="store_true", dest=name)
    options = vars(parser.parse_args())
    torch.set_num_threads(1)
    for name, action in actions.items():
        if options[name]:
            action()
    if options["table"]:
        print(table())
        if options["write"]:
            path.write_text(table(), encoding="utf-8")

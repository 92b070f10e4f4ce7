"""One thing that is wrong with a file of bars, and how a list of them is shown."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from leeward.errors import DataError

__all__ = ["MOST_PER_KIND", "Problem", "limited", "raise_on_errors"]

MOST_PER_KIND = 20


@dataclass(frozen=True)
class Problem:
    """A fault; a note says what was guessed or left out.

    `row` is the line of a text file (header = 1) or the 1-based row of a frame; None: the whole file.
    """

    row: int | None
    kind: str
    message: str
    severity: Literal["error", "warning", "note"] = "error"
    where: str = ""

    def __str__(self) -> str:
        return f"{self.place}: {self.severity}: {self.kind}: {self.message}"

    @property
    def place(self) -> str:
        return self.where if self.row is None else f"{self.where} row {self.row}"


def limited(problems: Sequence[Problem], most: int = MOST_PER_KIND) -> list[Problem]:
    """In order of rows, at most `most` of each kind (and file), then one line with the count of the rest."""
    kinds = Counter((p.where, p.kind) for p in problems)
    shown: list[Problem] = []
    for where, kind in kinds:
        same = sorted((p for p in problems if (p.where, p.kind) == (where, kind)), key=lambda p: p.row or 0)
        shown += same[:most]
        if len(same) > most:
            shown.append(Problem(None, kind, f"and {len(same) - most} more of this kind", same[most].severity, where))
    return shown


def raise_on_errors(problems: Sequence[Problem], listed: str, most: int = 5) -> None:
    """One DataError of the first error, if there is any, with the next as its notes; `listed` says where all are."""
    lines = [f"{p.place}: {p.kind}: {p.message}" for p in problems if p.severity == "error"]
    if not lines:
        return
    more = f" (and {len(lines) - 1} more: {listed})" if len(lines) > 1 else ""
    error = DataError(lines[0] + more)
    for line in lines[1:most]:
        error.add_note(line)
    raise error

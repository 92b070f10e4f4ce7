"""How a text file of bars is laid out: its separator, what stands before the header, and the header itself."""

import csv
import re
from collections import Counter
from dataclasses import dataclass

from leeward.market.column_names import with_blanks_apart

__all__ = ["Layout", "find_layout", "is_number"]

_SEPARATORS = "\t;|,"  # the first that cuts most lines alike; a decimal comma cuts them too, so the comma comes last
_SAMPLE_LINES = 60
_FIELDS = {"open", "high", "low", "close", "adj close", "volume"}
_LEVELS = {"price", "ticker", "ticker symbol", "attributes", "symbols", ""}


@dataclass(frozen=True)
class Layout:
    """Where the bars of a text file begin and what its columns are called."""

    separator: str
    first: int  # lines before the first bar
    names: tuple[str, ...] | tuple[tuple[str, ...], ...] | None  # field and ticker where there are two; None: no header
    before: str = ""  # what stands above the header, if anything does


def find_layout(head: str) -> Layout:
    """Read off the first lines of a file that is not empty."""
    lines = head.splitlines()[:_SAMPLE_LINES]
    separator = _separator(lines)
    rows = [next(csv.reader([line], delimiter=separator), []) for line in lines]
    usual = Counter(len(row) for row in rows if any(cell.strip() for cell in row)).most_common(1)[0][0]
    start = next(i for i, row in enumerate(rows) if len(row) == usual)
    before = " ".join(line.strip() for line in lines[:start] if line.strip())
    cells = [cell.strip() for cell in rows[start]]
    if len(cells) >= 5 and sum(map(_is_value, cells)) >= max(4, len(cells) - 2):
        return Layout(separator, start, None, before)
    below = [[cell.strip() for cell in row] for row in rows[start + 1 : start + 3]]
    if below and _is_two_level(cells, below[0]):
        # yfinance: field and ticker one above the other, and perhaps a line that only names the index.
        named = len(below) > 1 and not any(below[1][1:]) and bool(below[1][0])
        time = below[1][0] if named else "time"
        names = ((time, ""), *zip(cells[1:], below[0][1:], strict=True))
        return Layout(separator, start + 2 + named, names, before)
    return Layout(separator, start + 1, tuple(with_blanks_apart(rows[start])), before)


def _separator(lines: list[str]) -> str:
    for separator in _SEPARATORS:
        counts = Counter(line.count(separator) for line in lines if line.strip())
        number, times = counts.most_common(1)[0]
        if number >= 3 and times >= 0.8 * counts.total():
            return separator
    return max(_SEPARATORS[::-1], key=lines[0].count)


def _is_two_level(upper: list[str], lower: list[str]) -> bool:
    if len(upper) != len(lower) or {upper[0].lower(), lower[0].lower()} - _LEVELS:
        return False
    return any(len({cell.lower() for cell in level[1:]} & _FIELDS) >= 4 for level in (upper, lower))


def _is_value(cell: str) -> bool:
    """A number, a date or a clock."""
    return is_number(cell) or re.fullmatch(r"[\d.,/:TZ +-]{4,}", cell) is not None


def is_number(cell: str) -> bool:
    try:
        float(cell)
    except ValueError:
        return False
    return True

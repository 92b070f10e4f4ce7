"""Files as raw tables: text or Parquet, before anything is known about their columns.

The fast way is pandas' C parser. When something about the lines is odd (ragged rows, empty cells), the file is read
again line by line, so that every problem carries the line it stands on.
"""

import csv
import gzip
import io
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from leeward.errors import DataError, MissingExtra
from leeward.market.problems import Problem

__all__ = ["CCXT_COLUMNS", "Table", "read_file", "SUFFIXES"]

SUFFIXES = (".csv", ".csv.gz", ".txt", ".tsv", ".parquet", ".pq")
CCXT_COLUMNS = ("time", "open", "high", "low", "close", "volume")
_SNIFFED_BYTES = 1 << 16


@dataclass
class Table:
    """A raw table, the row number of each line, and what was already found wrong with it."""

    frame: pd.DataFrame
    rows: NDArray[np.int64]
    where: str
    problems: list[Problem] = field(default_factory=list)


def read_file(path: Path) -> Table:
    """Read one file. An unreadable one gives an empty table and a Problem that says why."""
    if not path.is_file():
        raise DataError(f"{path}: no such file; give a CSV or Parquet file, a directory of them, or sample:NAME")
    if path.suffix in (".parquet", ".pq"):
        return _read_parquet(path)
    with gzip.open(path, "rb") if path.suffix == ".gz" else path.open("rb") as stream:
        try:
            head = stream.read(_SNIFFED_BYTES)
        except gzip.BadGzipFile:
            return _unreadable(path, "binary", "ends in .gz but is not a gzip file")
    unreadable = _what_is_this(path, head)
    if unreadable:
        return unreadable
    return _read_text(path, head.decode("utf-8-sig", errors="ignore"))


def _what_is_this(path: Path, head: bytes) -> Table | None:
    if not head.strip():
        return _unreadable(path, "empty", "the file is empty; expected a header and one line per bar")
    if b"\0" in head:
        return _unreadable(path, "binary", "the file is binary; expected UTF-8 text or a .parquet file")
    try:
        # The cut may fall inside a character, which takes at most four bytes.
        head[: -4 if len(head) == _SNIFFED_BYTES else None].decode("utf-8-sig")
    except UnicodeDecodeError as error:
        if len(head) < _SNIFFED_BYTES or error.start < len(head) - 8:
            return _unreadable(path, "binary", f"byte {error.start} is not UTF-8 text; save the file as UTF-8")
    if head.decode("utf-8-sig", errors="ignore").lstrip()[:1] == "<":
        return _unreadable(path, "html", "the file is HTML or XML, perhaps a saved web page; download the CSV")
    return None


def _unreadable(path: Path, kind: str, message: str) -> Table:
    return Table(pd.DataFrame(), np.zeros(0, np.int64), str(path), [Problem(None, kind, message, where=str(path))])


def _read_text(path: Path, head: str) -> Table:
    first = head.splitlines()[0]
    separator = max(",;\t", key=first.count)
    cells = next(csv.reader([first], delimiter=separator))
    headerless = len(cells) >= 6 and all(_is_number(cell) for cell in cells[:6])
    names = [*CCXT_COLUMNS, *(f"column_{i}" for i in range(6, len(cells)))] if headerless else None
    try:
        frame = pd.read_csv(
            path, sep=separator, encoding="utf-8-sig", skip_blank_lines=False, names=names, low_memory=False
        )
    except (pd.errors.ParserError, UnicodeDecodeError, ValueError):
        return _read_lines(path, separator, names)
    if not isinstance(frame.index, pd.RangeIndex) or bool(frame.isna().to_numpy().any()):
        return _read_lines(path, separator, names)
    table = Table(frame, np.arange(len(frame), dtype=np.int64) + (1 if names else 2), str(path))
    return _finish_text(table, separator)


def _read_lines(path: Path, separator: str, names: list[str] | None) -> Table:
    """Line by line: cells stay text, rows with another number of cells are left out and named."""
    raw = gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
    try:
        text = raw.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        return _unreadable(path, "binary", f"byte {error.start} is not UTF-8 text; save the file as UTF-8")
    reader = csv.reader(io.StringIO(text), delimiter=separator)
    header = names or next(reader)
    kept: list[list[str]] = []
    rows: list[int] = []
    problems: list[Problem] = []
    for cells in reader:
        if not any(cell.strip() for cell in cells):
            continue
        if len(cells) != len(header):
            message = f"expected {len(header)} cells like the header, got {len(cells)}; correct or drop the line"
            problems.append(Problem(reader.line_num, "ragged row", message, where=str(path)))
            continue
        kept.append(cells)
        rows.append(reader.line_num)
    frame = pd.DataFrame(kept, columns=pd.Index(_distinct(header)), dtype=object)
    return _finish_text(Table(frame, np.asarray(rows, dtype=np.int64), str(path), problems), separator)


def _distinct(header: list[str]) -> list[str]:
    """Repeated names get a suffix, as pandas does, so that each column can be addressed."""
    seen: dict[str, int] = {}
    names = []
    for name in header:
        seen[name] = seen.get(name, -1) + 1
        names.append(f"{name}.{seen[name]}" if seen[name] else name)
    return names


def _finish_text(table: Table, separator: str) -> Table:
    if len(table.frame) == 0 and not table.problems:
        message = "the file has a header and no bar"
        table.problems.append(Problem(None, "header only", message, where=table.where))
    if separator == ";":
        for name in table.frame.columns:
            column = table.frame[name]
            if not pd.api.types.is_numeric_dtype(column) and column.astype(str).str.fullmatch(r"-?\d+,\d+").any():
                # 1,5 is 1.5 where cells are separated by semicolons.
                table.frame[name] = column.astype(str).str.replace(",", ".", regex=False)
    return table


def _read_parquet(path: Path) -> Table:
    try:
        import pyarrow
        import pyarrow.parquet
    except ImportError:
        raise MissingExtra("pyarrow", "parquet", f"reading {path}") from None
    try:
        frame = pyarrow.parquet.read_table(path).to_pandas()
    except (pyarrow.ArrowInvalid, OSError) as error:
        return _unreadable(path, "binary", f"not a readable Parquet file: {error}")
    return Table(frame, np.arange(1, len(frame) + 1, dtype=np.int64), str(path))


def _is_number(cell: str) -> bool:
    try:
        float(cell)
    except ValueError:
        return False
    return True

"""Files as raw tables: text, JSON, Parquet or Feather, before anything is known about their columns.

The fast way is pandas' C parser. When something about the lines is odd (ragged rows, empty cells), the file is read
again line by line, so that every problem carries the line it stands on.
"""

import codecs
import csv
import gzip
import io
import re
import tempfile
import zipfile
import zlib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from leeward.errors import DataError, one_line
from leeward.market import arrow_files
from leeward.market.arrow_files import EXPANSION, FEATHER, MOST_COLUMNS, PARQUET, REMEDY, arrow_frame, too_long
from leeward.market.column_names import find, is_of_assets, named_twice, price_of_ticker
from leeward.market.json_rows import json_frames
from leeward.market.layout import Layout, find_layout
from leeward.market.problems import Problem
from leeward.market.unnamed import name_columns

__all__ = ["CCXT_COLUMNS", "SUFFIXES", "Table", "UNREADABLE", "holds_bars", "read_file", "read_files", "within_bounds"]

SPREADSHEETS = (".xlsx", ".xls", ".ods")
TEXT = (".csv", ".txt", ".tsv", ".json", ".jsonl", ".ndjson")
SUFFIXES = (*TEXT, *(f"{suffix}.gz" for suffix in TEXT), ".zip", *PARQUET, *FEATHER)
CCXT_COLUMNS = ("time", "open", "high", "low", "close", "volume")
UNREADABLE = ("binary", "empty", "html")  # kinds of problems of a whole file, whatever it was meant to be
_SNIFFED_BYTES = 1 << 16
_ROOM = 1 << 26  # bytes that any file may have
_HOLLOW = "the file is made of holes, which are read as zeros; no file of bars is"
_TOO_LARGE = f"expands to more than {EXPANSION} times its size, or beyond all sizes of bars; no file of bars does"
_BLOCK = 1 << 24  # bytes of a text that are counted at a time
_JSON_CELLS = 6  # of a bar; each but the first of a list stands behind a comma


@dataclass
class Table:
    """A raw table, the row number of each line, and what was already found wrong with it."""

    frame: pd.DataFrame
    rows: NDArray[np.int64]
    where: str
    problems: list[Problem] = field(default_factory=list)
    decimal_comma: bool = False  # what 1,234 is, where nothing else tells

    def note(self, text: str) -> None:
        """Say what was guessed or left out."""
        self.problems.append(Problem(None, "read as", text, "note", self.where))


def read_files(path: Path, renamed: Mapping[str, str]) -> list[tuple[str, Table]]:
    """(name, table) of a file, or of each file in an archive; `renamed` is data.columns."""
    if path.suffix == ".zip" and path.is_file():
        return _read_zip(path, renamed)
    return [(_stem(path), read_file(path, renamed))]


def holds_bars(table: Table, renamed: Mapping[str, str]) -> bool:
    """Whether any column of prices, or a price per ticker, is in a table."""
    if table.frame.columns.nlevels == 2:
        return True
    frame = table.frame.loc[:, ~table.frame.columns.duplicated()]
    return bool({"open", "close"} & find(frame, renamed).keys()) or bool(price_of_ticker(frame, renamed))


def within_bounds(
    tables: Iterable[tuple[str, Table]], where: Path, renamed: Mapping[str, str]
) -> Iterator[tuple[str, Table]]:
    """The tables of a directory or an archive, for as long as all so far are no more than one file may be.

    Of one that holds no bars, and is left out, the first line is enough to say what it is.
    """
    rows = size = number = 0
    largest = (0, "")
    for name, table in tables:
        if not holds_bars(table, renamed):
            yield name, replace(table, frame=table.frame.head(1).copy(), rows=table.rows[:1])
            continue
        own = int(table.frame.memory_usage(index=False).sum())
        rows, size, number = rows + len(table.frame), size + own, number + 1
        largest = max(largest, (own, Path(table.where).name))
        if rows > arrow_files.MOST_ROWS or size > arrow_files.MOST_BYTES:
            raise DataError(
                f"{where}: {rows:,} rows, {size:,} bytes of them, in the first {number:,} files of bars, of which "
                f"{largest[1]} is the largest; all together have at most {arrow_files.MOST_ROWS:,} rows and "
                f"{arrow_files.MOST_BYTES:,} bytes: {REMEDY}"
            )
        yield name, table


def read_file(path: Path, renamed: Mapping[str, str]) -> Table:
    """Read one file. An unreadable one gives an empty table and a Problem that says why."""
    if not path.is_file():
        raise DataError(f"{path}: no such file; give a CSV or Parquet file, a directory of them, or sample:NAME")
    if _is_hollow(path):
        return _unreadable(path, "binary", _HOLLOW)
    if (size := path.stat().st_size) > arrow_files.MOST_BYTES:
        most = f"a file of bars has at most {arrow_files.MOST_BYTES:,}"
        return _unreadable(path, "binary", f"{size:,} bytes; {most}: {REMEDY}")
    if path.suffix in (*PARQUET, *FEATHER):
        return _read_arrow(path)
    try:
        if said := too_long(_most_rows(path)):
            return _unreadable(path, "binary", said)
        content = _expanded(path) if path.suffix == ".gz" else path.read_bytes()
    except (gzip.BadGzipFile, EOFError, zlib.error) as error:
        return _unreadable(path, "binary", f"ends in .gz but is not a whole gzip file ({error})")
    if content is None:
        return _unreadable(path, "binary", _TOO_LARGE)
    if content.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
        content = content.decode("utf-16", errors="replace").encode()  # as MetaTrader and Windows write "Unicode"
    head = content[:_SNIFFED_BYTES]
    unreadable = _what_is_this(path, head)
    if unreadable:
        return unreadable
    if _is_json(head):
        return _read_json(path, content)
    return _read_text(path, content, head.decode("utf-8-sig", errors="ignore"), renamed)


def _is_hollow(path: Path) -> bool:
    """Whether a file takes next to nothing of the disk: its holes are read as zeros, gigabytes of them."""
    about = path.stat()
    return about.st_size > EXPANSION * 512 * about.st_blocks + _ROOM


def _most_rows(path: Path) -> int:
    """How many rows a text has at most, counted before it is in memory: its lines, or of JSON, in which a bar may take
    many or none, its lists, its objects, or its cells by a bar's."""
    with gzip.open(path, "rb") if path.suffix == ".gz" else path.open("rb") as stream:
        is_json = _is_json(stream.read(_SNIFFED_BYTES))
        signs = (b"[", b"{", b",") if is_json else (b"\n", b"\r")
        stream.seek(0)
        counts = dict.fromkeys(signs, 0)
        for _ in range(0, _most_bytes(path), _BLOCK):
            block = stream.read(_BLOCK)
            counts = {sign: count + block.count(sign) for sign, count in counts.items()}
    if is_json:
        counts |= {b",": (counts[b","] + 1) // _JSON_CELLS, b"[": counts[b"["] - 1}  # the outermost is no row
    return max(counts.values())


def _is_json(head: bytes) -> bool:
    return head.lstrip(codecs.BOM_UTF8).lstrip()[:1] in (b"[", b"{")


def _expanded(path: Path) -> bytes | None:
    """The text of a gzip file; None for one that expands as no text of numbers does."""
    most = _most_bytes(path)
    with gzip.open(path, "rb") as stream:
        content = stream.read(most + 1)
    return content if len(content) <= most else None


def _most_bytes(path: Path) -> int:
    """What a compressed file of bars may expand to."""
    return min(EXPANSION * path.stat().st_size + _SNIFFED_BYTES, arrow_files.MOST_BYTES)


def _read_zip(path: Path, renamed: Mapping[str, str]) -> list[tuple[str, Table]]:
    """The files of bars in an archive: one as the exchanges hand them out, or one per asset as in a directory."""
    if _is_hollow(path):
        return [(_stem(path), _unreadable(path, "binary", _HOLLOW))]
    if not zipfile.is_zipfile(path):
        return [(_stem(path), _unreadable(path, "binary", "ends in .zip but is not a zip file"))]
    with zipfile.ZipFile(path) as archive:
        names = sorted(name for name in archive.namelist() if _is_of_bars(name))
        if not names:
            message = f"no bars in this archive; expected files ending in {', '.join(TEXT)}: unpack others"
            return [(_stem(path), _unreadable(path, "binary", message))]
        if sum(archive.getinfo(name).file_size for name in names) > _most_bytes(path):
            return [(_stem(path), _unreadable(path, "binary", _TOO_LARGE))]
        try:
            with tempfile.TemporaryDirectory() as folder:
                return list(within_bounds(_unpacked(archive, names, path, folder, renamed), path, renamed))
        except (zipfile.BadZipFile, zlib.error, EOFError, NotImplementedError, RuntimeError) as error:
            return [(_stem(path), _unreadable(path, "binary", f"ends in .zip but cannot be unpacked ({error})"))]


def _unpacked(
    archive: zipfile.ZipFile, names: list[str], path: Path, folder: str, renamed: Mapping[str, str]
) -> Iterator[tuple[str, Table]]:
    for name in names:
        table = read_file(Path(archive.extract(name, folder)), renamed)
        table.where = f"{path}:{name}"
        table.problems = [replace(problem, where=table.where) for problem in table.problems]
        yield _stem(path if len(names) == 1 else Path(name)), table


def _is_of_bars(name: str) -> bool:
    """Whether a file in an archive may hold bars: nothing hidden, none of a Mac's shadows, and nothing that expands by
    itself (a file a hundred times as large in one a hundred times as large)."""
    hidden = name.startswith("__MACOSX") or name.rpartition("/")[2].startswith(".")
    return name.endswith(TEXT) and not hidden


def _stem(path: Path) -> str:
    return path.name.removesuffix(".gz").rsplit(".", 1)[0]


def _what_is_this(path: Path, head: bytes) -> Table | None:
    if not head.removeprefix(codecs.BOM_UTF8).strip():
        return _unreadable(path, "empty", "the file is empty; expected a header and one line per bar")
    if path.suffix in SPREADSHEETS:
        return _unreadable(path, "binary", "a spreadsheet is not read; save its sheet as CSV")
    if b"\0" in head:
        return _unreadable(path, "binary", "the file is binary; expected UTF-8 text or a .parquet file")
    try:
        # The cut may fall inside a character, which takes at most four bytes.
        head[: -4 if len(head) == _SNIFFED_BYTES else None].decode("utf-8-sig")
    except UnicodeDecodeError as error:
        if len(head) < _SNIFFED_BYTES or error.start < len(head) - 8:
            return _unreadable(path, "binary", f"byte {error.start} is not UTF-8 text; save the file as UTF-8")
    # <DATE> and <TICKER> are names of columns, as Stooq and MetaTrader write them.
    if re.match(r"\s*<(?!(date|ticker)>)", head.decode("utf-8-sig", errors="ignore"), re.IGNORECASE):
        return _unreadable(path, "html", "the file is HTML or XML, perhaps a saved web page; download the CSV")
    return None


def _unreadable(path: Path, kind: str, message: str) -> Table:
    return Table(pd.DataFrame(), np.zeros(0, np.int64), str(path), [Problem(None, kind, message, where=str(path))])


def _read_text(path: Path, content: bytes, head: str, renamed: Mapping[str, str]) -> Table:
    layout = find_layout(head)
    # pandas takes minutes for a line of half a million cells, and gigabytes.
    first = re.split(rb"\r\n?|\n", content, maxsplit=layout.first + 1)[layout.first : layout.first + 1]
    cells = max(len(layout.names or ()), *(line.count(layout.separator.encode()) for line in first), 0)
    if cells > MOST_COLUMNS:
        return _unreadable(
            path, "ragged row", f"a line has {cells:,} cells; a file of bars has at most {MOST_COLUMNS:,}"
        )
    try:
        frame = _parsed(content, layout, renamed, as_text=layout.names is None)  # 000000 is a clock, and 0 is none
        if any(_has_commas(frame[column]) for column in frame):
            frame = _parsed(content, layout, renamed, as_text=True)  # then 13.246 may be a number of thousands
    except (pd.errors.ParserError, pd.errors.EmptyDataError, UnicodeDecodeError, ValueError):
        return _read_lines(path, content, layout)
    if not isinstance(frame.index, pd.RangeIndex) or bool(frame.isna().to_numpy().any()):
        return _read_lines(path, content, layout)
    rows = np.arange(len(frame), dtype=np.int64) + layout.first + 1
    return _finish_text(Table(frame, rows, str(path)), layout)


def _parsed(content: bytes, layout: Layout, renamed: Mapping[str, str], *, as_text: bool) -> pd.DataFrame:
    # 000001 is the name of an asset, and 1 is another one.
    names = {place: str for place, name in enumerate(layout.names or ()) if is_of_assets(name, renamed)}
    return pd.read_csv(
        io.BytesIO(content),
        sep=layout.separator,
        encoding="utf-8-sig",
        skip_blank_lines=False,
        header=None,
        skiprows=layout.first,
        names=None if layout.names is None else range(len(layout.names)),
        dtype=str if as_text else names,
        low_memory=False,
    )


def _has_commas(cells: "pd.Series[Any]") -> bool:
    return not pd.api.types.is_numeric_dtype(cells) and bool(cells.astype(str).str.contains(r"\d,\d").any())


def _read_lines(path: Path, content: bytes, layout: Layout) -> Table:
    """Line by line: cells stay text, rows with another number of cells are left out and named."""
    try:
        text = content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        return _unreadable(path, "binary", f"byte {error.start} is not UTF-8 text; save the file as UTF-8")
    # Lines end as everywhere else: a lone carriage return is one too, which the csv module takes for a part of a cell.
    stream = io.StringIO(text, newline=None)
    for _ in range(layout.first):
        stream.readline()
    reader = csv.reader(stream, delimiter=layout.separator)
    try:
        return _numbered(path, reader, layout)
    except csv.Error as error:
        message = f"{error}; correct or drop the line"
        problem = Problem(reader.line_num + layout.first, "ragged row", message, where=str(path))
        return Table(pd.DataFrame(), np.zeros(0, np.int64), str(path), [problem])


def _numbered(path: Path, reader: Any, layout: Layout) -> Table:
    width = None if layout.names is None else len(layout.names)
    kept: list[list[str]] = []
    rows: list[int] = []
    problems: list[Problem] = []
    for cells in reader:
        row = reader.line_num + layout.first
        if not any(cell.strip() for cell in cells):
            continue
        width = width or len(cells)
        if len(cells) == width + 1 and not cells[-1].strip():
            cells = cells[:-1]  # a separator at the end of every line
        if len(cells) != width:
            message = f"expected {width} cells like the header, got {len(cells)}; correct or drop the line"
            problems.append(Problem(row, "ragged row", message, where=str(path)))
            continue
        kept.append(cells)
        rows.append(row)
    frame = pd.DataFrame(kept, columns=range(width or 0), dtype=object)
    return _finish_text(Table(frame, np.asarray(rows, dtype=np.int64), str(path), problems), layout)


def _finish_text(table: Table, layout: Layout) -> Table:
    table.decimal_comma = layout.separator != ","
    if layout.before:
        table.note(f"what stands above the header is left out: {layout.before[:80]!r}")
    if layout.names is None:
        return _with_names(table)
    pairs = [name for name in layout.names if isinstance(name, tuple)]
    table.frame.columns = pd.MultiIndex.from_tuples(pairs) if pairs else pd.Index(layout.names)
    if len(table.frame) == 0 and all(problem.severity == "note" for problem in table.problems):
        message = f"the file has a header and no bar: {', '.join(map(str, layout.names))[:80]!r}"
        table.problems.append(Problem(None, "header only", message, where=table.where))
    return table


def _with_names(table: Table) -> Table:
    """Columns without a header, named by what they hold."""
    found = name_columns(table.frame)
    if found is None:
        message = "no header, and the columns are not a time, four prices and a volume; add a header line"
        table.problems.append(Problem(None, "missing column", message, where=table.where))
        table.frame = pd.DataFrame()
        return table
    names, said = found
    table.frame.columns = pd.Index(names)
    table.note(said)
    return table


def _read_json(path: Path, raw: bytes) -> Table:
    try:
        frames = json_frames(raw.decode("utf-8-sig"))
    except ValueError as error:
        return _unreadable(path, "binary", f"not JSON: {error}; save the answer of the exchange as it came")
    if not frames:
        return _unreadable(path, "missing column", "no list of bars in this JSON; expected rows or records of bars")
    tables = []
    for name, frame in frames.items():
        part = Table(frame, np.arange(1, len(frame) + 1, dtype=np.int64), str(path))
        part = _with_names(part) if not any(isinstance(c, str) for c in frame.columns) else part
        if (part.problems and part.frame.empty) or named_twice(part.frame) is not None:
            return part
        if name and "asset" not in part.frame:
            part.frame["asset"] = name
        tables.append(part)
    whole = pd.concat([part.frame for part in tables], ignore_index=True)
    rows = np.arange(1, len(whole) + 1, dtype=np.int64)
    return Table(whole, rows, str(path), [problem for part in tables for problem in part.problems])


def _read_arrow(path: Path) -> Table:
    try:
        frame, left_out = arrow_frame(path)
    except ValueError as error:
        return _unreadable(path, "binary", f"not a readable Parquet or Feather file: {one_line(error)}")
    if frame.empty:
        return _unreadable(path, "empty", "there is no bar in it")
    table = Table(frame, np.arange(1, len(frame) + 1, dtype=np.int64), str(path))
    if left_out:
        table.note(f"columns that hold neither numbers nor dates nor texts are left out: {', '.join(left_out)[:200]}")
    return table

"""Parquet and Feather files as frames, if they do not become much larger than they are."""

import struct
from pathlib import Path
from typing import Any

import pandas as pd

from leeward.errors import MissingExtra
from leeward.market import arrow_sizes

__all__ = [
    "EXPANSION", "FEATHER", "MOST_BYTES", "MOST_COLUMNS", "MOST_ROWS", "PARQUET", "REMEDY", "arrow_frame", "too_long",
]  # fmt: skip

PARQUET, FEATHER = (".parquet", ".pq"), (".feather", ".arrow")
EXPANSION = 100  # times: numbers shrink to a tenth, and not to a hundredth
MOST_COLUMNS = 10_000  # of a file of bars
MOST_ROWS = 20_000_000  # of a file of bars, which take some 250 to 350 bytes each while they are read and examined
MOST_BYTES = 1 << 33  # of a file of bars, as it is and expanded: twice the largest number of rows with 20 features
REMEDY = "use longer bars, a shorter period, or fewer assets"
_ROOM = 1 << 26  # bytes in memory that any file may take
_LONGEST_TEXT = 10_000  # bytes of a cell: one in a dictionary stands for as many rows as point to it
_MAGIC = b"ARROW1\0\0"  # before the stream in a Feather file of version 2, the one that Arrow has written since 2020


def arrow_frame(path: Path) -> tuple[pd.DataFrame, list[str]]:
    """The table of a file and the names of columns that are left out; ValueError says why it cannot be read."""
    try:
        import pyarrow
    except ImportError:
        raise MissingExtra("pyarrow", "parquet", f"reading {path}") from None
    try:
        read = _read_feather if path.suffix in FEATHER else _read_parquet
        table, left_out = read(path.read_bytes())
        _check_texts(table)
        return _without_categories(table.to_pandas()), left_out
    # The last four are of pandas' own description in the file: names that are written as Python's values.
    except (pyarrow.ArrowException, OSError, struct.error, OverflowError, LookupError, TypeError, AttributeError,
            SyntaxError, RecursionError, MemoryError) as error:  # fmt: skip
        raise ValueError(f"{type(error).__name__}: {error}") from None


def too_long(rows: int) -> str | None:
    """What is said of a file with so many rows, where they are too many."""
    if rows <= MOST_ROWS:
        return None
    return f"{rows:,} rows; a file of bars has at most {MOST_ROWS:,}: {REMEDY}"


def _without_categories(frame: pd.DataFrame) -> pd.DataFrame:
    """Texts as objects: those that are the same stay one, however many rows have it."""
    for place, kind in enumerate(frame.dtypes):
        if isinstance(kind, pd.CategoricalDtype):
            text = pd.api.types.is_string_dtype(kind.categories.dtype)
            frame.isetitem(place, frame.iloc[:, place].astype(object if text else kind.categories.dtype).array)
    return frame


def _read_parquet(content: bytes) -> tuple[Any, list[str]]:
    import pyarrow
    from pyarrow.parquet import ParquetFile

    about = ParquetFile(pyarrow.BufferReader(content))
    _check_size(content, about.metadata.num_rows, about.metadata.num_columns)
    _check_expanded(content, arrow_sizes.of_parquet(content))
    kept, left_out = _columns(about.schema_arrow)
    # As dictionaries, so that a long text is there once.
    texts = [field.name for field in about.schema_arrow if _is_text(field.type)]
    file = ParquetFile(pyarrow.BufferReader(content), read_dictionary=texts)
    return file.read(columns=kept if left_out else None), left_out


def _read_feather(content: bytes) -> tuple[Any, list[str]]:
    from pyarrow import BufferReader, ipc, py_buffer

    if not content.startswith(_MAGIC):
        raise ValueError("not a Feather file of version 2; write it again with pandas or pyarrow")
    # As a stream, so that what is measured is what is read: the list of its parts at the end may point elsewhere.
    stream, rows, expanded = py_buffer(content).slice(len(_MAGIC)), 0, 0
    for message in ipc.MessageReader.open_stream(BufferReader(stream)):
        more, size = arrow_sizes.of_arrow_message(message.metadata, message.body)
        rows, expanded = rows + more, expanded + size
    schema = ipc.open_stream(BufferReader(stream)).schema
    _check_size(content, rows, len(schema))
    _check_expanded(content, expanded)
    kept, left_out = _columns(schema)
    options = ipc.IpcReadOptions(included_fields=[i for i, name in enumerate(schema.names) if name in kept])
    return ipc.open_stream(BufferReader(stream), options=options).read_all(), left_out


def _check_size(content: bytes, rows: int, columns: int) -> None:
    if columns > MOST_COLUMNS:
        raise ValueError(f"{columns:,} columns; a file of bars has at most {MOST_COLUMNS:,}")
    if said := too_long(rows):
        raise ValueError(said)
    if rows * columns * 8 > EXPANSION * len(content) + _ROOM:
        raise ValueError(f"it says that it has {rows:,} rows, which {len(content):,} bytes of bars do not hold")


def _check_expanded(content: bytes, expanded: int) -> None:
    if expanded > min(EXPANSION * len(content) + _ROOM, MOST_BYTES):
        raise ValueError(f"{len(content):,} bytes expand to {expanded:,}; no file of bars does")


def _columns(schema: Any) -> tuple[list[str], list[str]]:
    """Names of columns that may be of bars, and of the others: lists, runs and bytes can be larger than they look."""
    kept = [field.name for field in schema if _is_plain(field.type)]
    if not kept:
        raise ValueError("no column of numbers, dates or texts")
    return kept, [name for name in schema.names if name not in kept]


def _is_plain(kind: Any) -> bool:
    from pyarrow import types

    if types.is_dictionary(kind):
        return _is_plain(kind.value_type)
    known = (types.is_integer, types.is_floating, types.is_boolean, types.is_decimal, types.is_temporal, types.is_null)
    return _is_text(kind) or any(is_one(kind) for is_one in known)


def _is_text(kind: Any) -> bool:
    """Not views of texts, of which many may show the same bytes."""
    from pyarrow import types

    return bool(types.is_string(kind) or types.is_large_string(kind))


def _check_texts(table: Any) -> None:
    from pyarrow import compute, types

    for name, column in zip(table.column_names, table.columns, strict=True):
        for chunk in column.chunks:
            values = chunk.dictionary if types.is_dictionary(chunk.type) else chunk
            if _is_text(values.type):
                longest = compute.max(compute.binary_length(values)).as_py() or 0
                if longest > _LONGEST_TEXT:
                    raise ValueError(f"a text of {longest:,} bytes in column {name!r:.40}; bars have none")

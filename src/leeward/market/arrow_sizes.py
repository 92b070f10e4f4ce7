"""How large a Parquet or Feather file would become, from the headers of its compressed parts, before any is expanded.

Both formats write before each part how many bytes it expands to, and Arrow asks for as much memory, whatever the file
says elsewhere about its rows. A text of one letter repeated a thousand million times takes some kilobytes.
"""

import struct
from collections.abc import Iterator
from typing import Any

__all__ = ["of_arrow_message", "of_parquet"]

_RECORDS, _DICTIONARY = 3, 2  # kinds of Arrow messages that hold data
_LARGEST_FOOTER = 1 << 24  # bytes: a hundred columns in a thousand groups of rows have as many
# Fields of Parquet's own description, by their numbers in its Thrift definition.
_GROUPS, _CHUNKS, _ABOUT_CHUNK = 4, 1, 3
_N_VALUES, _CHUNK_SIZE, _FIRST_PAGE, _DICTIONARY_PAGE = 5, 7, 9, 11
_EXPANDED, _COMPRESSED, _ENCODINGS = 2, 3, ((5, 2), (8, 4))  # of a page; the last in the header of either kind of page
_SHARED_BEGINNINGS = 7  # the encoding DELTA_BYTE_ARRAY


def of_parquet(content: bytes) -> int:
    """Bytes that all pages of a file expand to. Not by pyarrow, which ends the process on some damaged descriptions."""
    length = struct.unpack("<I", content[-8:-4])[0]
    if length > _LARGEST_FOOTER:
        raise ValueError(f"its description alone has {length:,} bytes")
    about, _ = _thrift(content, len(content) - 8 - length, _STRUCT)
    chunks = (chunk[_ABOUT_CHUNK] for group in about.get(_GROUPS, []) for chunk in group[_CHUNKS])
    return sum(size for chunk in chunks for size in _pages(content, chunk))


def _pages(content: bytes, chunk: dict[int, Any]) -> Iterator[int]:
    """Expanded sizes of the pages of a column chunk, as Arrow walks through them."""
    at, dictionary = chunk[_FIRST_PAGE], chunk.get(_DICTIONARY_PAGE, 0)
    at = min(at, dictionary) if dictionary > 0 else at
    end = at + chunk[_CHUNK_SIZE] if chunk[_N_VALUES] else at
    while at < end:
        page, at = _thrift(content, at, _STRUCT)
        expanded, compressed = page.get(_EXPANDED, -1), page.get(_COMPRESSED, -1)
        if expanded < 0 or compressed < 0:
            raise ValueError("a page without a size")
        if any(page.get(header, {}).get(field) == _SHARED_BEGINNINGS for header, field in _ENCODINGS):
            raise ValueError("texts that share their beginnings (DELTA_BYTE_ARRAY), whose size no header tells")
        yield expanded
        at += compressed


# Kinds of values in Thrift's compact protocol.
_TRUE, _FALSE, _BYTE, _WHOLE, _DOUBLE, _BYTES, _LISTS, _STRUCT = 1, 2, 3, (4, 5, 6), 7, 8, (9, 10), 12


def _thrift(content: bytes, at: int, kind: int) -> tuple[Any, int]:
    """A value of Thrift's compact protocol, and where it ends: numbers, lists, and structs as {field: value}."""
    if at < 0:
        raise ValueError("a place before the file")
    if kind in (_TRUE, _FALSE, _BYTE):
        return content[at], at + 1
    if kind in _WHOLE:
        value, at = _varint(content, at)
        return (value >> 1) ^ -(value & 1), at
    if kind == _DOUBLE:
        return None, at + 8
    if kind == _BYTES:
        length, at = _varint(content, at)
        return None, at + length
    if kind in _LISTS:
        size, inner = divmod(content[at], 16)
        at += 1
        if size == 15:
            size, at = _varint(content, at)
        values = []
        for _ in range(size):
            value, at = _thrift(content, at, inner)
            values.append(value)
        return values, at
    if kind != _STRUCT:
        raise ValueError(f"a value of kind {kind}")
    fields: dict[int, Any] = {}
    field = 0
    while content[at]:
        more, kind = divmod(content[at], 16)
        at += 1
        if more:
            field += more
        else:
            field, at = _thrift(content, at, _WHOLE[0])
        if kind in (_TRUE, _FALSE):  # of a field the kind is the value
            fields[field] = kind == _TRUE
        else:
            fields[field], at = _thrift(content, at, kind)
    return fields, at + 1


def _varint(content: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = content[at]
        at += 1
        value |= (byte & 127) << shift
        if byte < 128:
            return value, at
        shift += 7
        if shift > 63:
            raise ValueError("a number of more than 64 bits")


def of_arrow_message(metadata: bytes, body: bytes) -> tuple[int, int]:
    """Rows of a record batch and bytes that its buffers expand to; 0 and 0 of a message that holds no data.

    A compressed buffer begins with its expanded size, or with −1 where it is stored as it is.
    """
    message = _Table(metadata, struct.unpack_from("<I", metadata)[0])
    kind = message.number(1, "<B")
    if kind not in (_RECORDS, _DICTIONARY):
        return 0, 0
    batch = message.table(2)
    if kind == _DICTIONARY:
        batch = batch.table(1)
    compressed = batch.place(3) is not None
    expanded = 0
    for offset, length in batch.pairs(2):
        if not (0 <= offset <= offset + length <= len(body)):
            raise ValueError("a buffer outside its message")
        stated = struct.unpack_from("<q", body, offset)[0] if compressed and length >= 8 else -1
        expanded += length if stated < 0 else stated
    return batch.number(0, "<q"), expanded


class _Table:
    """A table of a flatbuffer: fields by their number."""

    def __init__(self, content: bytes, at: int) -> None:
        self.content, self.at = content, at
        self.index = at - self._read("<i", at)
        self.size = self._read("<H", self.index)

    def _read(self, form: str, at: int) -> int:
        if at < 0:
            raise ValueError("a place before the message")
        return int(struct.unpack_from(form, self.content, at)[0])

    def place(self, field: int) -> int | None:
        entry = 4 + 2 * field
        offset = self._read("<H", self.index + entry) if entry < self.size else 0
        return self.at + offset if offset else None

    def number(self, field: int, form: str) -> int:
        place = self.place(field)
        return 0 if place is None else self._read(form, place)

    def table(self, field: int) -> "_Table":
        place = self.place(field)
        if place is None:
            raise ValueError("a message without its table")
        return _Table(self.content, place + self._read("<I", place))

    def pairs(self, field: int) -> Iterator[tuple[int, int]]:
        """A vector of pairs of 64-bit numbers."""
        place = self.place(field)
        if place is None:
            return
        start = place + self._read("<I", place)
        for i in range(self._read("<I", start)):
            at = start + 4 + 16 * i
            yield self._read("<q", at), self._read("<q", at + 8)

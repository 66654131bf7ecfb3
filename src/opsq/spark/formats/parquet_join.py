"""Joins Parquet files into one without touching their pages: their bytes one after the other, and one footer.

A row group has the offsets of its pages in the file, so the footer of a joined file is the first file's with the row
groups of all, moved by where each file starts; the old footers stay inside unused. This file must not know results or
Spark, and reads only as much of Thrift's compact protocol as a footer needs.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from opsq.errors import UsageError

MAGIC = b"PAR1"
TAIL_BYTES = 8
"""At the end of a file: the length of the footer, and the magic."""

_TRUE, _FALSE, _BYTE, _DOUBLE, _BINARY, _LIST, _SET, _MAP, _STRUCT = 1, 2, 3, 7, 8, 9, 10, 11, 12
_SCHEMA, _ROWS, _GROUPS = 2, 3, 4  # of FileMetaData
_GROUP_COLUMNS, _GROUP_OFFSET, _GROUP_ORDINAL = 1, 5, 7  # of RowGroup
_CHUNK_PATH, _CHUNK_OFFSET, _CHUNK_META, _INDEX_FIELDS = 1, 2, 3, (4, 5, 6, 7)  # of ColumnChunk
_PAGE_OFFSETS = (9, 10, 11)  # of ColumnMetaData: data, index and dictionary pages
_BLOOM_FIELDS = (14, 15)
_DECODED_LIMIT = 100

Fields = dict[int, tuple[int, Any]]
"""A struct: type and value by field id; a list is (type of its items, items)."""


class Piece(NamedTuple):
    """One of the files: its length, and the bytes of its footer."""

    size_bytes: int
    footer: bytes


def footer_length(tail: bytes) -> int:
    """The length of the footer, from the last 8 bytes of a file.

    Raises:
        UsageError: it is not a Parquet file.
    """
    if len(tail) != TAIL_BYTES or tail[4:] != MAGIC:
        raise UsageError("It is not a Parquet file.")
    return int.from_bytes(tail[:4], "little")


def schema_end(footer: bytes) -> int:
    """Where the columns end in a footer: what comes before is the same in all files of one schema and writer.

    Raises:
        UsageError: the footer cannot be read.
    """
    return _Reader(footer).end_of(_SCHEMA)


def join(pieces: Sequence[Piece]) -> bytes:
    """What follows the bytes of all files to make one file of them: the common footer, its length, the magic.

    Raises:
        UsageError: their columns differ, or a footer cannot be read.
    """
    whole: Fields | None = None
    groups: list[Fields] = []
    rows_count = start = 0
    for piece in pieces:
        fields = _Reader(piece.footer).struct()
        if whole is None:
            whole = fields
        elif _columns(fields) != _columns(whole):
            raise UsageError("Their columns differ.")
        rows_count += fields[_ROWS][1]
        for group in fields[_GROUPS][1][1]:
            _move(group, start)
            groups.append(group)
        start += piece.size_bytes
    if whole is None:
        raise UsageError("There is no file to join.")
    whole[_ROWS] = (whole[_ROWS][0], rows_count)
    whole[_GROUPS] = (_LIST, (_STRUCT, groups))
    writer = _Writer()
    writer.struct(whole)
    footer = bytes(writer.written)
    return footer + len(footer).to_bytes(4, "little") + MAGIC


def _columns(fields: Fields) -> list[Fields]:
    """The columns, without the root, whose name depends on the writer."""
    columns: list[Fields] = fields[_SCHEMA][1][1][1:]
    return columns


def _move(group: Fields, start: int) -> None:
    """Move a row group by `start` bytes. Its ordinal and its indexes, which are optional, are dropped."""
    if _GROUP_OFFSET in group:
        kind, offset = group[_GROUP_OFFSET]
        group[_GROUP_OFFSET] = (kind, offset + start)
    group.pop(_GROUP_ORDINAL, None)
    for chunk in group[_GROUP_COLUMNS][1][1]:
        if _CHUNK_PATH in chunk:
            raise UsageError("The pages of a column are in another file.")
        kind, offset = chunk[_CHUNK_OFFSET]
        chunk[_CHUNK_OFFSET] = (kind, offset + start if offset else 0)
        meta = chunk[_CHUNK_META][1]
        for field in _PAGE_OFFSETS:
            if field in meta:
                kind, offset = meta[field]
                meta[field] = (kind, offset + start)
        for field in _INDEX_FIELDS:
            chunk.pop(field, None)
        for field in _BLOOM_FIELDS:
            meta.pop(field, None)


class _Reader:
    """Reads Thrift's compact protocol."""

    def __init__(self, source: bytes) -> None:
        self._source = source
        self._place = 0

    def struct(self, depth: int = 0) -> Fields:
        if depth > _DECODED_LIMIT:
            raise UsageError("The footer is nested too deeply.")
        fields: Fields = {}
        number = 0
        while True:
            head = self._byte()
            if head == 0:
                return fields
            kind = head & 15
            number = number + (head >> 4) if head >> 4 else self._zigzag()
            fields[number] = (kind, self._value(kind, depth) if kind > _FALSE else kind == _TRUE)

    def end_of(self, wanted: int) -> int:
        """The offset behind a field of the struct that begins here."""
        number = 0
        while number < wanted:
            head = self._byte()
            number = number + (head >> 4) if head >> 4 else self._zigzag()
            if head == 0:
                break
            if head & 15 > _FALSE:
                self._value(head & 15, 0)
        return self._place

    def _value(self, kind: int, depth: int) -> Any:
        if kind == _STRUCT:
            return self.struct(depth + 1)
        if kind == _BINARY:
            return self._bytes(self._varint())
        if kind in (4, 5, 6):
            return self._zigzag()
        if kind in (_LIST, _SET):
            head = self._byte()
            count = head >> 4 if head >> 4 < 15 else self._varint()
            item = head & 15
            return item, [self._value(item, depth) for _ in range(count)]
        if kind in (_TRUE, _FALSE, _BYTE):
            return self._byte()
        if kind == _DOUBLE:
            return self._bytes(8)
        raise UsageError("The footer has a type that Parquet does not use.")

    def _byte(self) -> int:
        place = self._place
        if place >= len(self._source):
            raise UsageError("The footer ends too early.")
        self._place = place + 1
        return self._source[place]

    def _bytes(self, count: int) -> bytes:
        end = self._place + count
        if end > len(self._source):
            raise UsageError("The footer ends too early.")
        taken = self._source[self._place : end]
        self._place = end
        return taken

    def _varint(self) -> int:
        number = shift = 0
        while True:
            byte = self._byte()
            number |= (byte & 127) << shift
            if byte < 128:
                return number
            shift += 7

    def _zigzag(self) -> int:
        number = self._varint()
        return (number >> 1) ^ -(number & 1)


class _Writer:
    """Writes what `_Reader` reads."""

    def __init__(self) -> None:
        self.written = bytearray()

    def struct(self, fields: Fields) -> None:
        last = 0
        for number, (kind, value) in sorted(fields.items()):
            written_kind = kind if kind > _FALSE else _TRUE if value else _FALSE
            if 0 < number - last < 16:
                self.written.append((number - last) << 4 | written_kind)
            else:
                self.written.append(written_kind)
                self._zigzag(number)
            if kind > _FALSE:
                self._value(kind, value)
            last = number
        self.written.append(0)

    def _value(self, kind: int, value: Any) -> None:
        if kind == _STRUCT:
            self.struct(value)
        elif kind == _BINARY:
            self._varint(len(value))
            self.written += value
        elif kind in (4, 5, 6):
            self._zigzag(value)
        elif kind in (_LIST, _SET):
            item, items = value
            if len(items) < 15:
                self.written.append(len(items) << 4 | item)
            else:
                self.written.append(0xF0 | item)
                self._varint(len(items))
            for one in items:
                self._value(item, one)
        elif kind == _DOUBLE:
            self.written += value
        else:
            self.written.append(value)

    def _varint(self, number: int) -> None:
        while number > 127:
            self.written.append(number & 127 | 128)
            number >>= 7
        self.written.append(number)

    def _zigzag(self, number: int) -> None:
        self._varint(number << 1 if number >= 0 else (-number << 1) - 1)

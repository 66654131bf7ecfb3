"""Finds the distinct schemas of Parquet and Arrow results, without reading more than their footers or heads.

Thousands of results have one schema, so each is first compared with the bytes that earlier ones had for it, which takes
a few microseconds; only another schema is parsed. This file must not know Spark or where results are stored.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq

from opsq.errors import UsageError
from opsq.spark.formats.decoder import open_arrow, unreadable
from opsq.spark.formats.parquet_join import MAGIC, TAIL_BYTES, footer_length, schema_end

Read = Callable[[int, int], bytes]
"""Reads a number of bytes of a result from an offset."""

STORED_FORMATS = ("parquet", "arrow")
"""Formats whose results have their schema."""
_GUESS_BYTES = 16 << 10
"""A footer or head is rarely longer; if it is, the rest is read as well."""
_ARROW_SCHEMA = b"ARROW:schema"
_KNOWN_LIMIT = 64
"""Schemas compared with; more come from metadata that differs from result to result, and are parsed."""


class _ParquetMark(NamedTuple):
    """What a footer has if its schema is one that is known: its start, and Arrow's own schema further on."""

    start: bytes
    arrow: bytes

    def is_in(self, footer: bytes) -> bool:
        return footer.startswith(self.start) and (self.arrow in footer if self.arrow else _ARROW_SCHEMA not in footer)


class StoredSchemas:
    """Collects the distinct schemas of results of one format.

    Args:
        result_format: parquet or arrow.
    """

    def __init__(self, result_format: str) -> None:
        self._is_parquet = result_format == "parquet"
        self._marks: list[_ParquetMark] = []
        self._heads: list[bytes] = []
        self._found: dict[bytes, pa.Schema] = {}

    @property
    def found(self) -> list[pa.Schema]:
        """The schemas, without metadata."""
        return list(self._found.values())

    def add(self, size_bytes: int, read: Read) -> None:
        """Look at one result that is not empty.

        Raises:
            UsageError: it does not have the format.
        """
        schema = self._parquet(size_bytes, read) if self._is_parquet else self._arrow(size_bytes, read)
        if schema is not None:
            bare = schema.remove_metadata()
            self._found[bytes(bare.serialize())] = bare

    def _parquet(self, size_bytes: int, read: Read) -> pa.Schema | None:
        start = max(size_bytes - _GUESS_BYTES, 0)
        tail = read(start, size_bytes - start)
        length = footer_length(tail[-TAIL_BYTES:])
        if length + TAIL_BYTES > size_bytes:
            raise UsageError("It is not a Parquet file.")
        if length + TAIL_BYTES > len(tail):
            tail = read(size_bytes - length - TAIL_BYTES, length + TAIL_BYTES)
        footer = tail[-length - TAIL_BYTES : -TAIL_BYTES]
        if any(mark.is_in(footer) for mark in self._marks):
            return None
        try:
            meta = pq.read_metadata(pa.BufferReader(MAGIC + footer + tail[-TAIL_BYTES:]))
        except (pa.ArrowException, OSError) as error:  # of Thrift
            raise unreadable("parquet", error) from error
        if len(self._marks) < _KNOWN_LIMIT:
            arrow = (meta.metadata or {}).get(_ARROW_SCHEMA, b"")
            self._marks.append(_ParquetMark(footer[: schema_end(footer)], arrow))
        return meta.schema.to_arrow_schema()

    def _arrow(self, size_bytes: int, read: Read) -> pa.Schema | None:
        head = read(0, min(_GUESS_BYTES, size_bytes))
        if any(map(head.startswith, self._heads)):
            return None
        at = 8 if head.startswith(b"ARROW1") else 0
        length = int.from_bytes(head[at + 4 : at + 8], "little")
        end = at + 8 + length
        if end > len(head):
            head = read(0, size_bytes)
        try:
            schema = open_arrow(head[at:end]).schema
        except (pa.ArrowException, OSError) as error:
            raise unreadable("arrow", error) from error
        if len(self._heads) < _KNOWN_LIMIT:
            self._heads.append(head[:end])
        return schema

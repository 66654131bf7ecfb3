"""Cuts Arrow batches into chunks of a number of rows or about a number of bytes, in the order of the rows.

This file must not know Spark, nor of formats more than that an encoder turns a table into bytes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import NamedTuple

import pyarrow as pa

Encode = Callable[[pa.Table], memoryview]
"""Turns a table of at least one row into the bytes of a chunk."""

_USUAL_BYTES, _COLUMN_BYTES = 1 << 20, 1 << 10
"""The size of a chunk by default, and what each column adds to it: in a Parquet file, a column costs some 250 bytes and
the time of some hundred values, however few it has."""
_TOO_LARGE = 2.0
"""A chunk larger than this many times the wanted size is cut in two, repeatedly."""


class Piece(NamedTuple):
    """The bytes of one chunk, and its number of rows."""

    payload: memoryview
    rows_count: int


def cut(
    batches: Iterable[pa.RecordBatch],
    encode: Encode,
    *,
    rows_per_chunk: int | None = None,
    bytes_per_chunk: int | None = None,
) -> Iterator[Piece]:
    """Cut batches of one schema into chunks; the last one has the remaining rows.

    Args:
        batches: the rows.
        encode: makes the bytes of a chunk.
        rows_per_chunk: the rows of each chunk.
        bytes_per_chunk: the approximate bytes of each chunk; without both, 1 MiB, and 1 KiB more for each column. The
            number of rows is estimated from earlier chunks, since encoded sizes are unknown before encoding. A chunk of
            more than one row never has more than twice as many bytes.
    """
    if rows_per_chunk is not None:
        for table in _runs(batches, lambda _: rows_per_chunk):
            yield Piece(encode(table), table.num_rows)
        return
    sizes = _Sizes(bytes_per_chunk)
    for table in _runs(batches, sizes.rows_wanted):
        for piece in _halved(table, encode, sizes.wanted_bytes(table.num_columns)):
            sizes.saw(table.nbytes * piece.rows_count / table.num_rows, len(piece.payload))
            yield piece


def _runs(batches: Iterable[pa.RecordBatch], rows_wanted: Callable[[list[pa.RecordBatch]], int]) -> Iterator[pa.Table]:
    """Tables of the wanted number of rows, without a copy; the last one may have fewer."""
    waiting: list[pa.RecordBatch] = []
    waiting_rows = 0
    for batch in batches:
        if not batch.num_rows:
            continue
        waiting.append(batch)
        waiting_rows += batch.num_rows
        while waiting_rows >= (wanted := rows_wanted(waiting)):
            taken, waiting = _split(waiting, wanted)
            waiting_rows -= wanted
            yield pa.Table.from_batches(taken)
            if not waiting:
                break
    if waiting:
        yield pa.Table.from_batches(waiting)


def _split(batches: list[pa.RecordBatch], rows_count: int) -> tuple[list[pa.RecordBatch], list[pa.RecordBatch]]:
    """The first rows, and the rest."""
    taken: list[pa.RecordBatch] = []
    for number, batch in enumerate(batches):
        if batch.num_rows >= rows_count:
            taken.append(batch if batch.num_rows == rows_count else batch.slice(0, rows_count))
            rest = batches[number + 1 :]
            if batch.num_rows > rows_count:
                rest.insert(0, batch.slice(rows_count))
            return taken, rest
        taken.append(batch)
        rows_count -= batch.num_rows
    return taken, []


def _halved(table: pa.Table, encode: Encode, wanted_bytes: int) -> Iterator[Piece]:
    payload = encode(table)
    if len(payload) <= _TOO_LARGE * wanted_bytes or table.num_rows == 1:
        yield Piece(payload, table.num_rows)
        return
    middle = table.num_rows // 2
    yield from _halved(table.slice(0, middle), encode, wanted_bytes)
    yield from _halved(table.slice(middle), encode, wanted_bytes)


class _Sizes:
    """Estimates from earlier chunks how many rows make a chunk of the wanted size."""

    def __init__(self, wanted_bytes: int | None) -> None:
        self._wanted_bytes = wanted_bytes
        self._ratio = 1.0
        """Encoded bytes per byte of rows in memory."""

    def wanted_bytes(self, columns_count: int) -> int:
        return self._wanted_bytes or _USUAL_BYTES + _COLUMN_BYTES * columns_count

    def rows_wanted(self, waiting: list[pa.RecordBatch]) -> int:
        rows_count = sum(batch.num_rows for batch in waiting)
        row_bytes = max(sum(batch.nbytes for batch in waiting) / rows_count, 1 / 8) * self._ratio
        return max(int(self.wanted_bytes(waiting[0].num_columns) / row_bytes), 1)

    def saw(self, memory_bytes: float, encoded_bytes: int) -> None:
        if memory_bytes:
            self._ratio = (self._ratio + encoded_bytes / memory_bytes) / 2

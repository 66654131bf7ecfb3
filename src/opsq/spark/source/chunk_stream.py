"""A stream of chunks as Spark sees it: the query is a consumer, and a finished batch acknowledges its chunks.

This file must not know the protocol (`lease_stream`). An offset has the tokens of its batch, and Spark stores it before
it runs the batch; so a replayed batch is the same, and chunks reserved for an offset that was never stored lapse by
themselves.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any

import pyarrow as pa
from pyspark.sql import types as t
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import ReadLimit, ReadMaxRows, SupportsTriggerAvailableNow

from opsq.errors import UsageError
from opsq.spark.formats.schema_guess import schema_of
from opsq.spark.formats.schemas import read_schema, spark_schema
from opsq.spark.source.batch_reader import Batches, ChunkPieces, ResultForm, check_schema, whole_schema
from opsq.spark.source.daemon_address import resolve
from opsq.spark.source.lease_stream import (
    LeaseStream,
    StreamPosition,
    chunk_format_of,
    describe,
    next_submission,
    position_of,
    read_chunks,
)
from opsq.spark.source.result_fetch import Pieces, attempts_by_chunk, split_pieces
from opsq.spark.source.source_options import ChunkOptions

_IDLE_S = 1.0
"""How long to wait for chunks while there are none."""
_PARTITION_CHUNKS = 64
"""The most chunks in one partition, unless options say otherwise."""


def chunk_schema(options: ChunkOptions) -> t.StructType:
    """The columns of the chunks, from the options or the chunk that would come first.

    Raises:
        UsageError: the columns cannot be determined.
    """
    chunk_format, stored = options.chunk_format, None
    if chunk_format not in ("text", "binary"):
        with resolve(options.daemon).open() as queue:
            described = next_submission(queue, options.strategy)
            if described is None:
                raise UsageError(
                    "No chunk is waiting to take the columns of the stream from.",
                    hint="Give them with .schema(...), or chunkFormat text or binary, which have one column: value.",
                )
            found = chunk_format_of(queue, described)
        if found is not None:
            chunk_format, stored = chunk_format or found.name, read_schema(found.schema)
        elif chunk_format is not None:
            raise UsageError(
                f"Submission {described.submission_id}, which would come first, was not made from a DataFrame and has "
                f"no columns.",
                hint="Give them with .schema(...).",
            )
    chunk_format = chunk_format or "text"
    return whole_schema(
        ResultForm(chunk_format, stored or spark_schema(schema_of(chunk_format, b""), what="the chunks")), options
    )


class OpsqChunkReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Reserves chunks of the queue as a consumer, and completes those of a batch when it is done.

    Args:
        options: of the read.
        schema: of the DataFrame.
    """

    def __init__(self, options: ChunkOptions, schema: t.StructType) -> None:
        check_schema(schema, options)
        self.options = options
        self.schema = schema
        self.daemon = resolve(options.daemon)
        self._leases: LeaseStream | None = None
        self._acknowledged = 0
        self._left: int | None = None
        """How many chunks may still be reserved; None: no limit."""

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802  # Spark's name, as all below
        """Before the first chunk."""
        return StreamPosition(0, []).offset()

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
        """As the option maxChunksPerTrigger says."""
        return ReadMaxRows(self.options.max_chunks_per_trigger)

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        """Stop when as many chunks are reserved as wait now, or none is free."""
        self._left = self._open().waiting_count()

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:  # noqa: N802
        """Reserve the chunks of the next micro-batch; waits a moment while there are none.

        Spark calls this when the batch up to `start` is done. That batch is acknowledged here too: `commit` comes one
        batch late, and never for the last one.
        """
        self.commit(start)
        count = limit.max_rows if isinstance(limit, ReadMaxRows) else self.options.max_chunks_per_trigger
        if self._left is not None:
            count = min(count, self._left)
        held = self._open().reserve(count, _IDLE_S if self._left is None else 0.0) if count else []
        if not held:
            return start
        taken = sum(one.mask.bit_count() for one in held)
        if self._left is not None:
            self._left -= taken
        return StreamPosition(position_of(start).ordinal + taken, held).offset()

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[InputPartition]:
        """The chunks reserved for the offset `end`; the same in a replay."""
        held = self._open().reclaim(position_of(end).held)
        count = sum(one.mask.bit_count() for one in held)
        size = self.options.chunks_per_partition or min(-(-count // (os.cpu_count() or 1)), _PARTITION_CHUNKS)
        pieces = (Pieces(one.submission_id, one.block, one.mask, one.attempt + 1) for one in held)
        return list(map(ChunkPieces, split_pieces(pieces, size)))

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The rows of some chunks, on an executor."""
        if not isinstance(partition, ChunkPieces):
            return
        with self.daemon.open(is_planned=True) as queue:
            for submission_id in dict.fromkeys(piece.submission_id for piece in partition.pieces):
                pieces = [piece for piece in partition.pieces if piece.submission_id == submission_id]
                described = describe(queue, submission_id)
                chunk_format = self.options.chunk_format
                if chunk_format is None:
                    found = chunk_format_of(queue, described)
                    chunk_format = found.name if found is not None else "text"
                batches = Batches(
                    submission_id, chunk_format, self.schema, self.options.metadata_columns, is_of_chunks=True
                )
                yield from batches.of(read_chunks(queue, described, pieces), attempts_by_chunk(pieces))

    def commit(self, end: dict[str, Any]) -> None:
        """Complete the chunks of the batch up to `end`, once."""
        place = position_of(end)
        if place.ordinal > self._acknowledged:
            self._open().acknowledge(place.held)
            self._acknowledged = place.ordinal

    def stop(self) -> None:
        """Close the connection. Chunks stay reserved for the length of the lease: the query may be restarted."""
        taker, self._leases = self._leases, None
        if taker is not None:
            taker.close()

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"_leases": None}

    def _open(self) -> LeaseStream:
        """The leases, which the planning process keeps from batch to batch."""
        if self._leases is None:
            self._leases = LeaseStream(self.daemon, self.options.consumer, self.options.strategy, self.options.lease_s)
        return self._leases

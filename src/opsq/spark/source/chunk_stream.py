"""A stream of chunks as Spark sees it: the query is a consumer, its batches are chunks, a batch that is done acknowledges them.

This file must not know the protocol (`taking`). An offset carries the tokens of its batch, and Spark writes it down before it
runs the batch; so whatever is replayed is the same, and what was taken for an offset that was never written lapses by itself.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from pyspark.sql import types as t
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import ReadLimit, ReadMaxRows, SupportsTriggerAvailableNow

from opsq.errors import UsageError
from opsq.ids import first_bits, mask_indexes
from opsq.spark.formats.decoder import schema_of
from opsq.spark.formats.schemas import read_schema, spark_schema
from opsq.spark.source.batch_reader import Batches, ResultForm, check_schema, whole_schema
from opsq.spark.source.daemon_address import PATIENCE_S, resolve
from opsq.spark.source.lease_stream import Place, Taker, describe, form_of, next_submission, place_of, read_chunks
from opsq.spark.source.source_options import ChunkOptions

if TYPE_CHECKING:
    from opsq.wire.messages import HeldChunks

_IDLE_S = 1.0
"""How long a look for chunks may wait while there are none."""
_PARTITION_CHUNKS = 64
"""So many chunks go into one partition, at most, unless options say so."""


def chunk_schema(options: ChunkOptions) -> t.StructType:
    """The columns of the chunks, as far as options or the chunk that would come first tell.

    Raises:
        UsageError: nothing tells.
    """
    chunk_format, stored = options.chunk_format, None
    if chunk_format not in ("text", "binary"):
        with resolve(options.reach).open() as queue:
            described = next_submission(queue, options.strategy)
            if described is None:
                raise UsageError(
                    "No chunk is waiting that would tell the columns of the stream.",
                    hint="Give them with .schema(...), or chunkFormat text or binary, which have one column: value.",
                )
            about = form_of(queue, described)
        if about is not None:
            chunk_format, stored = chunk_format or about.chunk_format, read_schema(about.schema)
        elif chunk_format is not None:
            raise UsageError(
                f"Submission {described.submission_id}, which would come first, was not made from a DataFrame and tells no columns.",
                hint="Give them with .schema(...).",
            )
    chunk_format = chunk_format or "text"
    return whole_schema(
        ResultForm(chunk_format, stored or spark_schema(schema_of(chunk_format, b""), what="the chunks")), options
    )


class Taken(InputPartition):
    """Chunks that were taken, as (submission, block, mask, attempts)."""

    def __init__(self, chosen: list[tuple[int, int, int, int]]) -> None:
        super().__init__(len(chosen))
        self.chosen = chosen


class OpsqChunkReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Takes chunks of the queue as a consumer, and completes those of a batch when it is done.

    Args:
        options: of the read.
        schema: of the DataFrame.
    """

    def __init__(self, options: ChunkOptions, schema: t.StructType) -> None:
        check_schema(schema, options)
        self.options = options
        self.schema = schema
        self.daemon = resolve(options.reach)
        self._taker: Taker | None = None
        self._acknowledged = 0
        self._left: int | None = None
        """How many chunks may still be taken; None: without end."""

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802  # Spark's name, as all below
        """Before the first chunk."""
        return Place(0, []).offset()

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
        """As the option maxChunksPerTrigger says."""
        return ReadMaxRows(self.options.max_chunks_per_trigger)

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        """End when as many are taken as wait now, or nothing can be had."""
        self._left = self._open().waiting_count()

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:  # noqa: N802
        """Take the chunks of the next micro-batch; waits a moment while there are none.

        Spark asks for it when the batch up to `start` is done. It is acknowledged here too: `commit` is told one batch late, and
        of the last one never.
        """
        self.commit(start)
        count = limit.max_rows if isinstance(limit, ReadMaxRows) else self.options.max_chunks_per_trigger
        if self._left is not None:
            count = min(count, self._left)
        held = self._open().take(count, _IDLE_S if self._left is None else 0.0) if count else []
        if not held:
            return start
        taken = sum(one.mask.bit_count() for one in held)
        if self._left is not None:
            self._left -= taken
        return Place(place_of(start).ordinal + taken, held).offset()

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[InputPartition]:
        """The chunks that were taken for the offset `end`, those of a replay like those of the first time."""
        held = self._open().take_again(place_of(end).held)
        count = sum(one.mask.bit_count() for one in held)
        size = self.options.chunks_per_partition or min(-(-count // (os.cpu_count() or 1)), _PARTITION_CHUNKS)
        return list(_cut(held, size))

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The rows of some chunks, on an executor."""
        if not isinstance(partition, Taken):
            return
        by_submission: dict[int, list[tuple[int, int, int]]] = {}
        for submission_id, *chosen in partition.chosen:
            by_submission.setdefault(submission_id, []).append((chosen[0], chosen[1], chosen[2]))
        with self.daemon.open(patience_s=PATIENCE_S) as queue:
            for submission_id, pieces in by_submission.items():
                described = describe(queue, submission_id)
                chunk_format = self.options.chunk_format
                if chunk_format is None:
                    about = form_of(queue, described)
                    chunk_format = about.chunk_format if about is not None else "text"
                batches = Batches(
                    submission_id, chunk_format, self.schema, self.options.metadata_columns, is_of_chunks=True
                )
                attempts = {index: attempts for block, mask, attempts in pieces for index in mask_indexes(block, mask)}
                yield from batches.of(
                    read_chunks(queue, described, [(block, mask) for block, mask, _ in pieces]), attempts
                )

    def commit(self, end: dict[str, Any]) -> None:
        """Complete the chunks of the batch up to `end`, once."""
        place = place_of(end)
        if place.ordinal > self._acknowledged:
            self._open().acknowledge(place.held)
            self._acknowledged = place.ordinal

    def stop(self) -> None:
        """Close the connection. What is taken stays so for the length of the lease: the query may be started again."""
        taker, self._taker = self._taker, None
        if taker is not None:
            taker.close()

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"_taker": None}

    def _open(self) -> Taker:
        """What the process that plans keeps from batch to batch."""
        if self._taker is None:
            self._taker = Taker(self.daemon, self.options.consumer, self.options.strategy, self.options.lease_s)
        return self._taker


def _cut(held: Sequence[HeldChunks], size: int) -> Iterator[Taken]:
    """Partitions of `size` chunks, the last one of what is left."""
    chosen: list[tuple[int, int, int, int]] = []
    count = 0
    for one in held:
        left = one.mask
        while left:
            taken = first_bits(left, size - count)
            chosen.append((one.submission_id, one.block, taken, one.attempt + 1))
            count += taken.bit_count()
            left &= ~taken
            if count == size:
                yield Taken(chosen)
                chosen, count = [], 0
    if chosen:
        yield Taken(chosen)

"""Streams as Spark sees them: results of a submission as they are completed, and a submission for each micro-batch.

This file must not know formats or the protocol. The offset of a stream of results is a place in the order of
completions, which is only appended to, so that any part of it can be read again; the shard whose order it is; and the
number of chunks up to there, which shows when a part is gone because old history was pruned, or comes again because the
submission was moved away and back. A micro-batch is identified by its query and number, so that a replay makes nothing
new.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass
from hashlib import blake2b
from typing import TYPE_CHECKING, Any

import msgspec
import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql import types as t
from pyspark.sql.datasource import (
    DataSourceStreamArrowWriter,
    DataSourceStreamReader,
    InputPartition,
    WriterCommitMessage,
)
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit, ReadMaxRows, SupportsTriggerAvailableNow

from opsq.errors import NotFound, UsageError
from opsq.spark.formats.schemas import arrow_schema
from opsq.spark.source.batch_reader import ChunkPieces, ResultRead
from opsq.spark.source.batch_writer import plan_write, write_rows
from opsq.spark.source.commit import PartMessage, submit_parts, withdraw
from opsq.spark.source.result_fetch import (
    FINAL_STATES,
    PARTITION_CHUNKS,
    Completion,
    Pieces,
    Place,
    attempts_by_chunk,
    check_final,
    completions,
    fetch_pieces,
    has_moved,
    last_completion,
    split_pieces,
)
from opsq.spark.source.source_options import WriteOptions

if TYPE_CHECKING:
    from opsq.client.sync.queue import Queue

_PLACE = "completion"
_COUNT = "chunks"
"""The number of chunks completed up to that place."""
_SHARD = "shard"
"""Whose order the place is in; not there before the first completion."""
_COMMIT_S = 30.0
"""How long a completion may take to appear in the history."""
_IDLE_S = 1.0
"""How long to wait for new completions; otherwise a query without a trigger would ask a hundred times a second."""
_FIRST_PAUSE_S = 0.02
_LONGEST_PAUSE_S = 0.25


class OpsqStreamReader(ResultRead, DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Reads results of one submission in the order in which they are completed."""

    _target: Place | None = None
    _queue: Queue | None = None

    def initialOffset(self) -> dict[str, int]:  # noqa: N802  # Spark's name, as all below
        """Before the first completion."""
        return {_PLACE: 0, _COUNT: 0}

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
        """As the option maxChunksPerTrigger says."""
        most = self.options.max_chunks_per_trigger
        return ReadAllAvailable() if most is None else ReadMaxRows(most)

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        """Stop at what is completed now."""
        self._target = last_completion(self._open(), self.source.submission_id)

    def reportLatestOffset(self) -> dict[str, int]:  # noqa: N802
        """The place of the latest completion."""
        return {_PLACE: last_completion(self._open(), self.source.submission_id).seq}

    def latestOffset(self, start: dict[str, int], limit: ReadLimit) -> dict[str, int]:  # noqa: N802
        """The end of the next micro-batch; waits a moment while nothing was completed.

        Raises:
            NotFound: history that the stream has not read was pruned.
            Moved: the submission has moved, so completions are in another order.
            WorkFailed: all results are read, no more will come, and chunks without a result may not be skipped.
        """
        place, count = start[_PLACE], start[_COUNT]
        last = self._target if self._target is not None else self._wait_for_completion(place)
        if start.get(_SHARD, last.shard) != last.shard:
            raise has_moved(self.source.submission_id)
        if last.seq <= place:
            self._check_end(start)
            return start
        most = limit.max_rows if isinstance(limit, ReadMaxRows) else None
        end, end_count = place, count
        for done in self._following(start, last):
            if most is not None and end > place and end_count + done.mask.bit_count() - count > most:
                break
            end, end_count = done.seq, end_count + done.mask.bit_count()
        return {_PLACE: end, _COUNT: end_count, _SHARD: last.shard}

    def partitions(self, start: dict[str, int], end: dict[str, int]) -> list[InputPartition]:
        """The chunks that were completed between two places.

        Raises:
            NotFound: some of them are no longer known, because history was pruned.
            Moved: the submission has moved, so completions are in another order.
        """
        number = self.source.submission_id
        found = [
            Pieces(number, done.block, done.mask, done.attempts)
            for done in completions(self._open(), number, start[_PLACE], end[_PLACE], end.get(_SHARD))
        ]
        if sum(piece.mask.bit_count() for piece in found) < end[_COUNT] - start[_COUNT]:
            self._check_kept(start, end.get(_SHARD))
            raise self._pruned()
        return list(map(ChunkPieces, split_pieces(found, self.options.chunks_per_partition or PARTITION_CHUNKS)))

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The rows of some completed chunks, on an executor."""
        if not isinstance(partition, ChunkPieces):
            return
        with self.daemon.open(is_planned=True) as queue:
            results = fetch_pieces(queue, self.source, partition.pieces)
            yield from self.batches.of(results, attempts_by_chunk(partition.pieces))

    def commit(self, end: dict[str, int]) -> None:
        """Do nothing: nothing is held for the stream."""

    def stop(self) -> None:
        """Close the connection."""
        queue, self._queue = self._queue, None
        if queue is not None:
            queue.close()

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"_queue": None}

    def _open(self) -> Queue:
        """The connection of the process that plans, kept from batch to batch."""
        if self._queue is None:
            self._queue = self.daemon.open(is_planned=True)
        return self._queue

    def _following(self, start: dict[str, int], last: Place) -> Iterator[Completion]:
        """The completions after an offset, of which none is missing and none was before it."""
        queue, number, place = self._open(), self.source.submission_id, start[_PLACE]
        if place:
            found = completions(queue, number, place - 1, last.seq, last.shard)
            first = next(found, None)
            if first is not None and first.seq == place:  # the oldest history goes first: so nothing behind it is gone
                return found
        self._check_kept(start, last.shard)
        return completions(queue, number, place, last.seq, last.shard)

    def _check_kept(self, start: dict[str, int], shard: int | None) -> None:
        """Check that the history after an offset has every completion that is not before it, and no other.

        Raises:
            NotFound: some are missing.
            Moved: some come again, as the submission was away meanwhile.
        """
        queue, number = self._open(), self.source.submission_id
        submission = queue.submission(number)
        completed_count = submission.state().completed_count
        deadline = time.monotonic() + _COMMIT_S
        pause_s = _FIRST_PAUSE_S
        while True:
            following = completions(queue, number, start[_PLACE], None, shard)
            count = start[_COUNT] + sum(done.mask.bit_count() for done in following)
            if count > completed_count and count > submission.state().completed_count:
                raise has_moved(number)
            if count >= completed_count:
                return
            if time.monotonic() >= deadline:
                raise self._pruned()
            time.sleep(pause_s)
            pause_s = min(pause_s * 2, _LONGEST_PAUSE_S)

    def _check_end(self, start: dict[str, int]) -> None:
        """Check, when nothing follows an offset, that nothing is missing, and in the end that all chunks have results.

        Raises:
            NotFound: completions are missing.
            WorkFailed: a chunk has no result, and may not be skipped.
        """
        queue, number = self._open(), self.source.submission_id
        state = queue.submission(number).state()
        if start[_COUNT] < state.completed_count:
            self._check_kept(start, start.get(_SHARD))
        if state.state in FINAL_STATES and last_completion(queue, number).seq <= start[_PLACE]:
            check_final(queue, self.source, skips_dead=self.options.skips_dead)

    def _pruned(self) -> NotFound:
        return NotFound(
            f"The history of submission {self.source.submission_id} was pruned before this stream had read it, so the "
            "stream cannot know which results are still to come.",
            hint="All results still exist: read them with spark.read once the submission has ended. The settings "
            "history_days and history_rows control how much history is kept.",
        )

    def _wait_for_completion(self, place: int) -> Place:
        deadline = time.monotonic() + _IDLE_S
        pause_s = _FIRST_PAUSE_S
        while True:
            last = last_completion(self._open(), self.source.submission_id)
            if last.seq > place or time.monotonic() >= deadline:
                return last
            time.sleep(pause_s)
            pause_s = min(pause_s * 2, _LONGEST_PAUSE_S)


@dataclass
class StreamWrote(WriterCommitMessage):
    """What a task of a micro-batch reports to the driver: its part, and the query."""

    part: PartMessage
    query_id: str


class OpsqStreamWriter(DataSourceStreamArrowWriter):
    """Makes a submission of each micro-batch that has rows.

    Args:
        options: of the write.
        schema: of the DataFrame.
        overwrite: Spark's output mode "complete", which is refused.
    """

    def __init__(self, options: WriteOptions, schema: t.StructType, overwrite: bool) -> None:
        for name, field in (("idempotencyKey", "idempotency_key"), ("unique", "unique_key")):
            if field in options.rules:
                raise UsageError(
                    f"{name} is for batch writes: a stream identifies its micro-batches by its checkpoint.",
                    hint="Leave it out, and keep the checkpointLocation.",
                )
        self.schema = schema
        self.plan = plan_write(options, schema, overwrite=overwrite)

    def write(self, iterator: Iterator[pa.RecordBatch]) -> StreamWrote:
        """Write one partition of a micro-batch, on an executor.

        The request key is derived from that of this run of the query and from the batch, so that all tasks of the batch
        share it, and no other run or replay does.
        """
        context = TaskContext.get()
        if context is None:
            raise UsageError("Only tasks of Spark can write a stream.")
        query_id = context.getLocalProperty("sql.streaming.queryId") or ""
        batch_id = context.getLocalProperty("streaming.sql.batchId") or ""
        key = blake2b(f"{query_id}/{batch_id}".encode(), key=self.plan.request_key, digest_size=16).digest()
        return StreamWrote(
            write_rows(msgspec.structs.replace(self.plan, request_key=key), self.schema, iterator), query_id
        )

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803  # Spark's name
        """Submit a micro-batch, unless it was submitted before."""
        wrote = [message for message in messages if isinstance(message, StreamWrote)]
        if not any(message.part.written for message in wrote):
            return
        key = f"spark-stream-{wrote[0].query_id}-{batchId}"
        options = msgspec.structs.replace(self.plan.options, rules=self.plan.options.rules | {"idempotency_key": key})
        plan = msgspec.structs.replace(self.plan, options=options, request_key=wrote[0].part.request_key)
        submit_parts(plan, [message.part for message in wrote], arrow_schema(self.schema), is_replay_safe=True)

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        """Delete what a failed micro-batch wrote, unless it was submitted after all. Spark runs it again."""
        for key in {message.part.request_key for message in messages if isinstance(message, StreamWrote)}:
            withdraw(self.plan.daemon, self.plan.store, key)

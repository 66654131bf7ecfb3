"""Streams as Spark sees them: results of a submission as they are completed, and a submission for each micro-batch.

This file must not know formats or the protocol. Where a stream of results stands is a place in the order of completions,
which is only appended to, so that any stretch of it can be read again, and how many chunks come up to there, which shows when a
part of the order is gone because old history was pruned; a micro-batch is known by its query and number, so that
its replay makes nothing new.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
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
from opsq.ids import first_bits, mask_indexes
from opsq.spark.formats.schemas import arrow_schema
from opsq.spark.source.batch_reader import Batches, ResultForm, check_schema, guess_format
from opsq.spark.source.batch_writer import plan_write, write_rows
from opsq.spark.source.commit import PartMessage, hand_over, take_back
from opsq.spark.source.daemon_address import PATIENCE_S, resolve
from opsq.spark.source.result_fetch import (
    FINAL_STATES,
    PARTITION_CHUNKS,
    check_final,
    completions,
    fetch_some,
    first_kept,
    first_result,
    last_completion,
    look_up,
)
from opsq.spark.source.source_options import ReadOptions, WriteOptions

if TYPE_CHECKING:
    from opsq.client.sync.queue import Queue

_PLACE = "completion"
_COUNT = "chunks"
"""How many chunks were completed up to that place."""
_COMMIT_S = 30.0
"""How long what the daemon counts as completed may take to be in its history."""
_IDLE_S = 1.0
"""How long a look for news may take while there are none; else a query without a trigger would ask a hundred times a second."""
_FIRST_PAUSE_S = 0.02
_LONGEST_PAUSE_S = 0.25


class Stretch(InputPartition):
    """Completed chunks, as (block, mask, attempts)."""

    def __init__(self, chosen: list[tuple[int, int, int]]) -> None:
        super().__init__(len(chosen))
        self.chosen = chosen


class OpsqStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Reads results of one submission in the order in which they are completed.

    Args:
        options: of the read.
        schema: of the DataFrame.
        form: how results look, if that is known already.
    """

    def __init__(self, options: ReadOptions, schema: t.StructType, form: ResultForm | None) -> None:
        check_schema(schema, options)
        self.options = options
        self.daemon = resolve(options.reach)
        with self.daemon.open() as queue:
            self.made = look_up(queue, options.submission)
            result_format = form.result_format if form is not None else options.result_format
            if result_format is None:
                result_format = guess_format(self.made, first_result(queue, self.made))
        self.batches = Batches(self.made.submission_id, result_format, schema, options.metadata_columns)
        self._target: int | None = None
        self._queue: Queue | None = None

    def initialOffset(self) -> dict[str, int]:  # noqa: N802  # Spark's name, as all below
        """Before the first completion."""
        return {_PLACE: 0, _COUNT: 0}

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
        """As the option maxChunksPerTrigger says."""
        most = self.options.max_chunks_per_trigger
        return ReadAllAvailable() if most is None else ReadMaxRows(most)

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        """End at what is completed now."""
        self._target = last_completion(self._open(), self.made.submission_id)

    def reportLatestOffset(self) -> dict[str, int]:  # noqa: N802
        """How far completions have come."""
        return {_PLACE: last_completion(self._open(), self.made.submission_id)}

    def latestOffset(self, start: dict[str, int], limit: ReadLimit) -> dict[str, int]:  # noqa: N802
        """How far the next micro-batch goes; waits a moment while there is no news.

        Raises:
            NotFound: history that the stream has not read is pruned.
            WorkFailed: all results are read, no more will come, and chunks that have none are not to be passed over.
        """
        place, count = start[_PLACE], start[_COUNT]
        last = self._target if self._target is not None else self._news(place)
        if last <= place or first_kept(self._open()) > place + 1:
            self._check_kept(place, count)
        if last <= place:
            self._check_end(place)
            return start
        most = limit.max_rows if isinstance(limit, ReadMaxRows) else None
        end, end_count = place, count
        for done in completions(self._open(), self.made.submission_id, place, last):
            if most is not None and end > place and end_count + done.mask.bit_count() - count > most:
                break
            end, end_count = done.seq, end_count + done.mask.bit_count()
        return {_PLACE: end, _COUNT: end_count}

    def partitions(self, start: dict[str, int], end: dict[str, int]) -> list[InputPartition]:
        """The chunks that were completed between two places.

        Raises:
            NotFound: some of them are not known any more, because history was pruned.
        """
        size = self.options.chunks_per_partition or PARTITION_CHUNKS
        cut: list[InputPartition] = []
        chosen: list[tuple[int, int, int]] = []
        count = found_count = 0
        for done in completions(self._open(), self.made.submission_id, start[_PLACE], end[_PLACE]):
            found_count += done.mask.bit_count()
            left = done.mask
            while left:
                taken = first_bits(left, size - count)
                chosen.append((done.block, taken, done.attempts))
                count += taken.bit_count()
                left &= ~taken
                if count == size:
                    cut.append(Stretch(chosen))
                    chosen, count = [], 0
        if found_count < end[_COUNT] - start[_COUNT]:
            raise self._pruned()
        return [*cut, Stretch(chosen)] if chosen else cut

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The rows of some completed chunks, on an executor."""
        if not isinstance(partition, Stretch):
            return
        attempts: Mapping[int, int] = {
            chunk: attempts for block, mask, attempts in partition.chosen for chunk in mask_indexes(block, mask)
        }
        with self.daemon.open(patience_s=PATIENCE_S) as queue:
            results = fetch_some(queue, self.made, [(block, mask) for block, mask, _ in partition.chosen])
            yield from self.batches.of(results, attempts)

    def commit(self, end: dict[str, int]) -> None:
        """Nothing is held for the stream, so nothing is given up."""

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
            self._queue = self.daemon.open(patience_s=PATIENCE_S)
        return self._queue

    def _check_kept(self, place: int, count: int) -> None:
        """See to it that the history has every completion after a place, before which there are `count`.

        Raises:
            NotFound: it has not.
        """
        queue, number = self._open(), self.made.submission_id
        completed_count = queue.submission(number).state().completed_count
        deadline = time.monotonic() + _COMMIT_S
        pause_s = _FIRST_PAUSE_S
        while count < completed_count:
            if (
                count + sum(done.mask.bit_count() for done in completions(queue, number, place, None))
                >= completed_count
            ):
                return
            if time.monotonic() >= deadline:
                raise self._pruned()
            time.sleep(pause_s)
            pause_s = min(pause_s * 2, _LONGEST_PAUSE_S)

    def _check_end(self, place: int) -> None:
        """See to it that no chunk lacks a result for good, once all results are read.

        Raises:
            WorkFailed: one does, and that is not to be passed over.
        """
        queue, number = self._open(), self.made.submission_id
        if queue.submission(number).state().state in FINAL_STATES and last_completion(queue, number) <= place:
            check_final(queue, self.made, skips_dead=self.options.skips_dead)

    def _pruned(self) -> NotFound:
        return NotFound(
            f"The history of submission {self.made.submission_id} was pruned before this stream had read it, so it cannot tell which "
            "results are still to come.",
            hint="All results are still there: read them with spark.read once the submission has ended. The settings history_days and "
            "history_rows say how much history is kept.",
        )

    def _news(self, place: int) -> int:
        deadline = time.monotonic() + _IDLE_S
        pause_s = _FIRST_PAUSE_S
        while True:
            last = last_completion(self._open(), self.made.submission_id)
            if last > place or time.monotonic() >= deadline:
                return last
            time.sleep(pause_s)
            pause_s = min(pause_s * 2, _LONGEST_PAUSE_S)


@dataclass
class StreamWrote(WriterCommitMessage):
    """What a task of a micro-batch tells the driver: its part, and whose batch it was."""

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
        if options.idempotency_key is not None:
            raise UsageError(
                "idempotencyKey is for batch writes: a stream knows each of its micro-batches by its checkpoint.",
                hint="Leave it out, and keep the checkpointLocation.",
            )
        self.schema = schema
        self.plan = plan_write(options, schema, overwrite=overwrite)

    def write(self, iterator: Iterator[pa.RecordBatch]) -> StreamWrote:
        """Write one partition of a micro-batch, on an executor.

        The key of the hand-over is made of that of this run of the query and of the batch, so that all tasks of the batch have the
        same, and no other run, nor a replay, has it.
        """
        context = TaskContext.get()
        if context is None:
            raise UsageError("A stream is written by tasks of Spark only.")
        query_id = context.getLocalProperty("sql.streaming.queryId") or ""
        batch_id = context.getLocalProperty("streaming.sql.batchId") or ""
        key = blake2b(f"{query_id}/{batch_id}".encode(), key=self.plan.request_key, digest_size=16).digest()
        return StreamWrote(
            write_rows(msgspec.structs.replace(self.plan, request_key=key), self.schema, iterator), query_id
        )

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803  # Spark's name
        """Hand over a micro-batch; one that was handed over before is left as it is."""
        wrote = [message for message in messages if isinstance(message, StreamWrote)]
        if not any(message.part.written for message in wrote):
            return
        options = msgspec.structs.replace(
            self.plan.options, idempotency_key=f"spark-stream-{wrote[0].query_id}-{batchId}"
        )
        plan = msgspec.structs.replace(self.plan, options=options, request_key=wrote[0].part.request_key)
        hand_over(plan, [message.part for message in wrote], arrow_schema(self.schema), is_replay_safe=True)

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        """The micro-batch failed: nothing of it is left, unless it was handed over after all. It will come again."""
        for key in {message.part.request_key for message in messages if isinstance(message, StreamWrote)}:
            take_back(self.plan.daemon, self.plan.store, key)

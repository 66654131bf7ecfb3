"""A stream of chunks: a batch that is replayed is the same, one that is done completes its chunks.

Wherever the query ends.

Most tests call what Spark calls, in the order in which it does, against a real daemon and without a JVM.
"""

from __future__ import annotations

import json
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import types as t
from pyspark.sql.streaming.datasource import ReadMaxRows

import opsq
from daemons import kill, running
from opsq.client.core.new_submission import new_request_key
from opsq.errors import InvalidStrategy, NotFound, UsageError
from opsq.settings import Settings
from opsq.spark.source.batch_reader import ChunkPieces
from opsq.spark.source.chunk_stream import OpsqChunkReader, chunk_schema
from opsq.spark.source.commit import WritePlan, submit_parts, write_part
from opsq.spark.source.daemon_address import resolve, store_of
from opsq.spark.source.data_source import OpsqDataSource
from opsq.spark.source.lease_stream import StreamPosition, position_of
from opsq.spark.source.result_fetch import completions
from opsq.spark.source.source_options import parse_chunks, parse_write
from opsq.wire.messages import HeldChunks, Reserve, Reserved
from spark.streaming import run_to_end
from waiting import wait_until

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

LINES = t.StructType([t.StructField("value", t.StringType()), t.StructField("_chunk", t.LongType())])
Offset = dict[str, Any]


def reader_of(daemon: Settings, schema: t.StructType = LINES, **options: str) -> OpsqChunkReader:
    """What Spark gets anew for each run of a query."""
    given = {
        "mode": "chunks",
        "stateDir": daemon.state_dir,
        "consumer": "nightly",
        "strategy": "OldestFirst",
        **options,
    }
    if "_chunk" in schema.names:
        given["metadataColumns"] = "_chunk"
    return OpsqChunkReader(parse_chunks(given), schema)


def stored(offset: Offset) -> Offset:
    """An offset as it comes back from a checkpoint."""
    found: Offset = json.loads(json.dumps(offset))
    return found


def next_batch(reader: OpsqChunkReader, start: Offset, most: int = 1000) -> Offset:
    return stored(reader.latestOffset(start, ReadMaxRows(most)))


def rows(reader: OpsqChunkReader, start: Offset, end: Offset) -> list[tuple[object, ...]]:
    """What executors would read between two offsets, in order."""
    found: list[tuple[object, ...]] = []
    for partition in pickle.loads(pickle.dumps(reader.partitions(start, end))):
        for batch in pickle.loads(pickle.dumps(reader)).read(partition):
            found += [tuple(row.values()) for row in batch.to_pylist()]
    return found


def completed(submission: opsq.Submission) -> int:
    return submission.state().completed_count


@pytest.fixture
def submission(queue: opsq.Queue) -> opsq.Submission:
    """130 chunks, so three blocks."""
    return queue.submit([b"%d\n" % n for n in range(130)])


def test_batches_give_all_chunks_once_each_and_those_that_are_done_are_completed(
    daemon: Settings, submission: opsq.Submission
):
    reader = reader_of(daemon, chunksPerPartition="7")
    place, found = reader.initialOffset(), []
    while (end := next_batch(reader, place, 50)) != place:
        assert completed(submission) == place["ordinal"]
        found.append(rows(reader, place, end))
        place = end
    assert [len(batch) for batch in found] == [50, 50, 30]
    assert [row for batch in found for row in batch] == [(str(n), n) for n in range(130)]
    assert submission.state().state == "completed"
    assert [bytes(result) for result in submission.results()] == [b""] * 130
    reader.stop()


def test_batch_has_a_row_for_each_chunk_though_no_column_of_the_data_is_wanted(
    daemon: Settings, submission: opsq.Submission
):
    reader = reader_of(daemon, t.StructType(LINES.fields[1:]))
    start = reader.initialOffset()
    assert rows(reader, start, next_batch(reader, start)) == [(n,) for n in range(130)]
    assert completed(submission) == 0
    reader.stop()


def test_partitions_have_as_many_chunks_as_options_say_across_blocks(daemon: Settings, submission: opsq.Submission):
    reader = reader_of(daemon, chunksPerPartition="60")
    start = reader.initialOffset()
    cut = [part for part in reader.partitions(start, next_batch(reader, start)) if isinstance(part, ChunkPieces)]
    assert [sum(piece.mask.bit_count() for piece in part.pieces) for part in cut] == [60, 60, 10]
    reader.stop()


def test_batch_is_the_same_when_a_new_run_of_the_query_replays_it(
    daemon: Settings, queue: opsq.Queue, submission: opsq.Submission
):
    first = reader_of(daemon)
    start = first.initialOffset()
    middle = next_batch(first, start, 10)
    end = next_batch(first, middle, 70)
    before = rows(first, middle, end)
    first.stop()
    with queue.consumer("OldestFirst") as other:
        assert other.reserve(1000).chunks_count == 50  # what the query has taken is not had by others
    second = reader_of(daemon)
    assert rows(second, middle, end) == before
    assert [row[1] for row in before] == list(range(10, 80))
    second.commit(middle)
    assert completed(submission) == 10
    assert next_batch(second, end, 5)["ordinal"] == 85
    assert completed(submission) == 80
    second.stop()


def test_query_that_was_killed_before_its_offset_was_written_loses_nothing(
    daemon: Settings, queue: opsq.Queue, submission: opsq.Submission
):
    killed = reader_of(daemon, lease="1")
    start = killed.initialOffset()
    next_batch(killed, start, 130)
    killed.stop()
    again = reader_of(daemon)
    end = wait_until(lambda: (found := next_batch(again, start)) != start and found, 300, "the lease has lapsed")
    assert rows(again, start, end) == [(str(n), n) for n in range(130)]
    again.stop()


def test_chunks_are_acknowledged_once_by_commit_and_by_the_look_for_the_next_batch(daemon: Settings, queue: opsq.Queue):
    submission = queue.submit([b"a\n", b"b\n", b"c\n"])
    reader = reader_of(daemon)
    reader.prepareForTriggerAvailableNow()
    start = reader.initialOffset()
    middle = next_batch(reader, start, 2)
    reader.commit(middle)
    assert completed(submission) == 2
    end = next_batch(reader, middle, 2)
    reader.commit(middle)
    assert next_batch(reader, end) == end
    reader.commit(end)
    again = reader_of(daemon)  # started again, with nothing new
    again.prepareForTriggerAvailableNow()
    assert next_batch(again, end) == end
    assert sorted(done.mask for done in completions(queue, submission.id, 0, None)) == [0b011, 0b100]
    assert completed(submission) == 3
    reader.stop()
    again.stop()


def test_leases_do_not_lapse_while_the_query_runs(daemon: Settings, queue: opsq.Queue, submission: opsq.Submission):
    reader = reader_of(daemon, lease="1")
    start = reader.initialOffset()
    end = next_batch(reader, start)
    other = queue.submit([b"x\n"])
    # This one lapses after the lease of the query would have.
    assert queue.link.call(Reserve(queue.link.next_id(), 1, lease_s=1.5), Reserved).grants
    wait_until(lambda: other.state().reserved_count == 0, 300, "another lease has lapsed")
    assert submission.state().reserved_count == 130
    next_batch(reader, end)
    assert submission.state().state == "completed"
    reader.stop()


def test_chunks_whose_lease_lapsed_are_taken_up_again_by_the_replay(
    daemon: Settings, queue: opsq.Queue, submission: opsq.Submission
):
    first = reader_of(daemon, lease="1")
    start = first.initialOffset()
    end = next_batch(first, start)
    first.stop()
    wait_until(lambda: submission.state().reserved_count == 0, 300, "the lease has lapsed")
    second = reader_of(daemon)
    second.prepareForTriggerAvailableNow()
    assert rows(second, start, end) == [(str(n), n) for n in range(130)]
    assert submission.state().reserved_count == 130
    second.stop()
    kill(daemon)
    with running(Path(daemon.state_dir)):  # what was taken up again is a lease as before
        assert submission.state().reserved_count == 130
        third = reader_of(daemon)
        third.commit(end)
        assert submission.state().state == "completed"
        third.stop()


def test_chunks_that_others_have_done_meanwhile_are_in_the_replay_all_the_same(
    daemon: Settings, queue: opsq.Queue, submission: opsq.Submission
):
    first = reader_of(daemon, lease="1")
    start = first.initialOffset()
    end = next_batch(first, start)
    first.stop()
    wait_until(lambda: submission.state().reserved_count == 0, 300, "the lease has lapsed")
    with queue.consumer("OldestFirst") as other:
        other.reserve(20).complete()
        other.flush()
    second = reader_of(daemon)
    assert [row[1] for row in rows(second, start, end)] == list(range(130))
    second.commit(end)
    assert submission.state().state == "completed"
    second.stop()


def test_chunks_of_a_removed_submission_are_left_out_and_the_rest_goes_on(
    daemon: Settings, queue: opsq.Queue, submission: opsq.Submission
):
    later = queue.submit([b"a\n", b"b\n"])
    first = reader_of(daemon)
    start = first.initialOffset()
    end = next_batch(first, start)
    [partition, *_] = first.partitions(start, end)
    submission.cancel()
    submission.remove()
    with pytest.raises(
        NotFound, match=r"was removed while a stream had chunks of it; after a restart it continues without them"
    ):
        next(first.read(partition))
    first.stop()
    second = reader_of(daemon)
    for _ in range(2):  # Spark may ask twice
        assert rows(second, start, end) == [("a", 0), ("b", 1)]
    second.commit(end)
    assert later.state().state == "completed"
    second.stop()


def test_daemon_that_is_restarted_under_a_query_is_met_again(runtime_dir: Path):
    with running(runtime_dir) as daemon, opsq.connect(state_dir=daemon.state_dir) as queue:
        submission_id = queue.submit([b"%d\n" % n for n in range(70)]).id
        reader = reader_of(daemon)
        start = reader.initialOffset()
        place = next_batch(reader, start, 66)
    with running(runtime_dir) as daemon, opsq.connect(state_dir=daemon.state_dir) as queue:
        assert len(rows(reader, start, place)) == 66
        assert next_batch(reader, place)["ordinal"] == 70
        assert queue.submission(submission_id).state().completed_count == 66
        reader.stop()


def test_available_now_ends_at_what_waited_when_it_began(daemon: Settings, queue: opsq.Queue):
    queue.submit([b"a\n", b"b\n"])
    reader = reader_of(daemon)
    reader.prepareForTriggerAvailableNow()
    later = queue.submit([b"c\n"])
    first = next_batch(reader, reader.initialOffset())
    assert first["ordinal"] == 2
    assert next_batch(reader, first) == first
    assert later.state().completed_count == later.state().reserved_count == 0
    reader.stop()


def test_consumer_is_known_by_its_name_and_its_strategy_is_followed(daemon: Settings, queue: opsq.Queue):
    queue.submit([b"a\n", b"b\n"], metadata={"tenant": "acme"})
    queue.submit([b"x\n"], metadata={"tenant": "other"})
    reader = reader_of(daemon, strategy="SelectOnly(tenant=acme, OldestFirst)")
    start = reader.initialOffset()
    assert next_batch(reader, start)["ordinal"] == 2
    [consumer] = queue.status().consumers
    assert consumer.consumer.startswith("nightly")
    assert consumer.reserved_count == 2
    reader.stop()


def test_two_queries_under_one_name_share_the_work_and_no_chunk(daemon: Settings, submission: opsq.Submission):
    readers = [reader_of(daemon), reader_of(daemon)]
    start = readers[0].initialOffset()
    ends = [next_batch(reader, start, 65) for reader in readers]
    found = [rows(reader, start, end) for reader, end in zip(readers, ends, strict=True)]
    assert [row[1] for batch in found for row in batch] == list(range(130))
    for reader, end in zip(readers, ends, strict=True):
        reader.commit(end)
        reader.stop()
    assert submission.state().state == "completed"


def test_wrong_strategy_is_refused_by_the_daemon_in_words(daemon: Settings):
    reader = reader_of(daemon, strategy="Eldest")
    with pytest.raises(InvalidStrategy):
        next_batch(reader, reader.initialOffset())
    reader.stop()


def test_chunk_that_cannot_be_read_is_named_with_the_way_on(daemon: Settings, queue: opsq.Queue):
    submission = queue.submit([b"no json\n"])
    reader = reader_of(daemon, t.StructType([t.StructField("n", t.LongType())]), chunkFormat="jsonl")
    start = reader.initialOffset()
    with pytest.raises(UsageError, match=rf"Chunk {submission.id}/0 cannot be used. It is not JSON lines.*opsq rm"):
        rows(reader, start, next_batch(reader, start))
    reader.stop()


def test_checkpoint_of_another_stream_is_refused(daemon: Settings):
    reader = reader_of(daemon)
    with pytest.raises(UsageError, match="does not belong to a stream of chunks"):
        reader.latestOffset({"completion": 7}, ReadMaxRows(1))
    reader.stop()


def test_offset_comes_back_from_json_as_it_was():
    widest = HeldChunks((1 << 63) - 1, 7, (1 << 64) - 1, 1 << 40, 3, (1 << 64) - 1, (1 << 64) - 1)
    place = StreamPosition(64, [widest])
    assert position_of(stored(place.offset())) == place
    assert json.dumps(stored(place.offset())) == json.dumps(place.offset())


def test_thousand_chunks_of_whole_blocks_make_an_offset_of_less_than_three_kilobytes(
    daemon: Settings, queue: opsq.Queue
):
    queue.submit([b"x"] * 1000)
    reader = reader_of(daemon)
    offset = next_batch(reader, reader.initialOffset())
    assert offset["ordinal"] == 1000
    assert len(json.dumps(offset)) < 3000
    reader.stop()


# --- columns ----------------------------------------------------------------------------------------------------------


def options_of(daemon: Settings, **options: str) -> dict[str, str]:
    return {"mode": "Chunks", "stateDir": daemon.state_dir, "consumer": "nightly", **options}


def test_columns_are_those_of_the_chunk_that_would_come_first(daemon: Settings, queue: opsq.Queue):
    schema = t.StructType([t.StructField("n", t.LongType()), t.StructField("s", t.StringType())])
    written = parse_write({"stateDir": daemon.state_dir, "chunkFormat": "jsonl"})
    plan = WritePlan(written, resolve(written.daemon), store_of(queue), schema.json(), new_request_key())
    table = pa.table({"n": [1, 2], "s": ["a", "b"]})
    submission_id = submit_parts(plan, [write_part(plan, table.schema, table.to_batches(), 0, 0)], table.schema)
    found = chunk_schema(parse_chunks(options_of(daemon, columns="s", metadataColumns="true")))
    assert found.simpleString() == "struct<s:string,_submission:bigint,_chunk:bigint,_attempts:int>"
    reader = OpsqChunkReader(parse_chunks(options_of(daemon, columns="s", metadataColumns="true")), found)
    start = reader.initialOffset()
    assert rows(reader, start, next_batch(reader, start)) == [("a", submission_id, 0, 1), ("b", submission_id, 0, 1)]
    reader.stop()


def test_chunks_that_no_dataframe_made_are_lines_or_bytes(daemon: Settings, queue: opsq.Queue):
    with pytest.raises(UsageError, match="No chunk is waiting to take the columns"):
        chunk_schema(parse_chunks(options_of(daemon)))
    queue.submit([b"a\nb\n"])
    assert chunk_schema(parse_chunks(options_of(daemon))).simpleString() == "struct<value:string>"
    with pytest.raises(UsageError, match="was not made from a DataFrame and has no columns"):
        chunk_schema(parse_chunks(options_of(daemon, chunkFormat="csv")))
    whole = chunk_schema(parse_chunks(options_of(daemon, chunkFormat="binary")))
    reader = reader_of(daemon, whole, chunkFormat="binary")
    start = reader.initialOffset()
    assert rows(reader, start, next_batch(reader, start)) == [(b"a\nb\n",)]
    reader.stop()


def test_mode_chunks_is_for_streams(daemon: Settings):
    source = OpsqDataSource(options_of(daemon, metadataColumns="_chunk"))
    assert isinstance(source.streamReader(LINES), OpsqChunkReader)
    with pytest.raises(UsageError, match=r"only be read as a stream: use spark.readStream"):
        source.reader(LINES)


# --- in Spark ---------------------------------------------------------------------------------------------------------


def test_batch_that_raised_comes_again_and_in_the_end_all_is_completed_once(
    spark: SparkSession, daemon: Settings, queue: opsq.Queue, tmp_path: Path
):
    submission = queue.submit([b"%d\n" % n for n in range(200)])
    seen: list[tuple[int, list[str]]] = []

    def fails_in_the_second(frame: DataFrame, number: int) -> None:
        seen.append((number, sorted(row["value"] for row in frame.collect())))
        if len(seen) == 2:
            raise RuntimeError("the sink is down")

    def run(each: Callable[[DataFrame, int], None]) -> None:
        frame = spark.readStream.format("opsq").options(mode="chunks", stateDir=daemon.state_dir, consumer="nightly")
        stream = frame.option("maxChunksPerTrigger", 70).load().writeStream.foreachBatch(each)
        run_to_end(stream.option("checkpointLocation", str(tmp_path / "checkpoint")))

    with pytest.raises(StreamingQueryException, match="the sink is down"):
        run(fails_in_the_second)
    assert completed(submission) == 70
    run(fails_in_the_second)
    assert seen[1] == seen[2]
    assert sorted(value for values in dict(seen).values() for value in values) == sorted(str(n) for n in range(200))
    assert submission.state().state == "completed"


def test_dataframe_that_was_written_comes_as_a_stream_of_its_chunks_and_so_does_what_is_written_later(
    spark: SparkSession, daemon: Settings, queue: opsq.Queue, write: Callable[..., opsq.Submission], tmp_path: Path
):
    first = write(spark.range(10).selectExpr("id", "CAST(id AS STRING) AS name"), rowsPerChunk=3)
    found: list[tuple[object, ...]] = []

    def keep(frame: DataFrame, number: int) -> None:
        found.extend(tuple(row) for row in frame.collect())

    reader = spark.readStream.format("opsq").options(
        mode="chunks", stateDir=daemon.state_dir, consumer="nightly", metadataColumns="_submission"
    )
    query = (
        reader.load().writeStream.foreachBatch(keep).option("checkpointLocation", str(tmp_path / "checkpoint")).start()
    )
    try:
        wait_until(lambda: first.state().state == "completed", 120, "the first submission is done")
        later = write(spark.range(10, 12).selectExpr("id", "CAST(id AS STRING) AS name"), chunkFormat="jsonl")
        wait_until(lambda: later.state().state == "completed", 120, "the later submission is done")
    finally:
        query.stop()
    assert sorted(found) == [(n, str(n), first.id if n < 10 else later.id) for n in range(12)]

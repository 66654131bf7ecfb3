"""Streams: each completed chunk comes once, whatever is replayed.

Each micro-batch makes one submission, whatever is replayed.
"""

from __future__ import annotations

import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import pytest
from pyspark.errors import PySparkException, StreamingQueryException
from pyspark.sql.types import StructType

import opsq
from acceptance.starter import PROGRAM
from fleets import Fleet, fleet_in
from opsq.client.sync.link import Link
from opsq.errors import Moved, NotFound, WorkFailed
from opsq.settings import Settings
from opsq.spark.source.source_options import parse_read
from opsq.spark.source.stream import OpsqStreamReader
from opsq.wire.messages import Changed, History, HistoryFilter, HistoryRows, Prune
from spark.conftest import folders, work
from spark.streaming import run_to_end
from waiting import wait_until

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming import StreamingQuery


def complete(queue: opsq.Queue, count: int) -> None:
    """Complete so many chunks, each by itself, with its own bytes as a line."""
    for _ in range(count):
        for chunk in queue.consume("OldestFirst", batch=1):
            chunk.complete(chunk.data + b"\n")
            break


def results_stream(spark: SparkSession, daemon: Settings, submission: opsq.Submission, **options: Any) -> DataFrame:
    reader = spark.readStream.format("opsq").options(
        stateDir=daemon.state_dir, metadataColumns="_chunk,_attempts", **options
    )
    return reader.schema("value STRING, _chunk BIGINT, _attempts INT").load(str(submission.id))


def run(frame: DataFrame, checkpoint: Path, each: Callable[[DataFrame, int], None]) -> None:
    """Take all that is there now, in micro-batches."""
    run_to_end(frame.writeStream.foreachBatch(each).option("checkpointLocation", str(checkpoint)))


def test_results_come_once_each_as_they_are_completed_over_restarts_of_the_query(
    spark: SparkSession, daemon: Settings, queue: opsq.Queue, tmp_path: Path
):
    submission = queue.submit([b"%d" % n for n in range(12)])
    batches: dict[int, list[tuple[object, ...]]] = {}

    def keep(frame: DataFrame, number: int) -> None:
        batches[number] = sorted(tuple(row) for row in frame.collect())

    stream = results_stream(spark, daemon, submission, maxChunksPerTrigger=3)
    complete(queue, 7)
    run(stream, tmp_path / "checkpoint", keep)
    assert sum(map(len, batches.values())) == 7
    assert max(map(len, batches.values())) == 3
    run(stream, tmp_path / "checkpoint", keep)
    assert sum(map(len, batches.values())) == 7
    complete(queue, 5)
    run(stream, tmp_path / "checkpoint", keep)
    found = sorted(row for rows in batches.values() for row in rows)
    assert sorted(found, key=lambda row: row[1]) == [(str(n), n, 1) for n in range(12)]


def test_batch_that_raised_is_read_again_exactly(
    spark: SparkSession, daemon: Settings, queue: opsq.Queue, tmp_path: Path
):
    submission = queue.submit([b"%d" % n for n in range(6)])
    complete(queue, 4)
    seen: list[tuple[int, list[str]]] = []

    def fails_in_the_second(frame: DataFrame, number: int) -> None:
        seen.append((number, sorted(row["value"] for row in frame.collect())))
        if len(seen) == 2:
            raise RuntimeError("the sink is down")

    stream = results_stream(spark, daemon, submission, maxChunksPerTrigger=2)
    with pytest.raises(StreamingQueryException, match="the sink is down"):
        run(stream, tmp_path / "checkpoint", fails_in_the_second)
    complete(queue, 2)
    run(stream, tmp_path / "checkpoint", fails_in_the_second)
    assert seen[1] == seen[2]
    kept = dict(seen)
    assert sorted(value for values in kept.values() for value in values) == [str(n) for n in range(6)]


def test_running_query_gets_what_is_completed_meanwhile(
    spark: SparkSession, daemon: Settings, queue: opsq.Queue, tmp_path: Path
):
    submission = queue.submit([b"%d" % n for n in range(4)])
    values: list[str] = []

    def keep(frame: DataFrame, number: int) -> None:
        values.extend(row["value"] for row in frame.collect())

    stream = results_stream(spark, daemon, submission)
    query: StreamingQuery = (
        stream.writeStream.foreachBatch(keep).option("checkpointLocation", str(tmp_path / "c")).start()
    )
    try:
        for count in (1, 3):
            complete(queue, count)
            wait_until(lambda: len(values) == 4 - queue.status().total.waiting_count, 300, "the results have come")
    finally:
        query.stop()
    assert sorted(values) == ["0", "1", "2", "3"]


def test_stream_without_any_result_yet_asks_for_its_columns(spark: SparkSession, daemon: Settings, queue: opsq.Queue):
    submission = queue.submit([b"x"])
    with pytest.raises(PySparkException, match=r"has no result yet to take the columns from.*resultSchema=same"):
        spark.readStream.format("opsq").options(stateDir=daemon.state_dir, resultFormat="jsonl").load(
            str(submission.id)
        )


def reader_of(daemon: Settings | Fleet, submission: opsq.Submission, **options: str) -> OpsqStreamReader:
    """What Spark asks for the results, without Spark."""
    place = {"address": daemon.address} if isinstance(daemon, Fleet) else {"stateDir": daemon.state_dir}
    given = parse_read({**place, "path": str(submission.id), **options})
    return OpsqStreamReader(given, StructType().add("value", "string"), None)


def rows_between(reader: OpsqStreamReader, start: dict[str, int], end: dict[str, int]) -> list[str]:
    return [
        value
        for part in reader.partitions(start, end)
        for batch in reader.read(part)
        for value in batch.column("value").to_pylist()
    ]


def first_kept(queue: opsq.Queue) -> int:
    """The seq of the oldest event of the history; 0 if there is none."""
    rows = queue.link.call(History(queue.link.next_id(), HistoryFilter(), None, 1), HistoryRows).rows
    return rows[0].seq if rows else 0


def prune(queue: opsq.Queue, keep_count: int) -> None:
    """Forget history but for so many events, as soon as those before are folded."""

    def is_pruned() -> bool:
        queue.link.call(Prune(queue.link.next_id(), keep_count=keep_count), Changed)
        newest = queue.link.call(
            History(queue.link.next_id(), HistoryFilter(), None, 1, newest_first=True), HistoryRows
        ).rows
        return first_kept(queue) == (newest[0].seq - keep_count + 1 if newest else 0)

    wait_until(is_pruned, 300, "the history is pruned")


@pytest.mark.parametrize("keep_count", [0, 2])
@pytest.mark.parametrize("options", [{}, {"maxChunksPerTrigger": "1"}])
def test_stream_whose_next_results_are_pruned_from_the_history_says_so(
    daemon: Settings, queue: opsq.Queue, monkeypatch: pytest.MonkeyPatch, options: dict[str, str], keep_count: int
) -> None:
    monkeypatch.setattr("opsq.spark.source.stream._COMMIT_S", 0.1)
    submission = queue.submit([b"%d" % n for n in range(5)])
    complete(queue, 5)
    reader = reader_of(daemon, submission, **options)
    start, limit = reader.initialOffset(), reader.getDefaultReadLimit()
    end = reader.latestOffset(start, limit)
    prune(queue, keep_count)
    reader.prepareForTriggerAvailableNow()
    with pytest.raises(NotFound, match="was pruned before this stream had read it") as raised:
        reader.latestOffset(start, limit)
    assert "history_days" in (raised.value.hint or "")
    with pytest.raises(NotFound, match="was pruned"):  # a micro-batch that was planned before
        reader.partitions(start, end)
    reader.stop()


def test_stream_goes_on_when_only_what_it_has_read_or_what_is_not_its_own_is_pruned(
    daemon: Settings, queue: opsq.Queue
) -> None:
    other, submission = queue.submit([b"other"]), queue.submit([b"%d" % n for n in range(5)])
    complete(queue, 1)
    prune(queue, 0)
    complete(queue, 3)
    reader = reader_of(daemon, submission)
    limit = reader.getDefaultReadLimit()
    first = reader.latestOffset(reader.initialOffset(), limit)
    assert rows_between(reader, reader.initialOffset(), first) == ["0", "1", "2"]
    prune(queue, 1)
    complete(queue, 2)
    prune(queue, 2)
    second = reader.latestOffset(first, limit)
    assert rows_between(reader, first, second) == ["3", "4"]
    prune(queue, 0)
    assert reader.latestOffset(second, limit) == second
    reader.stop()
    assert other.state().state == "completed"


# --- over shards ------------------------------------------------------------------------------------------------------


@pytest.fixture
def fleet(runtime_dir: Path) -> Iterator[Fleet]:
    with fleet_in(runtime_dir, 2) as fleet:
        yield fleet


@pytest.fixture
def shards(fleet: Fleet) -> Iterator[list[opsq.Queue]]:
    """Connections to each alone."""
    with opsq.connect(fleet.settings[0].socket) as first, opsq.connect(fleet.settings[1].socket) as second:
        yield [first, second]


def move(fleet: Fleet, source: int, target: int) -> None:
    """Move all from one shard to the other, both of which take submissions after that."""
    there = ["drain", "--to", fleet.settings[target].socket, "--all"]
    for words in (there, ["drain", "--undo"]):
        command = [PROGRAM, "--state-dir", fleet.settings[source].state_dir, *words]
        subprocess.run(command, check=True, capture_output=True, timeout=120)


def read_half(fleet: Fleet, shards: list[opsq.Queue]) -> tuple[opsq.Submission, OpsqStreamReader, dict[str, int]]:
    """A submission of which half is done at the first shard, a stream, and where it is when it has read that."""
    submission = shards[0].submit([b"%d" % n for n in range(8)])
    complete(shards[0], 4)
    reader = reader_of(fleet, submission)
    start = reader.initialOffset()
    place = reader.latestOffset(start, reader.getDefaultReadLimit())
    assert rows_between(reader, start, place) == ["0", "1", "2", "3"]
    return submission, reader, place


@pytest.mark.parametrize("others_counts", [(0, 0), (20, 0), (0, 20)], ids=["same", "lower", "higher"])
def test_stream_of_a_submission_that_moves_fails_with_the_reason_and_a_new_one_reads_all(
    fleet: Fleet, shards: list[opsq.Queue], others_counts: tuple[int, int]
) -> None:
    """Completions have the same numbers at the target, lower ones, or higher ones: nothing is read twice or never."""
    for queue, count in zip(shards, others_counts, strict=True):
        if count:
            other = queue.submit([b"other"] * count)
            complete(queue, count)
            other.remove()
    submission, reader, place = read_half(fleet, shards)
    move(fleet, 0, 1)
    complete(shards[1], 2)
    limit = reader.getDefaultReadLimit()
    for again in (reader, reader_of(fleet, submission)):  # the query that runs, and one that is started again
        with pytest.raises(Moved, match=rf"{submission.id} has moved to another daemon") as raised:
            again.latestOffset(place, limit)
        assert "another checkpointLocation" in (raised.value.hint or "")
        with pytest.raises(Moved, match="has moved"):  # a micro-batch that comes again
            again.partitions(again.initialOffset(), place)
        again.stop()
    new = reader_of(fleet, submission)
    start = new.initialOffset()
    end = new.latestOffset(start, limit)
    assert sorted(rows_between(new, start, end)) == ["0", "1", "2", "3", "4", "5"]
    complete(shards[1], 2)
    assert sorted(rows_between(new, end, new.latestOffset(end, limit))) == ["6", "7"]
    new.stop()


@pytest.mark.parametrize("has_more", [False, True])
def test_stream_of_a_submission_that_was_away_and_is_back_reads_nothing_twice(
    fleet: Fleet, shards: list[opsq.Queue], has_more: bool
) -> None:
    submission, reader, place = read_half(fleet, shards)
    reader.stop()
    move(fleet, 0, 1)
    if has_more:
        complete(shards[1], 2)
    move(fleet, 1, 0)
    again = reader_of(fleet, submission)
    with pytest.raises(Moved, match="has moved to another daemon"):
        again.latestOffset(place, again.getDefaultReadLimit())
    again.stop()


def test_stream_over_shards_whose_history_was_pruned_asks_no_more_for_each_batch(
    fleet: Fleet, shards: list[opsq.Queue], monkeypatch: pytest.MonkeyPatch
) -> None:
    for queue in shards:
        queue.submit([b"other"] * 3)
        complete(queue, 3)
        prune(queue, 1)
    submission = shards[0].submit([b"%d" % n for n in range(6)])
    complete(shards[0], 6)
    asked: list[History] = []
    call = Link.call

    def call_and_note(link: Link, request: Any, kind: Any) -> Any:
        asked.extend([request] if isinstance(request, History) else [])
        return call(link, request, kind)

    monkeypatch.setattr(Link, "call", call_and_note)
    reader = reader_of(fleet, submission, maxChunksPerTrigger="1")
    place, counts = reader.initialOffset(), []
    while (end := reader.latestOffset(place, reader.getDefaultReadLimit())) != place:
        assert rows_between(reader, place, end) == [str(len(counts))]
        counts.append(sum(request.where.submission_id is not None for request in asked))
        assert len(asked) == counts[-1], "what other submissions did is no matter"
        asked.clear()
        place = end
    assert len(counts) == 6
    assert set(counts[1:]) == {3}  # the latest, those that follow, and those of the batch
    reader.stop()


# --- dead chunks ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("on_dead", ["fail", "keep"])
def test_stream_of_a_submission_with_a_dead_chunk_fails_at_its_end_unless_that_is_to_be_skipped(
    daemon: Settings, queue: opsq.Queue, on_dead: Literal["fail", "keep"]
) -> None:
    submission = queue.submit([b"%d" % n for n in range(4)], max_attempts=1, on_dead=on_dead)
    complete(queue, 3)
    for skips in (False, True):
        reader = reader_of(daemon, submission, **({"deadChunks": "skip"} if skips else {}))
        start, limit = reader.initialOffset(), reader.getDefaultReadLimit()
        end = reader.latestOffset(start, limit)
        assert rows_between(reader, start, end) == ["0", "1", "2"]
        assert reader.latestOffset(end, limit) == end  # or else the chunk is dead, and that is to be passed over
        if not skips:
            for chunk in queue.consume("OldestFirst"):
                chunk.fail("it was cursed")
            with pytest.raises(WorkFailed, match=r"1 of 4 chunks of submission .* chunk 3 died: it was cursed"):
                reader.latestOffset(end, limit)
        reader.stop()


def test_query_ends_with_an_error_when_a_chunk_died(
    spark: SparkSession, daemon: Settings, queue: opsq.Queue, tmp_path: Path
):
    submission = queue.submit([b"%d" % n for n in range(4)], max_attempts=1, on_dead="keep")
    complete(queue, 3)
    for chunk in queue.consume("OldestFirst"):
        chunk.fail("it was cursed")
    values: list[str] = []

    def keep(frame: DataFrame, number: int) -> None:
        values.extend(row["value"] for row in frame.collect())

    with pytest.raises(StreamingQueryException, match="chunk 3 died: it was cursed"):
        run(results_stream(spark, daemon, submission), tmp_path / "checkpoint", keep)
    assert sorted(values) == ["0", "1", "2"]


# --- a submission for each micro-batch --------------------------------------------------------------------------------


@pytest.fixture
def pour(spark: SparkSession, daemon: Settings, tmp_path: Path) -> Callable[..., None]:
    """Writes what lies in a folder of text files, a file a micro-batch, to its end."""
    (tmp_path / "in").mkdir()

    def pour(**options: str) -> None:
        lines = spark.readStream.schema("value STRING").option("maxFilesPerTrigger", 1).text(str(tmp_path / "in"))
        writer = lines.writeStream.format("opsq").options(
            stateDir=daemon.state_dir, chunkFormat="text", rowsPerChunk="2", **options
        )
        run_to_end(writer.option("checkpointLocation", str(tmp_path / "checkpoint")))

    return pour


def submitted(queue: opsq.Queue) -> list[bytes]:
    """What the submissions hold, oldest first."""
    work(queue)
    ids = sorted(state.submission_id for state in queue.submissions())
    return [b"".join(queue.submission(number).results()) for number in ids]


def test_each_micro_batch_with_rows_is_one_submission(
    queue: opsq.Queue, daemon: Settings, pour: Callable[..., None], tmp_path: Path
):
    for number, text in enumerate(["a\nb\nc\n", "", "d\n"]):
        (tmp_path / "in" / f"{number}.txt").write_text(text)
    pour(**{"meta.kind": "lines"})
    assert sorted(submitted(queue)) == [b"a\nb\nc\n", b"d\n"]
    assert all(state.metadata == {"kind": "lines"} for state in queue.submissions())
    (tmp_path / "in" / "9.txt").write_text("e\n")
    pour()
    assert sorted(submitted(queue)) == [b"a\nb\nc\n", b"d\n", b"e\n"]


def test_micro_batch_that_is_replayed_makes_no_second_submission(
    queue: opsq.Queue, daemon: Settings, pour: Callable[..., None], tmp_path: Path
):
    """The query was killed after its hand-over and before Spark had noted it.

    The batch comes again, in another run of the query.
    """
    (tmp_path / "in" / "0.txt").write_text("a\nb\nc\n")
    pour()
    before = folders(daemon)
    for note in (tmp_path / "checkpoint" / "commits").iterdir():
        note.unlink()
    pour()
    assert len(list(queue.submissions())) == 1
    assert folders(daemon) == before
    assert submitted(queue) == [b"a\nb\nc\n"]


def test_stream_takes_no_idempotency_key(queue: opsq.Queue, pour: Callable[..., None], tmp_path: Path):
    (tmp_path / "in" / "0.txt").write_text("a\n")
    with pytest.raises(PySparkException, match="a stream identifies its micro-batches by its checkpoint"):
        pour(idempotencyKey="x")
    assert list(queue.submissions()) == []

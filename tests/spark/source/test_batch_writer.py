"""DataFrames become submissions: exactly once, whatever fails on the way; what cannot be kept is refused by name."""

from __future__ import annotations

import datetime as dt
import decimal
import io
import re
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from threading import Thread
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.errors import AnalysisException, PySparkException, PythonException
from pyspark.sql import functions as f
from pyspark.testing import assertDataFrameEqual

import opsq
import opsq.spark
from daemons import end, holder
from opsq.daemon import lifecycle
from opsq.errors import Unreachable, UsageError
from opsq.settings import Settings
from opsq.wire.messages import Backoff
from spark.conftest import folders, parts, work
from waiting import wait_until

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType

Write = Callable[..., opsq.Submission]
Read = Callable[..., "DataFrame"]

SCHEMA = (
    "n BIGINT, text STRING, amount DECIMAL(38,10), at TIMESTAMP, local TIMESTAMP_NTZ, day DATE, raw BINARY, flag "
    "BOOLEAN, small TINYINT, "
    "real FLOAT, tags ARRAY<STRING>, scores MAP<STRING, DOUBLE>, inner STRUCT<a: INT, b: ARRAY<STRUCT<c: TIMESTAMP>>>, "
    "span INTERVAL DAY TO SECOND"
)
UTC = dt.UTC
ROW = (
    7,
    'ä "x"\n,',
    decimal.Decimal("1234567890123456789012345678.0123456789"),
    dt.datetime(2026, 3, 8, 7, 30, 0, 5, UTC),
    dt.datetime(2026, 3, 8, 2, 30),  # noqa: DTZ001
    dt.date(1600, 1, 1),
    b"\0\xff",
    True,
    -128,
    0.5,
    ["a", None],
    {"k": 1.5, "l": None},
    (1, [(dt.datetime(2026, 1, 1, tzinfo=UTC),)]),
    dt.timedelta(days=-2, microseconds=7),
)
FLAT = ("n", "text", "amount", "at", "local", "day", "flag", "small", "real")
JSON = (*FLAT, "raw", "tags", "scores", "inner")


def frame_of_all_types(spark: SparkSession) -> DataFrame:
    return spark.createDataFrame([ROW, (None,) * len(ROW), ROW], SCHEMA).repartition(1)


def rows_of(spark: SparkSession, count: int = 4000, partitions: int = 4) -> DataFrame:
    return spark.range(0, count, 1, partitions).select("id", f.concat(f.lit("row "), f.col("id")).alias("text"))


def ids_in(submission: opsq.Submission, queue: opsq.Queue) -> list[int]:
    """The ids in the chunks of a submission, in chunk order, by way of its results."""
    work(queue)
    return [
        number
        for result in submission.results()
        for number in pq.read_table(io.BytesIO(result)).column("id").to_pylist()
    ]


@pytest.mark.parametrize(
    ("chunk_format", "columns"), [("parquet", None), ("arrow", None), ("jsonl", JSON), ("csv", FLAT)]
)
def test_types_nulls_and_column_order_come_back_as_they_were(
    spark: SparkSession, write: Write, read: Read, queue: opsq.Queue, chunk_format: str, columns: tuple[str, ...] | None
):
    frame = frame_of_all_types(spark)
    if columns is not None:
        frame = frame.select(*columns)
    submission = write(frame, chunkFormat=chunk_format, rowsPerChunk=2)
    assert submission.state().chunks_count == 2
    header = next(iter(queue.consume(batch=1))).data[:3]
    assert header.startswith(b'"n"') == (chunk_format == "csv")
    work(queue)
    back = read(submission, resultSchema="same")
    assert back.schema == frame.schema
    assertDataFrameEqual(back, frame)


def test_partitions_rows_and_chunks_keep_their_order(
    spark: SparkSession, write: Write, queue: opsq.Queue, daemon: Settings
):
    submission = write(rows_of(spark), rowsPerChunk=300)
    assert submission.state().chunks_count == 4 * 4
    assert len(parts(daemon)) == 4
    assert ids_in(submission, queue) == list(range(4000))


def test_chunks_by_bytes_are_whole_lines(spark: SparkSession, write: Write, queue: opsq.Queue):
    submission = write(rows_of(spark).select("text"), chunkFormat="text", bytesPerChunk="4K")
    work(queue)
    chunks = list(submission.results())
    assert b"".join(chunks).splitlines() == [b"row %d" % n for n in range(4000)]
    assert all(chunk.endswith(b"\n") and len(chunk) <= 8192 for chunk in chunks)
    assert submission.state().chunks_count == len(chunks) > 4


def test_options_of_the_submission_arrive(spark: SparkSession, write: Write):
    state = write(
        rows_of(spark, 10),
        priority=9,
        maxAttempts=2,
        onDead="keep",
        reservation="30s",
        expires="1h",
        metadata='{"Tenant": "a"}',
        **{"meta.run": 7},
    ).state()
    assert (state.priority, state.max_attempts, state.keep_on_dead, state.reservation_s) == (9, 2, True, 30)
    assert state.metadata == {"Tenant": "a", "run": 7}
    assert state.expires_at is not None


def test_write_gives_the_id_back_of_a_submission_with_all_that_one_can_be_given(
    spark: SparkSession, daemon: Settings, queue: opsq.Queue
):
    frame, found = rows_of(spark, 10), []

    def submit() -> None:  # a thread without an active session, where Spark's writer finds no data source
        found.append(
            opsq.spark.write(
                frame,
                state_dir=daemon.state_dir,
                rows_per_chunk=5,
                metadata={"Tenant": "a"},
                title="Of July",
                max_lost=2,
                backoff=(1, 2, 300),
                weights={"Tenant": 2},
                delay_s=3600.0,
                expires_s=7200.0,
                unique_key="nightly",
                unique_until="start",
            )
        )

    thread = Thread(target=submit)
    thread.start()
    thread.join()
    [number] = found
    state = queue.submission(number).state()
    assert (state.title, state.metadata, state.max_lost, state.unique_key) == ("Of July", {"Tenant": "a"}, 2, "nightly")
    assert (state.backoff, state.unique_until_start) == (Backoff(1, 2, 300), True)
    assert state.state == "scheduled"
    assert opsq.spark.write(rows_of(spark, 3), state_dir=daemon.state_dir, unique_key="nightly") == number
    other = opsq.spark.write(frame, state_dir=daemon.state_dir)
    assert opsq.spark.write(frame, state_dir=daemon.state_dir) not in (number, other)
    keyed = opsq.spark.write(frame, state_dir=daemon.state_dir, idempotency_key="july")
    assert opsq.spark.write(frame, state_dir=daemon.state_dir, idempotency_key="july") == keyed
    assert opsq.spark.submission_of("july", state_dir=str(daemon.state_dir)) == keyed


def test_write_that_cannot_be_is_refused_before_spark_reads_a_row(
    spark: SparkSession, daemon: Settings, runtime_dir: Path
):
    frame = spark.range(1).select(f.raise_error(f.lit("read")).cast("string").alias("text"))
    with pytest.raises(UsageError, match=r"'max_los' is not a known argument of .* Did you mean max_lost"):
        opsq.spark.write(frame, state_dir=daemon.state_dir, max_los=2)
    with pytest.raises(UsageError, match="maxLost 0: give a number from 1 to 2147483648"):
        opsq.spark.write(frame, state_dir=daemon.state_dir, max_lost=0)
    with pytest.raises(Unreachable):
        opsq.spark.write(frame, state_dir=runtime_dir / "none")


def test_empty_frame_is_a_submission_of_no_chunks_that_is_completed(
    spark: SparkSession, write: Write, read: Read, daemon: Settings
):
    frame = rows_of(spark, 0)
    submission = write(frame)
    state = submission.state()
    assert (state.state, state.chunks_count) == ("completed", 0)
    assert folders(daemon) == []
    found = read(submission).schema
    assert found.simpleString() == frame.schema.simpleString()
    assert all(field.nullable for field in found)  # whoever completes a chunk may write what he likes
    assert read(submission).count() == 0


def test_schema_too_long_to_travel_is_kept_all_the_same(
    spark: SparkSession, write: Write, read: Read, queue: opsq.Queue
):
    frame = spark.range(1).select(*(f.lit(n).alias(f"a_column_with_a_rather_long_name_{n:04d}") for n in range(200)))
    submission = write(frame)
    work(queue, lambda chunk: b"")
    assert read(submission, resultSchema="same").columns == frame.columns


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"rowPerChunk": 1}, "Did you mean rowsPerChunk?"),
        (
            {"chunkFormat": "csv"},
            "Column 'inner' is struct<a:int>, which csv cannot hold. Use chunkFormat parquet or arrow or jsonl.",
        ),
        ({"chunkFormat": "text"}, "Lines of text hold one column, not 2."),
        ({"meta.submission": 1}, "'submission' is built in"),
    ],
)
def test_what_cannot_be_written_is_refused_by_name_before_anything_is(
    spark: SparkSession, daemon: Settings, queue: opsq.Queue, options: dict[str, Any], message: str
):
    frame = spark.range(3).select("id", f.struct(f.lit(1).alias("a")).alias("inner"))
    with pytest.raises(PySparkException, match=re.escape(message)):
        frame.write.format("opsq").mode("append").options(stateDir=str(daemon.state_dir), **options).save()
    assert folders(daemon) == []
    assert list(queue.submissions()) == []


def test_other_modes_than_append_are_refused(spark: SparkSession, daemon: Settings):
    writer = rows_of(spark, 10).write.format("opsq").options(stateDir=str(daemon.state_dir))
    with pytest.raises(AnalysisException, match='Please use either the "Append"'):
        writer.save()
    with pytest.raises(PySparkException, match=r"A queue has nothing to overwrite.*append"):
        writer.mode("overwrite").save()


def test_no_daemon_says_where_none_answers_and_what_executors_need(spark: SparkSession, runtime_dir: Path):
    with pytest.raises(PySparkException, match=f"No daemon answers at {runtime_dir}.*opsq start --listen HOST:PORT"):
        rows_of(spark, 10).write.format("opsq").mode("append").option("stateDir", str(runtime_dir)).save()


# --- what fails on the way --------------------------------------------------------------------------------------------


def failing(frame: DataFrame, marker: Path, *, failures: int) -> DataFrame:
    """The same rows, but partition 1 fails this many times after some of its rows were taken."""
    folder = str(marker)

    def rows(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        import os

        from pyspark import TaskContext

        context = TaskContext.get()
        assert context is not None
        for batch in batches:
            yield batch
            if context.partitionId() == 1 and len(os.listdir(folder)) < failures:
                open(f"{folder}/{context.taskAttemptId()}", "w").close()
                raise RuntimeError("this attempt was meant to fail")

    marker.mkdir(exist_ok=True)
    return frame.mapInArrow(rows, frame.schema)


def test_partition_that_fails_once_leaves_every_row_once_and_nothing_of_its_first_attempt(
    spark: SparkSession, write: Write, queue: opsq.Queue, daemon: Settings, tmp_path: Path
):
    submission = write(failing(rows_of(spark, 8000), tmp_path / "attempts", failures=1), rowsPerChunk=100)
    assert len(list((tmp_path / "attempts").iterdir())) == 1
    assert len(parts(daemon)) == 4
    assert ids_in(submission, queue) == list(range(8000))


def test_write_of_which_all_attempts_fail_leaves_nothing(
    spark: SparkSession, queue: opsq.Queue, daemon: Settings, tmp_path: Path
):
    frame = failing(rows_of(spark, 8000), tmp_path / "attempts", failures=9)
    with pytest.raises(PySparkException, match="this attempt was meant to fail"):
        frame.write.format("opsq").mode("append").options(stateDir=str(daemon.state_dir), rowsPerChunk=100).save()
    assert len(list((tmp_path / "attempts").iterdir())) == 3
    assert list(queue.submissions()) == []
    wait_until(lambda: folders(daemon) == [], what="no part is left")


def test_write_that_failed_may_be_repeated_under_its_key(
    spark: SparkSession, write: Write, queue: opsq.Queue, daemon: Settings, tmp_path: Path
):
    frame = failing(rows_of(spark, 8000), tmp_path / "attempts", failures=3)
    with pytest.raises(PySparkException, match="this attempt was meant to fail"):
        frame.write.format("opsq").mode("append").options(
            stateDir=str(daemon.state_dir), idempotencyKey="nightly"
        ).save()
    submission = write(frame, idempotencyKey="nightly")
    assert ids_in(submission, queue) == list(range(8000))


def test_commit_that_fails_after_the_daemon_has_accepted_leaves_the_submission_whole(
    spark: SparkSession, queue: opsq.Queue, daemon: Settings
):
    from opsq.spark.source.batch_writer import OpsqWriter
    from opsq.spark.source.data_source import OpsqDataSource

    class Faulty(OpsqDataSource):
        @classmethod
        def name(cls) -> str:
            return "opsq_faulty"

        def writer(self, schema: StructType, overwrite: bool) -> OpsqWriter:
            from opsq.spark.source.source_options import parse_write

            class FaultyWriter(OpsqWriter):
                def commit(self, messages: Any) -> None:
                    super().commit(messages)
                    raise RuntimeError("the answer was lost")

            return FaultyWriter(parse_write(self.options), schema, overwrite)

    spark.dataSource.register(Faulty)
    with pytest.raises(PySparkException, match="the answer was lost"):
        rows_of(spark).write.format("opsq_faulty").mode("append").options(
            stateDir=str(daemon.state_dir), rowsPerChunk=300
        ).save()
    [state] = queue.submissions()
    assert ids_in(queue.submission(state.submission_id), queue) == list(range(4000))


def test_same_rows_under_the_same_key_are_the_same_submission(
    spark: SparkSession, write: Write, queue: opsq.Queue, daemon: Settings
):
    submission = write(rows_of(spark), idempotencyKey="nightly", rowsPerChunk=300)
    work(queue)
    rows_of(spark).write.format("opsq").mode("append").options(
        stateDir=str(daemon.state_dir), idempotencyKey="nightly", rowsPerChunk=300
    ).save()
    assert [state.submission_id for state in queue.submissions()] == [submission.id]
    assert opsq.spark.submission_of("nightly", state_dir=str(daemon.state_dir)) == submission.id
    assert opsq.spark.submission_of("weekly", state_dir=str(daemon.state_dir)) is None
    assert len(folders(daemon)) == 1


def test_other_rows_under_the_same_key_are_a_conflict_that_names_the_submission(
    spark: SparkSession, write: Write, queue: opsq.Queue, daemon: Settings
):
    submission = write(rows_of(spark), idempotencyKey="nightly")
    with pytest.raises(
        PySparkException, match=f"'nightly' is held by submission {submission.id}, which has other chunks"
    ):
        rows_of(spark, 10).write.format("opsq").mode("append").options(
            stateDir=str(daemon.state_dir), idempotencyKey="nightly"
        ).save()
    assert len(folders(daemon)) == 1
    assert ids_in(submission, queue) == list(range(4000))


def test_daemon_that_is_killed_and_started_again_amid_a_write_is_no_matter(
    spark: SparkSession, write: Write, queue: opsq.Queue, daemon: Settings, tmp_path: Path
):
    begun, restarted = str(tmp_path / "begun"), str(tmp_path / "restarted")

    def rows(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        import os

        for batch in batches:
            yield batch
            open(begun, "a").close()
            while not os.path.exists(restarted):
                time.sleep(0.01)

    def restart() -> None:
        wait_until(lambda: Path(begun).exists(), 300, "a task has begun")
        end(daemon)
        assert lifecycle.start(daemon).status == "started"
        Path(restarted).touch()

    frame = rows_of(spark)
    before = holder(daemon)
    thread = Thread(target=restart)
    thread.start()
    submission = write(frame.mapInArrow(rows, frame.schema), rowsPerChunk=300)
    thread.join()
    assert holder(daemon) != before
    assert ids_in(submission, queue) == list(range(4000))


def test_what_a_late_attempt_leaves_is_swept(spark: SparkSession, write: Write, queue: opsq.Queue, daemon: Settings):
    submission = write(rows_of(spark), rowsPerChunk=300)
    [folder] = folders(daemon)
    late = Path(daemon.state_dir) / "content" / folder / "part-00001-99-0123456789ab"
    late.write_bytes(b"late")
    assert opsq.spark.sweep(state_dir=str(daemon.state_dir)) == 0
    assert opsq.spark.sweep(state_dir=str(daemon.state_dir), older_than_s=0) == 1
    assert not late.exists()
    assert ids_in(submission, queue) == list(range(4000))


def test_chunk_above_the_limit_names_what_to_change(spark: SparkSession, daemon: Settings, queue: opsq.Queue):
    # Of a column: what is the same for all rows, the optimizer works out at once and sends along with each task.
    frame = spark.range(1).select(f.repeat(f.col("id").cast("string"), 70 << 20).alias("text"))
    with pytest.raises(
        PythonException, match=r"exceeds the chunk limit of \d+ bytes.*smaller rowsPerChunk or bytesPerChunk"
    ):
        frame.write.format("opsq").mode("append").options(stateDir=str(daemon.state_dir), chunkFormat="text").save()
    assert parts(daemon) == []

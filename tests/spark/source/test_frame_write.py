"""`opsq.spark.write`: each row once in its place however long it is, whatever fails on the way, in bounded batches."""

from __future__ import annotations

import io
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.errors import PySparkException
from pyspark.sql import functions as f

import opsq
import opsq.spark
from opsq.errors import Conflict
from opsq.settings import Settings
from spark.conftest import folders, parts
from spark.source.test_batch_writer import ROW, SCHEMA, failing, ids_in, rows_of

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_BYTES = "spark.sql.execution.arrow.maxBytesPerBatch"


def tables(queue: opsq.Queue) -> list[pa.Table]:
    """All chunks in order, each as a table."""
    found = []
    for chunk in queue.consume(strategy="OldestFirst"):
        found.append(pq.read_table(io.BytesIO(chunk.data)))
        chunk.complete(b"")
    return found


def test_long_rows_among_short_ones_stay_whole_and_in_their_places(
    spark: SparkSession, daemon: Settings, queue: opsq.Queue
):
    text = "repeat(concat('x', id), IF(id % 50 = 7, 300000, 3)) AS text"
    raw = "IF(id % 3 = 0, NULL, cast(cast(id AS string) AS binary)) AS raw"
    frame = spark.range(0, 400, 1, 2).selectExpr("id", text, raw, "named_struct('a', id) AS inner")
    opsq.spark.write(frame, state_dir=daemon.state_dir, rows_per_chunk=50)
    found = tables(queue)
    assert [table.num_rows for table in found] == [50] * 8
    assert pa.concat_tables(found).to_pylist() == frame.toArrow().to_pylist()


@pytest.mark.parametrize("is_asked", [False, True])
def test_types_nulls_and_names_of_all_kinds_arrive(
    spark: SparkSession, daemon: Settings, queue: opsq.Queue, is_asked: bool
):
    frame = spark.createDataFrame([ROW, (None,) * len(ROW), ROW], SCHEMA).repartition(1)
    names = ["a.b", "`c`", "0", *frame.columns[3:]]
    frame = frame.toDF(*names)
    if not is_asked:  # without the columns whose length no type tells
        frame = frame.drop("tags", "scores", "inner")
    submission = opsq.spark.write(frame, state_dir=daemon.state_dir)
    for chunk in queue.consume():
        chunk.complete(chunk.data)
    options = {"stateDir": str(daemon.state_dir), "resultSchema": "same"}
    back = spark.read.format("opsq").options(**options).load(str(submission))
    assert back.schema == frame.schema
    assert back.collect() == frame.collect()


def test_batches_are_bounded_by_bytes_though_spark_does_not_ask(spark: SparkSession, daemon: Settings):
    from opsq.spark.source.batch_bound import bounded, unasked

    long = spark.range(0, 30, 1, 1).selectExpr("id", "repeat('x', 8000000) AS text")
    frame, bound = bounded(long)
    assert not bound.asks

    def sizes(batches: Any) -> Any:
        for batch in batches:
            yield pa.record_batch({"size": [batch.nbytes], "rows": [batch.num_rows]})

    usual = spark.conf.get(_BYTES)
    with unasked(frame) as limited:
        found = limited.mapInArrow(sizes, "size BIGINT, rows BIGINT").collect()
        assert spark.conf.get(_BYTES) == usual
    assert len(found) >= 10
    assert max(row.size for row in found) < (16 << 20) + 9_000_000
    assert not [table for table in spark.catalog.listTables("global_temp") if table.name.startswith("opsq_")]


def test_write_follows_the_settings_of_its_session(spark: SparkSession, daemon: Settings, queue: opsq.Queue):
    session = spark.newSession()
    session.conf.set("spark.sql.adaptive.enabled", "false")
    session.conf.set("spark.sql.shuffle.partitions", "7")
    frame = session.range(0, 700, 1, 2).selectExpr("id % 350 AS id").groupBy("id").count()
    opsq.spark.write(frame, state_dir=daemon.state_dir)
    assert len(parts(daemon)) == 7
    assert session.conf.get(_BYTES) == spark.conf.get(_BYTES)
    assert sorted(row["id"] for table in tables(queue) for row in table.to_pylist()) == list(range(350))


def test_cached_rows_are_not_made_again(spark: SparkSession, daemon: Settings, queue: opsq.Queue):
    frame = spark.range(0, 100, 1, 2).selectExpr("id", "cast(rand() AS string) AS text").cache()
    try:
        expected = frame.toArrow().to_pylist()
        opsq.spark.write(frame, state_dir=daemon.state_dir)
    finally:
        frame.unpersist()
    assert pa.concat_tables(tables(queue)).to_pylist() == expected


@pytest.mark.parametrize(
    ("columns", "asks"),
    [
        (["id"], False),
        (["id", "cast(id AS string) AS text"], False),
        (["array(cast(id AS string)) AS texts"], True),
        (["id AS a", "cast(id AS string) AS A"], True),
        ([f"id AS c{number}" for number in range(9000)], True),
    ],
)
def test_spark_asks_where_the_types_do_not_tell_the_length_of_a_row(
    spark: SparkSession, columns: list[str], asks: bool
):
    from opsq.spark.source.batch_bound import bounded

    _, bound = bounded(spark.range(1).selectExpr(*columns))
    assert bound.asks == asks


def test_spark_asks_where_rows_pass_through_functions_of_python(spark: SparkSession):
    """Their batches would not be bounded either."""
    from opsq.spark.source.batch_bound import bounded

    long = f.udf(lambda number: "x" * number, "string")
    _, bound = bounded(spark.range(3).select(long("id")))
    assert bound.asks
    _, bound = bounded(spark.range(3).mapInArrow(lambda batches: batches, "id BIGINT"))
    assert bound.asks


def test_many_columns_arrive(spark: SparkSession, daemon: Settings, queue: opsq.Queue):
    frame = spark.range(0, 10, 1, 2).selectExpr("id", *[f"concat(id, '.{n}') AS c{n}" for n in range(200)])
    opsq.spark.write(frame, state_dir=daemon.state_dir)
    assert pa.concat_tables(tables(queue)).to_pylist() == frame.toArrow().to_pylist()


def test_attempt_that_fails_once_leaves_every_row_once_and_nothing_of_its_own(
    spark: SparkSession, daemon: Settings, queue: opsq.Queue, tmp_path: Path
):
    frame = failing(rows_of(spark, 8000), tmp_path / "attempts", failures=1)
    submission = opsq.spark.write(frame, state_dir=daemon.state_dir, rows_per_chunk=100)
    assert len(list((tmp_path / "attempts").iterdir())) == 1
    assert len(parts(daemon)) == 4
    assert ids_in(queue.submission(submission), queue) == list(range(8000))


def test_write_of_which_all_attempts_fail_leaves_nothing(
    spark: SparkSession, daemon: Settings, queue: opsq.Queue, tmp_path: Path
):
    frame = failing(rows_of(spark, 8000), tmp_path / "attempts", failures=9)
    with pytest.raises(PySparkException, match="this attempt was meant to fail"):
        opsq.spark.write(frame, state_dir=daemon.state_dir, rows_per_chunk=100)
    assert list(queue.submissions()) == []
    assert folders(daemon) == []


def test_write_whose_answer_is_lost_leaves_the_submission_whole(
    spark: SparkSession, daemon: Settings, queue: opsq.Queue, monkeypatch: pytest.MonkeyPatch
):
    from opsq.spark.source import frame_write

    def submit(*args: Any) -> int:
        submit_parts(*args)
        raise KeyboardInterrupt

    submit_parts = frame_write.submit_parts
    monkeypatch.setattr(frame_write, "submit_parts", submit)
    with pytest.raises(KeyboardInterrupt):
        opsq.spark.write(rows_of(spark), state_dir=daemon.state_dir, rows_per_chunk=300)
    [state] = queue.submissions()
    assert ids_in(queue.submission(state.submission_id), queue) == list(range(4000))


def test_other_rows_under_the_same_key_are_a_conflict_and_leave_nothing(
    spark: SparkSession, daemon: Settings, queue: opsq.Queue
):
    def write(frame: DataFrame) -> int:
        return opsq.spark.write(frame, state_dir=daemon.state_dir, idempotency_key="nightly")

    submission = write(rows_of(spark))
    assert write(rows_of(spark)) == submission
    with pytest.raises(Conflict, match=f"'nightly' is held by submission {submission}, which has other chunks"):
        write(rows_of(spark, 10))
    assert len(folders(daemon)) == 1


def test_part_of_an_attempt_that_lost_is_not_in_the_submission(
    spark: SparkSession, daemon: Settings, queue: opsq.Queue, monkeypatch: pytest.MonkeyPatch
):
    """What a speculative attempt leaves: a part of the same partition, complete, that the driver was not given."""
    from opsq.spark.source import frame_write

    def submit(plan: Any, messages: list[Any], schema: Any) -> int:
        [folder] = folders(daemon)
        content = Path(daemon.state_dir) / "content" / folder
        won = content / messages[0].written.name
        (content / re.sub(r"-\d+-[0-9a-f]+$", "-999-0123456789ab", won.name)).write_bytes(won.read_bytes())
        assert len(parts(daemon)) == 5
        return submit_parts(plan, messages, schema)

    submit_parts = frame_write.submit_parts
    monkeypatch.setattr(frame_write, "submit_parts", submit)
    submission = opsq.spark.write(rows_of(spark), state_dir=daemon.state_dir, rows_per_chunk=300)
    assert len(parts(daemon)) == 4
    assert ids_in(queue.submission(submission), queue) == list(range(4000))


def test_frame_without_rows_is_a_submission_without_chunks(spark: SparkSession, daemon: Settings, queue: opsq.Queue):
    submission = opsq.spark.write(rows_of(spark).where(f.col("id") < 0), state_dir=daemon.state_dir)
    state = queue.submission(submission).state()
    assert (state.state, state.chunks_count) == ("completed", 0)
    assert folders(daemon) == []


def test_frame_without_rows_and_with_many_columns_can_be_read(spark: SparkSession, daemon: Settings, queue: opsq.Queue):
    frame = spark.range(10).selectExpr("id", *[f"concat(id, '.{n}') AS c{n}" for n in range(200)]).limit(0)
    ids = {opsq.spark.write(frame, state_dir=daemon.state_dir, idempotency_key="none") for _ in range(2)}
    assert len(ids) == len(folders(daemon)) == 1
    found = opsq.spark.results(spark, ids.pop(), state_dir=daemon.state_dir)
    assert found.columns == frame.columns
    assert found.count() == 0

"""Results of submissions as DataFrames: formats, schemas found or told, what died, and who may reach the daemon."""

from __future__ import annotations

import contextlib
import errno
import io
import json
import os
import time
from collections.abc import Callable, Iterator
from decimal import Decimal
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.errors import PySparkException
from pyspark.sql import functions as f
from pyspark.sql.types import DecimalType, IntegerType, StructType

import opsq
import opsq.spark
from daemons import running
from opsq.cli.spark.data_sets import Writing
from opsq.errors import NotFinished, UsageError, WorkFailed
from opsq.settings import Settings
from opsq.spark.source import batch_reader, joined_results
from opsq.spark.source.batch_reader import ChunkRun, OpsqReader
from opsq.spark.source.source_options import ReadKeywords, parse_read
from spark.conftest import work
from waiting import wait_until

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

Write = Callable[..., opsq.Submission]
Read = Callable[..., "DataFrame"]


DECIMALS = StructType().add("y", DecimalType(3, 1)).add("x", IntegerType()).json()


def parquet(table: pa.Table) -> bytes:
    sink = io.BytesIO()
    pq.write_table(table, sink)
    return sink.getvalue()


def submit(queue: opsq.Queue, results: list[bytes | None], **options: object) -> opsq.Submission:
    """A submission whose chunks have these results; None: the chunk died."""
    submission = queue.submit([b"%d" % number for number in range(len(results))], on_dead="keep", **options)
    for chunk in queue.consume():
        result = results[int(chunk.data)]
        if result is None:
            chunk.fail("it was cursed", retry=False)
        else:
            chunk.complete(result)
    return submission


def test_results_of_a_program_that_knows_nothing_of_spark_come_with_their_columns(queue: opsq.Queue, read: Read):
    tables = [pa.table({"word": [f"w{n}"] * 2, "n": pa.array([n, None], pa.uint32())}) for n in range(5)]
    found = read(submit(queue, [parquet(table) for table in tables]))
    assert found.schema.simpleString() == "struct<word:string,n:bigint>"
    assert [tuple(row) for row in found.collect()] == [
        pair for n in range(5) for pair in ((f"w{n}", n), (f"w{n}", None))
    ]


@pytest.mark.parametrize(
    ("result", "options", "schema", "rows"),
    [
        (b"a\nb\n", {}, "value:string", [("a",), ("b",)]),
        (b"a\nb\n", {"resultFormat": "binary"}, "value:binary", [(b"a\nb\n",)]),
        (b"x,y\n1,2.5\n", {"resultFormat": "csv"}, "x:bigint,y:double", [(1, 2.5)]),
        (b'{"x":1,"y":["z"]}\n', {"resultFormat": "jsonl"}, "x:bigint,y:array<string>", [(1, ["z"])]),
        (
            b'{"x":1,"y":0.1}\n',
            {"resultFormat": "jsonl", "resultSchema": DECIMALS},
            "y:decimal(3,1),x:int",
            [(Decimal("0.1"), 1)],
        ),
    ],
)
def test_results_in_each_format_of_text(
    queue: opsq.Queue, read: Read, result: bytes, options: dict[str, str], schema: str, rows: list[tuple[object, ...]]
):
    found = read(submit(queue, [result]), **options)
    assert found.schema.simpleString() == f"struct<{schema}>"
    assert [tuple(row) for row in found.collect()] == rows


def test_results_keep_the_order_of_chunks_over_many_partitions_and_sizes(queue: opsq.Queue, read: Read):
    """Small results come from the daemon and large ones from the store, wherever they lie between each other."""
    tables = [
        pa.table(
            {
                "n": pa.array([n] * (20_000 if n % 3 == 0 else 1)),
                "pad": [f"{n * 7919:>20}"] * (20_000 if n % 3 == 0 else 1),
            }
        )
        for n in range(150)
    ]
    submission = submit(queue, [parquet(table) for table in tables])
    found = read(submission, chunksPerPartition=7)
    assert found.rdd.getNumPartitions() == 22
    counts = {row["n"]: row["count"] for row in found.groupBy("n").count().collect()}
    assert counts == {n: 20_000 if n % 3 == 0 else 1 for n in range(150)}
    assert [row["n"] for row in read(submission).where("n % 3 != 0").collect()] == [n for n in range(150) if n % 3]


def test_columns_and_what_tells_of_the_chunk_are_there_on_request(queue: opsq.Queue, read: Read):
    submission = queue.submit([b"0", b"1"], backoff=(0.001, 1, 0.001))
    for chunk in queue.consume():
        if chunk.data == b"1" and chunk.attempt < 2:
            chunk.fail("try again")
        else:
            chunk.complete(parquet(pa.table({"a": [1], "b": [chunk.data.decode()]})))
    found = read(submission, columns="b", metadataColumns="true")
    assert found.columns == ["b", "_submission", "_chunk", "_attempts"]
    assert [tuple(row) for row in found.orderBy("_chunk").collect()] == [
        ("0", submission.id, 0, 1),
        ("1", submission.id, 1, 3),
    ]
    assert read(submission, metadataColumns="_chunk").columns == ["a", "b", "_chunk"]


class KeysCounted(dict[int, int]):
    """A dict that counts the keys it was asked for one after the other."""

    given_count = 0

    def __iter__(self) -> Iterator[int]:
        for key in super().__iter__():
            self.given_count += 1
            yield key


def test_plan_passes_over_retried_chunks_once_however_many_partitions_there_are(
    queue: opsq.Queue, daemon: Settings, monkeypatch: pytest.MonkeyPatch
):
    submission = submit(queue, [b"line\n"] * 100)
    attempts = KeysCounted({index: index + 2 for index in reversed(range(0, 100, 3))})
    monkeypatch.setattr(batch_reader, "attempts_beyond_one", lambda *_: attempts)
    options = {"stateDir": daemon.state_dir, "path": str(submission.id), "chunksPerPartition": "2"}
    given = parse_read({**options, "metadataColumns": "_attempts"})
    planned = OpsqReader(given, StructType().add("_attempts", IntegerType()), None).partitions()
    runs = [run for run in planned if isinstance(run, ChunkRun)]
    assert len(runs) == 50
    assert {index: count for run in runs for index, count in run.attempts.items()} == dict(attempts.items())
    assert all(run.first <= index < run.end for run in runs for index in run.attempts)
    assert attempts.given_count == len(attempts)


def test_results_whose_columns_cannot_be_guessed_are_of_a_submission_that_is_named(queue: opsq.Queue, read: Read):
    submission = submit(queue, [b'{"a": 1', b'{"a": 2'])
    with pytest.raises(PySparkException, match=rf"A result of submission {submission.id} cannot .* not JSON lines"):
        read(submission, resultFormat="jsonl")


def test_schema_that_is_given_goes_before_what_results_say(queue: opsq.Queue, read: Read):
    submission = submit(queue, [parquet(pa.table({"a": pa.array([1], pa.int8()), "b": ["x"]}))])
    assert [tuple(row) for row in read(submission, "b STRING, a BIGINT").collect()] == [("x", 1)]
    with pytest.raises(
        PySparkException, match=r"result of chunk \d+/0 cannot be used. It has no column 'c'; it has a, b."
    ):
        read(submission, "c STRING").collect()


def test_results_that_have_not_the_form_of_the_chunks_need_to_be_told(
    spark: SparkSession, write: Write, read: Read, queue: opsq.Queue
):
    submission = write(spark.range(10))
    work(queue, lambda chunk: b"10\n")
    with pytest.raises(
        PySparkException, match=r"are parquet, and its results are not.*resultFormat: jsonl, csv, text or binary"
    ):
        read(submission)
    assert read(submission, resultFormat="text").collect()[0]["value"] == "10"


def test_dead_chunk_fails_the_read_with_its_reason_or_is_skipped_and_counted(
    spark: SparkSession, queue: opsq.Queue, read: Read, daemon: Settings
):
    submission = submit(queue, [parquet(pa.table({"n": [n]})) if n != 1 else None for n in range(4)])
    with pytest.raises(
        PySparkException,
        match=r"1 of 4 chunks of submission \d+ have no result; chunk 1 died: it was cursed.*deadChunks=skip",
    ):
        read(submission).collect()
    assert [row["n"] for row in read(submission, deadChunks="skip").collect()] == [0, 2, 3]
    with pytest.raises(WorkFailed, match="it was cursed"):
        opsq.spark.results(spark, submission.id, state_dir=daemon.state_dir)
    with pytest.warns(UserWarning, match="1 of 4 chunks of submission"):
        frame = opsq.spark.results(
            spark, submission.id, state_dir=daemon.state_dir, dead_chunks="skip", metadata_columns=True
        )
    assert [row["_chunk"] for row in frame.collect()] == [0, 2, 3]


def test_submission_that_has_not_ended_says_how_far_it_is(
    spark: SparkSession, queue: opsq.Queue, read: Read, daemon: Settings
):
    submission = queue.submit([b"x", b"y"])
    for chunk in queue.consume(batch=1):
        chunk.complete(b"line\n")
        break
    with pytest.raises(PySparkException, match="is open: 1 of 2 chunks completed"):
        read(submission).collect()
    with pytest.raises(NotFinished):
        opsq.spark.results(spark, submission.id, state_dir=daemon.state_dir)


def test_keyword_of_results_that_is_none_is_one_that_is_not_given(
    spark: SparkSession, queue: opsq.Queue, daemon: Settings
):
    submission = submit(queue, [parquet(pa.table({"n": [n], "None": ["x"]})) for n in range(2)])
    given: Any = dict.fromkeys(ReadKeywords.__annotations__) | {"state_dir": daemon.state_dir}
    found = opsq.spark.results(spark, submission.id, **given)
    assert found.collect() == opsq.spark.results(spark, submission.id, state_dir=daemon.state_dir).collect()
    assert found.columns == ["n", "None"]


def test_unknown_submission_is_said_to_be_unknown(spark: SparkSession, daemon: Settings):
    for named, message in (("12345", "Submission 12345 is not known"), ("nonsense", "nonsense")):
        with pytest.raises(PySparkException, match=message):
            spark.read.format("opsq").option("stateDir", daemon.state_dir).load(named)


def test_results_that_are_all_empty_need_a_schema(queue: opsq.Queue, read: Read):
    submission = submit(queue, [b"", b""])
    with pytest.raises(PySparkException, match=r"Submission \d+ has no result to take the columns from"):
        read(submission, resultFormat="parquet")
    assert read(submission, "n BIGINT", resultFormat="parquet").count() == 0
    assert read(submission).count() == 0  # lines of text


def test_registered_by_hand_it_is_the_same_source(spark: SparkSession, queue: opsq.Queue, read: Read):
    opsq.spark.register(spark)
    assert read(submit(queue, [b"a\n"])).count() == 1


def wide(start: int) -> bytes:
    """A result of about 400 kB that cannot be compressed."""
    numbers = range(start, start + 5000)
    random = Random(start)
    return parquet(
        pa.table({"n": pa.array(numbers, pa.int64()), "noise": [random.randbytes(60).hex() for _ in numbers]})
    )


def test_large_parquet_results_are_read_by_spark_itself(
    spark: SparkSession, queue: opsq.Queue, read: Read, daemon: Settings
):
    submission = submit(queue, [wide(n * 5000) for n in range(30)])
    for _ in range(2):
        frame = opsq.spark.results(spark, submission.id, state_dir=daemon.state_dir, columns="n")
        assert any("joined-" in path for path in frame.inputFiles())
        assert frame.columns == ["n"]
        assert frame.agg(f.count("*"), f.sum("n"), f.countDistinct("n")).collect()[0] == (
            150_000,
            sum(range(150_000)),
            150_000,
        )
    assert len(list(Path(daemon.state_dir).glob("content/*/joined-*"))) == 1
    by_source = opsq.spark.results(spark, submission.id, native=False, state_dir=daemon.state_dir)
    assert [row["n"] for row in by_source.limit(3).collect()] == [0, 1, 2]
    assert by_source.schema == read(submission).schema
    submission.remove()
    wait_until(
        lambda: not list(Path(daemon.state_dir).glob("content/*/joined-*")), what="the copy goes with the submission"
    )


def test_columns_of_large_chunks_have_the_same_values_for_spark_itself(
    spark: SparkSession, daemon: Settings, queue: opsq.Queue, write: Write, read: Read
):
    """Large chunks are encoded otherwise than small ones, and Spark's reader is not the one that wrote them."""
    rows = spark.range(60_000).selectExpr(
        "id",
        "CAST(id % 30000 AS SMALLINT) AS small",
        "CAST(id % 7 AS INT) AS few",
        "IF(id % 11 = 0, NULL, date_add(DATE '1900-01-01', CAST(id AS INT))) AS day",
        "timestamp_micros(id * id * 1001) AS moment",
        "CAST(timestamp_micros(id * 999983) AS TIMESTAMP_NTZ) AS local",
        "CAST(id AS DECIMAL(38, 4)) / 8 AS exact",
        "sha2(CAST(id AS STRING), 512) AS noise",
        "named_struct('n', id, 'word', concat('w', id % 5)) AS nested",
    )
    submission = write(rows, rowsPerChunk=20_000)
    work(queue)
    frame = opsq.spark.results(spark, submission.id, state_dir=daemon.state_dir)
    assert any("joined-" in path for path in frame.inputFiles())
    by_source = read(submission)
    assert frame.count() == by_source.count() == rows.count()
    assert frame.exceptAll(rows).count() == by_source.exceptAll(rows).count() == 0


def test_large_results_that_spark_cannot_join_are_read_by_the_source(
    spark: SparkSession, queue: opsq.Queue, daemon: Settings
):
    odd = parquet(pa.table({"noise": ["x"], "n": pa.array([-1], pa.int32())}))
    submission = submit(queue, [*(wide(n * 5000) for n in range(20)), odd])
    frame = opsq.spark.results(spark, submission.id, state_dir=daemon.state_dir)
    assert frame.agg(f.count("*"), f.min("n")).collect()[0] == (100_001, -1)
    assert list(Path(daemon.state_dir).glob("content/*/joined-*")) == []


def test_spark_itself_reads_from_a_state_folder_whose_name_is_like_a_pattern(spark: SparkSession, runtime_dir: Path):
    state_dir = runtime_dir / r"st[1] %41{a,b}*?\c"
    state_dir.mkdir(mode=0o700)
    with running(state_dir), opsq.connect(state_dir=state_dir) as queue:
        submission = submit(queue, [wide(n * 5000) for n in range(20)])
        spark.conf.set("fs.defaultFS", "elsewhere://host/")  # state folders are local, whatever Spark's paths are
        try:
            frame = opsq.spark.results(spark, submission.id, state_dir=state_dir)
            assert any("joined-" in path for path in frame.inputFiles())
            assert frame.agg(f.count("*"), f.sum("n")).collect()[0] == (100_000, sum(range(100_000)))
        finally:
            spark.conf.unset("fs.defaultFS")


@pytest.mark.parametrize("failing", ["copy", "reader"])
def test_large_results_are_read_by_the_source_where_a_copy_cannot_be_made_or_found(
    spark: SparkSession, queue: opsq.Queue, daemon: Settings, monkeypatch: pytest.MonkeyPatch, failing: str
):
    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    if failing == "copy":
        monkeypatch.setattr(joined_results, "join", full)
    else:
        monkeypatch.setattr(joined_results, "_url_of", lambda path: f"file:///nowhere{path}")
    submission = submit(queue, [wide(n * 5000) for n in range(20)])
    frame = opsq.spark.results(spark, submission.id, state_dir=daemon.state_dir)
    assert frame.inputFiles() == []
    assert frame.agg(f.count("*"), f.sum("n")).collect()[0] == (100_000, sum(range(100_000)))
    assert list(Path(daemon.state_dir).glob("content/*/*.new")) == []


def test_copy_for_spark_itself_that_is_not_whole_any_more_is_made_again(
    spark: SparkSession, queue: opsq.Queue, daemon: Settings
):
    submission = submit(queue, [wide(n * 5000) for n in range(20)])

    def files_read() -> list[Path]:
        """Those of the copy; all results are in them."""
        frame = opsq.spark.results(spark, submission.id, state_dir=daemon.state_dir)
        assert frame.agg(f.count("*"), f.sum("n")).collect()[0] == (100_000, sum(range(100_000)))
        return sorted(Path(url.removeprefix("file://")) for url in frame.inputFiles())

    files = files_read()
    for damage in (
        lambda: os.truncate(files[0], 0),
        lambda: os.truncate(files[-1], 0),
        lambda: os.truncate(files[-1], files[-1].stat().st_size // 2),
        files[-1].unlink,
    ):
        damage()
        assert files_read() == files
    for path in files:
        footer_bytes = pq.read_metadata(path).serialized_size
        with path.open("r+b") as file:
            file.seek(-footer_bytes - 8, os.SEEK_END)
            file.write(b"\xff" * footer_bytes)  # Spark cannot read it, and the source can read the results
    assert files_read() == []


def test_copy_that_a_killed_reader_has_begun_goes_and_one_under_way_stays(
    spark: SparkSession, queue: opsq.Queue, daemon: Settings
):
    submission = submit(queue, [wide(n * 5000) for n in range(20)])
    [content] = Path(daemon.state_dir).glob("content/*/")
    begun = [content / f"joined-0.{name}.new" for name in ("killed", "slow", "fresh")]
    for folder in begun:
        folder.mkdir()
        (folder / "00000.parquet").write_bytes(b"PAR1")
    long_ago = time.time() - 2 * joined_results.ABANDONED_S
    for path in (begun[0] / "00000.parquet", begun[0], begun[1]):
        os.utime(path, (long_ago, long_ago))
    assert opsq.spark.results(spark, submission.id, state_dir=daemon.state_dir).inputFiles()
    assert sorted(content.glob("*.new")) == sorted(begun[1:])


# --- over TCP ---------------------------------------------------------------------------------------------------------


def test_token_opens_a_daemon_over_tcp_and_is_shown_nowhere(spark: SparkSession, runtime_dir: Path):
    with running(runtime_dir, listen="127.0.0.1:0") as settings, opsq.connect(state_dir=runtime_dir) as queue:
        address = queue.status().settings["listen"]
        token = Path(settings.token_file).read_text().strip()
        options = {"address": address, "token": token}
        frame = spark.range(100).select("id", f.lit("x").alias("text"))
        frame.write.format("opsq").mode("append").options(**options).save()
        [state] = queue.submissions()
        work(queue)
        found = spark.read.format("opsq").options(**options).load(str(state.submission_id))
        assert found.count() == 100
        said = io.StringIO()
        with contextlib.redirect_stdout(said):
            found.explain("extended")
            found.explain("formatted")
        with pytest.raises(PySparkException) as failed:
            spark.read.format("opsq").options(**options).load("1").collect()
        with pytest.raises(PySparkException) as refused:
            spark.read.format("opsq").options(address=address, token="wr0ng-t0ken").load("1").collect()
        by_file = (
            spark.read.format("opsq")
            .options(address=address, tokenFile=settings.token_file)
            .load(str(state.submission_id))
        )
        assert by_file.count() == 100
        texts = [
            said.getvalue(),
            str(failed.value),
            str(refused.value),
            json.dumps(found.schema.jsonValue()),
            repr(found),
        ]
        assert not any(token in text or "wr0ng-t0ken" in text for text in texts)
        assert "token" in str(refused.value)


def test_executor_that_cannot_reach_the_daemon_says_what_to_do(spark: SparkSession, runtime_dir: Path):
    with pytest.raises(
        PySparkException, match=r"No daemon answers at 127.0.0.1:9.*Give an address that every executor can reach"
    ):
        spark.read.format("opsq").options(address="127.0.0.1:9", token="x").load("1").collect()


def test_columns_of_json_are_guessed_from_several_results(queue: opsq.Queue, read: Read):
    lines = [
        b'{"n": 1, "at": "2024-01-01T00:00:00Z", "none": null}\n',
        b'{"n": 1.5, "at": "2024-01-01T01:00:00+01:00", "none": "x", "late": 1}\n',
    ]
    found = read(submit(queue, lines), resultFormat="jsonl")
    assert found.schema.simpleString() == "struct<n:double,at:timestamp,none:string,late:bigint>"
    assert [(row.n, row.none, row.late) for row in found.collect()] == [(1.0, None, None), (1.5, "x", 1)]
    assert found.select("at").distinct().count() == 1


EVOLVED = [
    pa.table({"n": pa.array([1], pa.int32()), "none": pa.nulls(1), "price": pa.array([Decimal("1.5")])}),
    pa.table({"n": pa.array([1 << 40]), "none": ["x"], "price": pa.array([Decimal("12.25")]), "new": [True]}),
    pa.table({"n": pa.array([2], pa.int32())}),
]


@pytest.mark.parametrize("order", [(0, 1, 2), (2, 1, 0), (1, 2, 0)])
def test_results_whose_columns_differ_are_read_in_the_columns_of_all_in_any_order(
    queue: opsq.Queue, read: Read, order: tuple[int, ...]
):
    found = read(submit(queue, [parquet(EVOLVED[number]) for number in order]), metadataColumns="_chunk")
    assert found.schema.simpleString() == ("struct<n:bigint,none:string,price:decimal(4,2),new:boolean,_chunk:bigint>")
    rows = {order[row["_chunk"]]: (row.n, row.none, row.price, row.new) for row in found.collect()}
    assert rows == {
        0: (1, None, Decimal("1.50"), None),
        1: (1 << 40, "x", Decimal("12.25"), True),
        2: (2, None, None, None),
    }


@pytest.mark.parametrize("order", [(0, 1), (1, 0)])
def test_results_whose_columns_no_type_holds_are_refused_by_name_and_read_without_that_column(
    spark: SparkSession, daemon: Settings, queue: opsq.Queue, read: Read, order: tuple[int, ...]
):
    tables = [pa.table({"n": [1], "x": ["a"]}), pa.table({"n": [2], "x": [7]})]
    submission = submit(queue, [parquet(tables[number]) for number in order])
    message = f"Column 'x' of the results of submission {submission.id} is bigint in some and string in others"
    with pytest.raises(UsageError, match=message):
        opsq.spark.results(spark, submission.id, state_dir=daemon.state_dir)
    with pytest.raises(Exception, match=message):
        read(submission)
    assert sorted(row.n for row in read(submission, columns="n").collect()) == [1, 2]
    assert sorted(row.x for row in read(submission, "x STRING").collect()) == ["7", "a"]


@pytest.mark.parametrize("is_large", [False, True])
def test_submissions_are_read_together_in_the_columns_of_all_or_refused_by_name(
    spark: SparkSession, daemon: Settings, queue: opsq.Queue, is_large: bool
):
    size = 1 << 19 if is_large else 2  # large ones are read by Spark itself
    inner = pa.struct({"a": pa.int64(), "b": pa.string()})
    first = pa.table({"n": pa.array(range(size), pa.int32()), "row": [{"a": 1}] * size})
    second = pa.table({"row": pa.array([{"a": 2, "b": "x"}], inner), "n": pa.array([1 << 40]), "new": [1.5]})
    ids = [submit(queue, [parquet(table)]).id for table in (first, second, pa.table({"n": ["text"]}))]
    for chosen in (ids[:2], ids[1::-1]):
        found = opsq.spark.results(spark, chosen, state_dir=daemon.state_dir)
        types = {field.name: field.dataType.simpleString() for field in found.schema}
        assert types == {"n": "bigint", "row": "struct<a:bigint,b:string>", "new": "double"}
        assert found.count() == size + 1
        [last] = found.where("new is not null").collect()
        assert (last.n, last.row.a, last.row.b) == (1 << 40, 2, "x")
    with pytest.raises(UsageError, match=r"Column 'n' of the results of submissions .* in some and string in others"):
        opsq.spark.results(spark, ids, state_dir=daemon.state_dir)


def test_floats_that_a_program_leaves_unchanged_in_csv_are_floats_however_large_and_whole(
    spark: SparkSession, queue: opsq.Queue, write: Write, read: Read
):
    numbers = [0.1, 16777216.0, 1e20, -3.0, None]
    frame = spark.createDataFrame([(n, n) for n in numbers], "f FLOAT, d DOUBLE").coalesce(1)
    for where, types in (("f IS NOT NULL", "float"), ("f > 100", "float"), ("f < 0", "float")):
        submission = write(frame.where(where), chunkFormat="csv", rowsPerChunk=1)
        work(queue)
        found = read(submission)
        assert found.schema.simpleString() == f"struct<f:{types},d:double>"
        assert sorted(map(tuple, found.collect())) == sorted(map(tuple, frame.where(where).collect()))


def test_null_in_a_column_of_the_chunks_that_had_none_is_a_null(
    spark: SparkSession, queue: opsq.Queue, write: Write, read: Read
):
    submission = write(spark.range(4).coalesce(1), chunkFormat="jsonl", rowsPerChunk=2)
    work(queue, lambda data: b"{}\n" + data.split(b"\n")[1] + b"\n")
    found = read(submission, resultSchema="same")
    assert found.filter("id is null").count() == 2
    assert sorted(row.id for row in found.filter("id is not null").collect()) == [1, 3]


def test_columns_of_any_name_are_chosen_by_a_list(spark: SparkSession, daemon: Settings, queue: opsq.Queue):
    table = pa.table({"a`b": pa.array(range(10)), "c, d": pa.array(range(10)), "e": pa.array(range(10))})
    submission = submit(queue, [parquet(table)])
    for is_native in (True, False):
        found = opsq.spark.results(
            spark, submission.id, native=is_native, state_dir=daemon.state_dir, columns=["c, d", "a`b"]
        )
        assert found.columns == ["c, d", "a`b"]
        assert sorted(tuple(row) for row in found.collect()) == [(n, n) for n in range(10)]


def test_result_schema_of_a_command_line_is_ddl(spark: SparkSession):
    told = json.loads(Writing(result_schema="id BIGINT NOT NULL, text STRING").schema(spark) or "")
    assert [(field["name"], field["type"]) for field in told["fields"]] == [("id", "long"), ("text", "string")]
    with pytest.raises(UsageError, match=r"--result-schema id BIGNIT: Spark cannot parse it"):
        Writing(result_schema="id BIGNIT").schema(spark)


NUMBERED = "n BIGINT, _submission BIGINT, _chunk BIGINT, _attempts INT"


@pytest.fixture
def half_unreadable(queue: opsq.Queue) -> opsq.Submission:
    """Six chunks; every second result cannot be read, and chunks 2 and 3 took two attempts."""
    submission = queue.submit([b"%d" % number for number in range(6)], backoff=(0, 1, 0))
    for chunk in queue.consume():
        if chunk.index in (2, 3) and chunk.attempt == 0:
            chunk.fail("again")
        else:
            chunk.complete(b"no json" if chunk.index % 2 else b'{"n": %d}\n' % chunk.index)
    return submission


@pytest.mark.parametrize(
    ("condition", "numbers"),
    [
        ("_chunk = 2", [2]),
        ("_chunk IN (0, 4) AND n > 0", [4]),
        ("_attempts > 1 AND _chunk <> 3", [2]),
        ("_attempts > 2", []),
        ("_submission = 7", []),
        ("_chunk IS NULL", []),
    ],
)
def test_chunks_that_filters_of_a_query_leave_out_are_not_read(
    half_unreadable: opsq.Submission, read: Read, condition: str, numbers: list[int]
):
    found = read(half_unreadable, NUMBERED, resultFormat="jsonl", metadataColumns="true", chunksPerPartition=4)
    assert [row["n"] for row in found.where(condition).collect()] == numbers
    with pytest.raises(PySparkException, match="cannot be used"):
        found.where("n >= 0").collect()  # Spark filters what was read


def test_session_that_hands_no_filters_over_finds_the_same_rows(spark: SparkSession, queue: opsq.Queue, read: Read):
    submission = submit(queue, [b'{"n": %d}\n' % number for number in range(6)])
    found = read(submission, NUMBERED, resultFormat="jsonl", metadataColumns="true")
    counts = []
    for is_handed in ("true", "false"):
        spark.conf.set("spark.sql.python.filterPushdown.enabled", is_handed)
        counts.append([row["n"] for row in found.where("_chunk >= 2 AND _attempts = 1 AND NOT _chunk = 4").collect()])
    spark.conf.set("spark.sql.python.filterPushdown.enabled", "true")
    assert counts == [[2, 3, 5]] * 2

"""A DataFrame of 10⁷ rows written as 100 chunks, and its results read, against Spark's own Parquet in 100 files.

Results are the chunks as they were, completed before the clock starts. Three aggregates over a read touch three of four
columns; Spark's own reader leaves out the fourth by itself, the data source given `columns`. A data source that has as
many rows in memory shows what Spark takes to get them from Python, whatever made them.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition

import opsq
import opsq.spark
from harness import Benchmark, Context, Must, Ratio, Row, alternate, main, paired_row, ratio_at_least, reported
from ours import spark as ours_spark

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType

_CHUNKS_COUNT = 100
_NATIVE = "Spark's Parquet"
_AGGREGATES = ("sum(number)", "max(text)", "avg(part)")
_COLUMNS = "number,text,part"


def measure(context: Context) -> Iterator[Row]:
    """Write, then read what was written last; then both of fewer rows."""
    rows_count = context.size(10_000_000, 1_000_000)
    state_dir, native_dir = context.folder("opsq"), context.work_dir / "native"
    with ours_spark.session(context.folder("scratch")) as spark, ours_spark.daemon(state_dir) as queue:
        yield from _write(context, spark, queue, rows_count, state_dir, native_dir)
        for chunk in queue.consume():
            chunk.complete(chunk.data)
        yield from _read(context, spark, queue, rows_count, state_dir, native_dir)
        yield from _to_end(context, spark, queue, rows_count // 5, state_dir, native_dir)


def _write(
    context: Context, spark: SparkSession, queue: opsq.Queue, rows_count: int, state_dir: Path, native_dir: Path
) -> Iterator[Row]:
    context.say(f"write {rows_count:,} rows")
    frame, rows_per_chunk = ours_spark.rows(spark, rows_count), rows_count // _CHUNKS_COUNT

    def by_write() -> float:
        ours_spark.remove_all(queue)
        return ours_spark.timed(lambda: opsq.spark.write(frame, state_dir=state_dir, rows_per_chunk=rows_per_chunk))

    def by_source() -> float:
        ours_spark.remove_all(queue)
        return ours_spark.timed(lambda: ours_spark.write(frame, state_dir, rows_per_chunk))

    def native() -> float:
        shutil.rmtree(native_dir, ignore_errors=True)
        writer = frame.write.option("maxRecordsPerFile", rows_per_chunk)
        return ours_spark.timed(lambda: writer.parquet(str(native_dir)))

    *ours, other = alternate(context.pairs, by_write, by_source, native)
    reads, note = Ratio.RIVAL_OVER_OURS, f"{_CHUNKS_COUNT} files, not synced"
    for way, taken in zip(("opsq.spark.write", "df.write"), ours, strict=True):
        what = f"write {rows_count:,} rows as {_CHUNKS_COUNT} chunks, durable: {way}"
        yield paired_row(what, "s", taken, other, ratio_at_least(1), rival_name=_NATIVE, reads=reads, note=note)


def _to_end(
    context: Context, spark: SparkSession, queue: opsq.Queue, rows_count: int, state_dir: Path, native_dir: Path
) -> Iterator[Row]:
    context.say(f"write {rows_count:,} rows and read their results")
    frame = ours_spark.rows(spark, rows_count)

    rows_per_chunk = rows_count // _CHUNKS_COUNT

    def ours(write: Callable[[], object]) -> float:
        ours_spark.remove_all(queue)
        taken = ours_spark.timed(write)
        for chunk in queue.consume():
            chunk.complete(chunk.data)
        [state] = queue.submissions()
        return taken + ours_spark.timed(
            lambda: _total(opsq.spark.results(spark, state.submission_id, state_dir=state_dir))
        )

    ways: dict[str, Callable[[], object]] = {
        "opsq.spark.write": lambda: opsq.spark.write(frame, state_dir=state_dir, rows_per_chunk=rows_per_chunk),
        "df.write": lambda: ours_spark.write(frame, state_dir, rows_per_chunk),
    }

    def native() -> float:
        shutil.rmtree(native_dir, ignore_errors=True)

        def both() -> None:
            frame.write.parquet(str(native_dir))
            _total(spark.read.parquet(str(native_dir)))

        return ours_spark.timed(both)

    *mine, other = alternate(context.pairs, *[partial(ours, write) for write in ways.values()], native)
    reads, note = Ratio.RIVAL_OVER_OURS, "without the time in which the chunks are completed"
    for way, taken in zip(ways, mine, strict=True):
        what = f"{way} of {rows_count:,} rows, then three aggregates over opsq.spark.results"
        yield paired_row(what, "s", taken, other, ratio_at_least(0.8), rival_name=_NATIVE, reads=reads, note=note)


def _read(
    context: Context, spark: SparkSession, queue: opsq.Queue, rows_count: int, state_dir: Path, native_dir: Path
) -> Iterator[Row]:
    context.say("read by the data source, by opsq.spark.results, and natively")
    [state] = queue.submissions()

    def by_source(**options: str) -> DataFrame:
        reader = spark.read.format("opsq").option("stateDir", str(state_dir)).options(**options)
        return reader.load(str(state.submission_id))

    def by_results() -> DataFrame:
        return opsq.spark.results(spark, state.submission_id, state_dir=state_dir)

    def by_results_anew() -> DataFrame:
        for joined in state_dir.glob("content/*/joined-*"):
            shutil.rmtree(joined)
        return by_results()

    spark.dataSource.register(_source_in_memory(native_dir))

    def in_memory() -> DataFrame:
        return spark.read.format("in_memory").load()

    ways: dict[str, tuple[Callable[[], DataFrame], Must, str]] = {
        "data source": (by_source, ratio_at_least(0.9), ""),
        f"data source, columns={_COLUMNS}": (lambda: by_source(columns=_COLUMNS), reported(), ""),
        "opsq.spark.results, the first time": (
            by_results_anew,
            ratio_at_least(0.95),
            "with the copy into files that Spark can read",
        ),
        "opsq.spark.results, again": (by_results, ratio_at_least(0.95), ""),
    }

    def native() -> DataFrame:
        return spark.read.parquet(str(native_dir))

    def timed(way: Callable[[], DataFrame]) -> float:
        return ours_spark.timed(lambda: _total(way()))

    totals = {name: _total(way()) for name, (way, _, _) in ways.items()} | {_NATIVE: _total(native())}
    if any(found != totals[_NATIVE] for found in totals.values()):
        raise RuntimeError(f"the ways to read disagree: {totals}")
    sides = [partial(timed, way) for way, _, _ in ways.values()]
    *mine, memory, other = alternate(context.pairs, *sides, partial(timed, in_memory), partial(timed, native))
    what = f"three aggregates over {rows_count:,} rows of results: data source"
    rival = "one with rows in memory"
    yield paired_row(what, "s", mine[0], memory, ratio_at_least(0.8), rival_name=rival, reads=Ratio.RIVAL_OVER_OURS)
    for (name, (_, must, note)), taken in zip(ways.items(), mine, strict=True):
        what = f"three aggregates over {rows_count:,} rows of results: {name}"
        yield paired_row(what, "s", taken, other, must, rival_name=_NATIVE, reads=Ratio.RIVAL_OVER_OURS, note=note)


def _source_in_memory(native_dir: Path) -> type[DataSource]:
    """A data source whose two tasks hand over the rows of one file, as often as there are files.

    Made here, so that workers get it by value.
    """
    file, schema = str(min(native_dir.glob("*.parquet"))), "id LONG, number LONG, text STRING, part DOUBLE"

    class Reader(DataSourceReader):
        def partitions(self) -> list[InputPartition]:
            return [InputPartition(number) for number in range(2)]

        def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
            import pyarrow as pa
            import pyarrow.parquet as pq

            table = pq.read_table(file, use_threads=False).combine_chunks()
            batches = table.cast(pa.schema([field.with_nullable(True) for field in table.schema])).to_batches()
            for _ in range(_CHUNKS_COUNT // 2):
                yield from batches

    class Source(DataSource):
        @classmethod
        def name(cls) -> str:
            return "in_memory"

        def schema(self) -> str:
            return schema

        def reader(self, schema: StructType) -> DataSourceReader:
            return Reader()

    return Source


def _total(frame: DataFrame) -> list[object]:
    return list(frame.selectExpr(*_AGGREGATES).collect())


BENCHMARK = Benchmark("spark_data", __doc__ or "", measure)

if __name__ == "__main__":
    main(BENCHMARK)

"""DataFrames of odd shapes written as chunks and by Spark's own Parquet: many partitions, columns, bytes, attempts.

Each shape is written by `opsq.spark.write`, by `df.write.format("opsq")` and natively, in turns in one session.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from typing import TYPE_CHECKING

import opsq
import opsq.spark
from harness import Benchmark, Context, Row, alternate, main, paired_row, ratio_at_most
from ours import spark as ours_spark

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession

_MASTER = "local[2,2]"


def measure(context: Context) -> Iterator[Row]:
    """Each shape in turn."""
    state_dir, native_dir = context.folder("opsq"), context.work_dir / "native"
    with (
        ours_spark.session(context.folder("scratch"), master=_MASTER) as spark,
        ours_spark.daemon(state_dir) as queue,
    ):
        for what, frame in _shapes(context, spark).items():
            context.say(what)

            def by_write(frame: DataFrame = frame) -> float:
                ours_spark.remove_all(queue)
                return ours_spark.timed(lambda: opsq.spark.write(frame, state_dir=state_dir))

            def by_source(frame: DataFrame = frame) -> float:
                ours_spark.remove_all(queue)
                return ours_spark.timed(lambda: ours_spark.write(frame, state_dir, None))

            def native(frame: DataFrame = frame) -> float:
                shutil.rmtree(native_dir, ignore_errors=True)
                return ours_spark.timed(lambda: frame.write.parquet(str(native_dir)))

            *ours, other = alternate(context.pairs, by_write, by_source, native)
            for way, taken in zip(("opsq.spark.write", "df.write"), ours, strict=True):
                yield paired_row(f"{what}: {way}", "s", taken, other, ratio_at_most(1.5), rival_name="Spark's Parquet")


def _shapes(context: Context, spark: SparkSession) -> dict[str, DataFrame]:
    partitions, columns, rows = context.size((2_000, 5_000, 5_000_000), (1_000, 1_000, 1_000_000))
    texts = "repeat(sha2(cast(id AS string), 256), 312500) AS text"
    numbers = [f"id * {number} AS c{number}" for number in range(columns)]
    return {
        f"{partitions:,} partitions of one row": spark.range(0, partitions, 1, partitions),
        f"2,000 rows of {columns:,} columns": spark.range(0, 2000, 1, 4).selectExpr(*numbers),
        "40 rows of 20 MB": spark.range(0, 40, 1, 4).selectExpr("id", texts),
        f"one partition of {rows:,} rows": ours_spark.rows(spark, rows).coalesce(1),
        f"{rows // 5:,} rows, one task of four runs twice": _failing_once(ours_spark.rows(spark, rows // 5)),
    }


def _failing_once(frame: DataFrame) -> DataFrame:
    """The same rows; the first attempt of one partition fails after its first batch."""

    def rows(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        from pyspark import TaskContext

        task = TaskContext.get()
        for batch in batches:
            yield batch
            if task is not None and task.partitionId() == 1 and task.attemptNumber() == 0:
                raise RuntimeError("this attempt is to fail")

    return frame.mapInArrow(rows, frame.schema)


BENCHMARK = Benchmark("spark_shapes", __doc__ or "", measure)

if __name__ == "__main__":
    main(BENCHMARK)

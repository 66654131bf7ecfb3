"""Many small chunks on Spark: 10⁷ rows as 10⁵ chunks against 100, and two tasks with 10⁴ no-op chunks.

The fleet's rate is that of its slower task: from its first call to the daemon to its last completion, without the start
of the job.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import opsq
import opsq.spark
from harness import Benchmark, Context, Row, alternate, at_least, main, median, paired_row, ratio_at_most
from ours import spark as ours_spark

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_TASKS_COUNT = 2


def measure(context: Context) -> Iterator[Row]:
    """Submit, then process."""
    rows_count = context.size(10_000_000, 1_000_000)
    state_dir = context.folder("opsq")
    with ours_spark.session(context.folder("scratch")) as spark, ours_spark.daemon(state_dir) as queue:
        frame = ours_spark.rows(spark, rows_count)
        context.say(f"submit {rows_count:,} rows in small and in large chunks")

        for chunk_format in ("parquet", "arrow"):

            def submit(rows_per_chunk: int, chunk_format: str = chunk_format) -> float:
                ours_spark.remove_all(queue)
                return ours_spark.timed(lambda: ours_spark.write(frame, state_dir, rows_per_chunk, chunk_format))

            small, large = alternate(context.pairs, partial(submit, 100), partial(submit, rows_count // 100))
            what = f"submit {rows_count // 100:,} chunks of 100 rows, {chunk_format}"
            yield paired_row(
                what, "s", small, large, ratio_at_most(2), rival_name=f"100 chunks of {rows_count // 100:,} rows"
            )

        chunks_count = context.size(10_000, 2_000)
        few = ours_spark.rows(spark, chunks_count * 100)
        context.say(f"a fleet of {_TASKS_COUNT} tasks over {chunks_count:,} chunks")
        rates = [_fleet_rate(spark, queue, few, state_dir) for _ in range(context.pairs + 1)][1:]
        what = (
            f"fleet of {_TASKS_COUNT} tasks, no-op on Arrow tables, {chunks_count:,} chunks of 100 rows: in the tasks"
        )
        yield Row(what, "chunks/s", median(rates), at_least(1000, "chunks/s"), samples={"ours": rates})


def _fleet_rate(spark: SparkSession, queue: opsq.Queue, frame: DataFrame, state_dir: Path) -> float:
    ours_spark.remove_all(queue)
    ours_spark.write(frame, state_dir, 100)
    summary = opsq.spark.consume(spark, function=_no_op, tasks=_TASKS_COUNT, state_dir=str(state_dir))
    [state] = queue.submissions()
    if summary.completed != state.chunks_count:
        raise RuntimeError(f"{summary.completed} of {state.chunks_count} chunks were completed")
    return summary.completed / max(task.seconds for task in summary.tasks)


def _no_op(_: object) -> None:
    """The function of the fleet."""


BENCHMARK = Benchmark("spark_chunks", __doc__ or "", measure)

if __name__ == "__main__":
    main(BENCHMARK)

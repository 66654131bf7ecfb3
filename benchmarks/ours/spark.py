"""Spark as the benchmarks use it: one session of two cores, the rows that they move, and a daemon beside it.

Native Spark and opsq take turns in the same session, so neither pays for the other's start.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import opsq
from opsq.spark import build_session
from ours.client import connect
from ours.daemon import Daemon

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

MASTER = "local[2]"
PARTITIONS_COUNT = 4


@contextmanager
def session(folder: Path, master: str = MASTER) -> Iterator[SparkSession]:
    """A session of two cores whose scratch files lie on the disk that is measured."""
    conf = {
        "spark.local.dir": str(folder),
        "spark.sql.warehouse.dir": str(folder / "warehouse"),
        "spark.driver.memory": "4g",
    }
    spark = build_session(master, name="opsq benchmark", conf=conf)
    try:
        yield spark
    finally:
        spark.stop()


@contextmanager
def daemon(state_dir: Path) -> Iterator[opsq.Queue]:
    """A daemon that has answered, and a connection to it."""
    with Daemon(state_dir) as started:
        connect(started).close()
        with opsq.connect(state_dir=state_dir) as queue:
            yield queue


def rows(spark: SparkSession, count: int) -> DataFrame:
    """So many rows of two whole numbers, a text and a fraction, in four partitions.

    Made by Spark as they are asked for.
    """
    return spark.range(0, count, 1, PARTITIONS_COUNT).selectExpr(
        "id", "id * 7919 % 100003 AS number", "concat('row ', id % 1000) AS text", "id / 4 AS part"
    )


def write(frame: DataFrame, state_dir: Path, rows_per_chunk: int | None, chunk_format: str = "parquet") -> None:
    """Make a submission of a DataFrame, by Spark's writer."""
    options = {"stateDir": str(state_dir), "chunkFormat": chunk_format}
    if rows_per_chunk is not None:
        options["rowsPerChunk"] = str(rows_per_chunk)
    frame.write.format("opsq").mode("append").options(**options).save()


def remove_all(queue: opsq.Queue) -> None:
    """Leave no submission, of whatever state, so that each turn finds the same queue."""
    for state in queue.submissions():
        submission = queue.submission(state.submission_id)
        submission.cancel()
        submission.remove()


def timed(do: Callable[[], object]) -> float:
    """The wall seconds of a call."""
    started = time.perf_counter()
    do()
    return time.perf_counter() - started

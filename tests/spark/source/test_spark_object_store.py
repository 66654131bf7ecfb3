"""A daemon whose store is an object service.

Tasks of Spark write into it and read from it themselves, and nothing lies elsewhere.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
import pytest
from pyspark.sql import functions as f

import opsq
import opsq.spark
from daemons import running
from opsq.content.store_kinds import open_store
from waiting import wait_until

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def test_rows_go_through_the_service_and_come_back(
    spark: SparkSession, runtime_dir: Path, service_environment: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in service_environment.items():
        monkeypatch.setenv(name, value)
    frame = spark.range(0, 20000, 1, 3).withColumn("text", f.sha2(f.col("id").cast("string"), 512))
    wanted = frame.selectExpr("id * 2 AS id", "text")

    def doubled(table: pa.Table) -> pa.Table:
        import pyarrow.compute as pc

        return table.set_column(0, "id", pc.multiply(table.column("id"), 2))

    with running(runtime_dir / "s") as settings:
        reach = {"stateDir": settings.state_dir}
        writer = frame.write.format("opsq").mode("append")
        writer.options(**reach, rowsPerChunk=1000, idempotencyKey="objects").save()
        submission = opsq.spark.submission_of("objects", state_dir=settings.state_dir)
        assert submission is not None
        summary = opsq.spark.consume(
            spark, function=doubled, submission=submission, tasks=2, state_dir=settings.state_dir
        )
        assert summary.completed == 21
        read = spark.read.format("opsq").options(**reach).load(str(submission))
        native = opsq.spark.results(spark, submission, state_dir=settings.state_dir)
        assert [row.id for row in read.collect()] == [2 * number for number in range(20000)]
        for found in (read, native):
            assert found.exceptAll(wanted).count() == wanted.exceptAll(found).count() == 0
        store = open_store(service_environment["OPSQ_STORE"])
        [folder] = store.folders()
        assert len([name for name in store.objects(folder) if name.startswith("part-")]) == 3
        assert len(list(store.objects(f"{folder}/results"))) >= 2
        assert not any(path.name.startswith(("part-", "result")) for path in Path(settings.state_dir).rglob("*"))
        with opsq.connect(state_dir=settings.state_dir) as queue:
            queue.submission(submission).remove()
        wait_until(lambda: not list(store.folders()), 300, "the daemon has deleted its objects")

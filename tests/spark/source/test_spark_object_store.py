"""A daemon whose store is an object service.

Tasks of Spark write into it and read from it themselves, and nothing lies elsewhere.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

import opsq
from daemons import running
from opsq.content.store_kinds import open_store
from spark.jvm import DEADLINE_S
from waiting import wait_until

# In a process of its own: executors get the variables of the service from their JVM.
PROGRAM = """
import json, sys
from pyspark.sql import functions as f
from opsq.spark import build_session, consume, results, submission_of

state_dir, = sys.argv[1:]
spark = build_session("local[2]", is_short=True)
frame = spark.range(0, 20000, 1, 3).withColumn("text", f.sha2(f.col("id").cast("string"), 512))
writer = frame.write.format("opsq").mode("append")
writer = writer.options(stateDir=state_dir, rowsPerChunk=1000, idempotencyKey="objects")
writer.save()
submission = submission_of("objects", state_dir=state_dir)

def doubled(table):
    import pyarrow.compute as pc
    return table.set_column(0, "id", pc.multiply(table.column("id"), 2))

summary = consume(spark, function=doubled, submission=submission, tasks=2, state_dir=state_dir)
wanted = frame.selectExpr("id * 2 AS id", "text")
read = spark.read.format("opsq").option("stateDir", state_dir).load(str(submission))
native = results(spark, submission, state_dir=state_dir)
told = {
    "submission": submission,
    "completed": summary.completed,
    "wrong": [found.exceptAll(wanted).count() + wanted.exceptAll(found).count() for found in (read, native)],
    "in_order": [row.id for row in read.collect()] == [2 * number for number in range(20000)],
}
spark.stop()
print(json.dumps(told))
"""


@pytest.mark.usefixtures("java")
def test_rows_go_through_the_service_and_come_back(
    runtime_dir: Path, service_environment: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in service_environment.items():
        monkeypatch.setenv(name, value)
    with running(runtime_dir / "s") as settings:
        words = [sys.executable, "-c", PROGRAM, settings.state_dir]
        ran = subprocess.run(
            words, env=dict(os.environ), stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=DEADLINE_S
        )
        assert ran.returncode == 0, ran.stderr
        told = json.loads(ran.stdout.splitlines()[-1])
        assert (told["completed"], told["wrong"], told["in_order"]) == (21, [0, 0], True)
        store = open_store(service_environment["OPSQ_STORE"])
        [folder] = store.folders()
        assert len([name for name in store.objects(folder) if name.startswith("part-")]) == 3
        assert len(list(store.objects(f"{folder}/results"))) >= 2
        assert not any(path.name.startswith(("part-", "result")) for path in Path(settings.state_dir).rglob("*"))
        with opsq.connect(state_dir=settings.state_dir) as queue:
            queue.submission(told["submission"]).remove()
        wait_until(lambda: not list(store.folders()), 300, "the daemon has deleted its objects")

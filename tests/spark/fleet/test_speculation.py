"""Two attempts of one task at the same time, as speculation makes them: every row once, and nothing is left behind."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

import opsq
from opsq.settings import Settings
from spark.clusters import Cluster
from spark.conftest import folders, parts, work
from spark.jvm import DEADLINE_S
from waiting import wait_until

SPECULATION = {
    "spark.speculation": "true",
    "spark.speculation.interval": "100ms",
    "spark.speculation.multiplier": "1.1",
    "spark.speculation.quantile": "0.5",
    "spark.speculation.minTaskRuntime": "1s",
}

# Partition 1 goes on with its rows when a second attempt of it has begun: then both write, and Spark says which of them
# counts.
PROGRAM = """
import json, os, sys, time
import opsq.spark
from pyspark import TaskContext
from opsq.spark import build_session

way, master, state_dir, folder, conf = sys.argv[1:]

def straggling(batches):
    context = TaskContext.get()
    assert context is not None
    attempts = os.path.join(folder, str(context.partitionId()))
    os.makedirs(attempts, exist_ok=True)
    open(os.path.join(attempts, str(context.taskAttemptId())), "w").close()
    for batch in batches:
        yield batch
        while context.partitionId() == 1 and len(os.listdir(attempts)) < 2:
            time.sleep(0.05)

spark = build_session(master, conf=json.loads(conf))
frame = spark.range(0, 4000, 1, 2).mapInArrow(straggling, "id long")
if way == "source":
    frame.write.format("opsq").mode("append").options(stateDir=state_dir, rowsPerChunk=100, chunkFormat="csv").save()
else:
    opsq.spark.write(frame, state_dir=state_dir, rows_per_chunk=100, chunk_format="csv")
spark.stop()
"""


@pytest.mark.parametrize("way", ["source", "job"])
def test_straggler_that_spark_runs_twice_at_once_gives_every_row_once(
    daemon: Settings, queue: opsq.Queue, cluster: Cluster, runtime_dir: Path, way: str
) -> None:
    attempts = runtime_dir / "attempts"
    attempts.mkdir()
    settings = json.dumps(cluster.settings | SPECULATION)
    words = [sys.executable, "-c", PROGRAM, way, cluster.url, daemon.state_dir, str(attempts), settings]
    environ = os.environ | {"SPARK_LOCAL_IP": "127.0.0.1"}
    ran = subprocess.run(
        words, env=environ, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=DEADLINE_S
    )
    assert ran.returncode == 0, ran.stderr
    assert [len(list((attempts / partition).iterdir())) for partition in ("0", "1")] == [1, 2]
    [state] = queue.submissions()
    work(queue)
    lines = b"".join(queue.submission(state.submission_id).results()).split()
    assert [int(line) for line in lines if line != b'"id"'] == list(range(4000))
    assert len(folders(daemon)) == 1

    def is_swept() -> bool:
        opsq.spark.sweep(state_dir=daemon.state_dir, older_than_s=0)
        return len(parts(daemon)) == 2

    wait_until(is_swept, 300, "the part of the attempt that does not count is gone")  # its executor may still be ending

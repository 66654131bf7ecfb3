"""The whole pipeline on a real cluster on loopback, whose executors are processes, while a worker is killed."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from opsq.settings import Settings
from spark.clusters import Cluster, is_alive
from spark.jvm import DEADLINE_S
from waiting import wait_until

PROGRAM = str(Path(sys.executable).with_name("opsq"))


@pytest.fixture
def rows(runtime_dir: Path) -> Path:
    """A Parquet file of 400 rows."""
    path = runtime_dir / "in.parquet"
    pq.write_table(pa.table({"id": list(range(400))}), path)
    return path


def line(
    daemon: Settings, master: str, settings: dict[str, str], source: Path, output: Path, *command: str
) -> list[str]:
    """`opsq spark run` with two executors."""
    words = [PROGRAM, "--state-dir", daemon.state_dir, "spark", "run", "--json", "--master", master, "--tasks", "2"]
    words += ["--rows-per-chunk", "10", str(source), "-o", str(output)]
    for key, value in settings.items():
        words += ["--conf", f"{key}={value}"]
    return [*words, "--", *command]


def check(output: Path, told: bytes) -> dict[str, Any]:
    """See to it that every row is there, once and in order; what was told of it."""
    document: dict[str, Any] = json.loads(told)
    assert (document["state"], document["completed"], document["rows"]) == ("completed", document["chunks"], 400), (
        document
    )
    lines = [line for path in sorted(output.glob("part-*")) for line in path.read_text().splitlines()]
    assert [json.loads(line)["id"] for line in lines] == list(range(400))
    return document


def test_killed_worker_costs_no_row_and_leaves_no_program(
    daemon: Settings, cluster: Cluster, runtime_dir: Path, rows: Path
) -> None:
    output, go = runtime_dir / "out.json", runtime_dir / "go"
    # The first program of each executor waits, so that both are at work when one dies.
    script = f"cd {runtime_dir}; if [ ! -e go ]; then touch pid-$$; while [ ! -e go ]; do sleep 0.05; done; fi; cat"
    words = line(daemon, cluster.url, cluster.settings, rows, output, "sh", "-c", script)
    environ = os.environ | {"SPARK_LOCAL_IP": "127.0.0.1"}
    with subprocess.Popen(
        words, env=environ, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as pipeline:
        try:
            noted = wait_until(
                lambda: (found := list(runtime_dir.glob("pid-*"))) and len(found) == 2 and found,
                DEADLINE_S,
                "both work",
            )
            programs = [int(path.name.removeprefix("pid-")) for path in noted]
            cluster.workers[0].send_signal(signal.SIGKILL)
            wait_until(lambda: sum(map(is_alive, programs)) == 1, 300, "the program of the dead worker is gone")
            go.touch()
            out, err = pipeline.communicate(timeout=DEADLINE_S)
        except BaseException:
            go.touch()
            pipeline.terminate()
            raise
    assert pipeline.returncode == 0, err.decode()
    assert [task["task"] for task in check(output, out)["tasks"]] == [0, 1]
    assert not any(map(is_alive, programs))

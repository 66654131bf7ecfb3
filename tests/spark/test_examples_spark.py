"""Each script of examples/spark, in the one session of these tests.

And the README's block on Spark run as their reader would run them.
"""

from __future__ import annotations

import contextlib
import http.server
import json
import os
import runpy
import sqlite3
import subprocess
import sys
import threading
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from deltalake import DeltaTable

import opsq
import readme
from opsq.settings import Settings
from spark.conftest import work
from spark.jvm import DEADLINE_S

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

EXAMPLES = Path(__file__).parents[2] / "examples" / "spark"
Run = Callable[..., None]


@pytest.fixture
def run(spark: SparkSession, daemon: Settings, monkeypatch: pytest.MonkeyPatch) -> Run:
    """Runs a script as a program; its session is the one that is there."""

    def run(name: str, *words: object) -> None:
        monkeypatch.setenv("OPSQ_STATE_DIR", daemon.state_dir)
        monkeypatch.setattr(sys, "argv", [name, *map(str, words)])
        runpy.run_path(str(EXAMPLES / name), run_name="__main__")

    return run


def test_features_of_texts_come_from_an_external_program(run: Run, spark: SparkSession, tmp_path: Path) -> None:
    """features.py has word_features.py run for each chunk."""
    source, target = tmp_path / "in.parquet", tmp_path / "out.parquet"
    spark.range(2500).selectExpr("id", "repeat('word ', CAST(id % 5 AS INT)) AS text").write.parquet(str(source))
    run("features.py", source, target)
    found = {(row.id, row.words, row.longest) for row in spark.read.parquet(str(target)).collect()}
    assert found == {(n, n % 5, 4 if n % 5 else 0) for n in range(2500)}


def test_service_is_never_asked_more_often_at_once_than_it_takes(
    run: Run, spark: SparkSession, tmp_path: Path, service: tuple[str, list[int]]
) -> None:
    url, busy = service
    source, target = tmp_path / "in.parquet", tmp_path / "out.parquet"
    spark.range(120).selectExpr("id", "'place ' || id AS place").write.parquet(str(source))
    run("service.py", url, source, target, 1)
    assert {(row.id, row.answer) for row in spark.read.parquet(str(target)).collect()} == {
        (n, f"place%20{n}") for n in range(120)
    }
    assert max(busy) == 1


def test_service_with_limits_has_nothing_to_refuse(run: Run, spark: SparkSession, tmp_path: Path) -> None:
    source, target = tmp_path / "in.parquet", tmp_path / "out.parquet"
    spark.range(150).selectExpr("id", "'place ' || id AS place").write.parquet(str(source))
    words = [sys.executable, str(EXAMPLES / "strict_service.py")]
    with subprocess.Popen(words, stdout=subprocess.PIPE, text=True) as service:
        assert service.stdout is not None
        try:
            url = service.stdout.readline().strip()
            run("service_limits.py", url, source, target)
            with urllib.request.urlopen(url + "counts") as answer:
                counts = json.load(answer)
        finally:
            service.kill()
    assert {(row.id, row.answer) for row in spark.read.parquet(str(target)).collect()} == {
        (n, f"PLACE {n}") for n in range(150)
    }
    assert counts["refused"] == 0
    assert counts["accepted"] >= 150


def test_results_stream_into_a_table_while_work_goes_on(run: Run, spark: SparkSession, tmp_path: Path) -> None:
    target = tmp_path / "out.parquet"
    run("streaming.py", 2000, tmp_path / "checkpoint", target)
    assert sorted((row.n, row.square) for row in spark.read.parquet(str(target)).collect()) == [
        (n, n * n) for n in range(2000)
    ]


def test_micro_batch_that_is_run_again_stores_and_submits_nothing_twice(run: Run, tmp_path: Path) -> None:
    folder, checkpoint, database = tmp_path / "orders", tmp_path / "checkpoint", tmp_path / "shop.db"
    folder.mkdir()
    for number in range(2):
        (folder / f"{number}.json").write_text(f'{{"id": {number}, "item": "tea"}}\n')
        run("foreach_batch.py", folder, checkpoint, database)
    for path in checkpoint.glob("commits/*1*"):  # as if the driver had been killed after the transaction
        path.unlink()
    run("foreach_batch.py", folder, checkpoint, database)
    with contextlib.closing(sqlite3.connect(database)) as connection:
        assert connection.execute("SELECT id, item FROM orders ORDER BY id").fetchall() == [(0, "tea"), (1, "tea")]
        assert connection.execute("SELECT count(*) FROM opsq_outbox").fetchone() == (2,)


def test_micro_batch_of_results_that_is_run_again_adds_nothing_to_the_table(
    run: Run, spark: SparkSession, write: Callable[..., opsq.Submission], queue: opsq.Queue, tmp_path: Path
) -> None:
    submission = write(spark.range(0, 30, 1, 1).selectExpr("id AS n"), rowsPerChunk=10)
    work(queue)
    table, checkpoint = tmp_path / "table", tmp_path / "checkpoint"
    words = (submission.id, "n BIGINT", checkpoint, table, 1)
    run("lakehouse.py", *words)
    version = DeltaTable(table).version()
    last = max(int(path.name) for path in checkpoint.glob("commits/[0-9]*"))
    for path in checkpoint.glob(f"commits/*{last}*"):  # as if the driver had been killed after that commit to the table
        path.unlink()
    run("lakehouse.py", *words)
    assert DeltaTable(table).version() == version == last
    assert sorted(DeltaTable(table).to_pyarrow_table()["n"].to_pylist()) == list(range(30))


@pytest.mark.usefixtures("java")
def test_readme_with_spark(spark: SparkSession, daemon: Settings, tmp_path: Path) -> None:
    """In a session of its own, as it reaches the daemon by its environment.

    What it shows at the end is what its function kept.
    """
    spark.range(0, 2500, 1, 1).selectExpr("id", "'place ' || id AS place").write.parquet(
        str(tmp_path / "events.parquet")
    )
    environ = os.environ | {"OPSQ_STATE_DIR": daemon.state_dir}
    words = [sys.executable, "-c", readme.PYTHON_SPARK]
    done = subprocess.run(
        words, env=environ, cwd=tmp_path, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=DEADLINE_S
    )
    assert done.returncode == 0, done.stderr
    shown = done.stdout.splitlines()
    assert shown[:4] == ["+---+", "| id|", "+---+", "|  0|"]
    assert shown[-1] == "only showing top 20 rows"


@pytest.fixture
def service() -> Iterator[tuple[str, list[int]]]:
    """A service that answers with its query, and notes how many calls were under way at each."""
    busy: list[int] = []
    under_way = [0]
    counting, is_crowded = threading.Lock(), threading.Event()

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            with counting:
                under_way[0] += 1
                busy.append(under_way[0])
                if under_way[0] > 1:
                    is_crowded.set()
            is_crowded.wait(0.01)  # time for another call, if there may be one
            answer = self.path.partition("?")[2].encode()
            with counting:  # before the answer: whoever has it may ask again
                under_way[0] -= 1
            self.send_response(200)
            self.end_headers()
            self.wfile.write(answer)

        def log_message(self, *_: object) -> None:
            """Nothing."""

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}/", busy
    server.shutdown()
    server.server_close()
    thread.join()

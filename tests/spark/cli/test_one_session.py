"""`opsq spark …` in this process and in the one session of these tests, where a JVM of its own is not the point."""

from __future__ import annotations

import datetime as dt
import json
import subprocess
from collections.abc import Callable
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import opsq
import opsq.spark
from daemons import running
from opsq import __main__ as program
from opsq.settings import Settings
from spark.cli.test_report import PROGRAM, work_off
from spark.jvm import DEADLINE_S

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

Here = Callable[..., "subprocess.CompletedProcess[str]"]
LOCAL = ("--master", "local[2]")


@pytest.fixture
def here(spark: SparkSession, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> Here:
    """Runs `opsq spark` with a state folder. The session goes on: another would have Python workers of its own."""

    def build_session(master: str, *, conf: dict[str, str], **_: Any) -> SparkSession:
        assert (master, conf) == ("local[2]", {})
        return spark

    monkeypatch.setattr(opsq.spark, "build_session", build_session)
    monkeypatch.setattr(type(spark), "stop", lambda _: None)

    def here(state_dir: object, *words: str) -> subprocess.CompletedProcess[str]:
        line = ["--state-dir", str(state_dir), "spark", *words]
        capfd.readouterr()
        status = program.run(line)
        return subprocess.CompletedProcess(line, status, *capfd.readouterr())

    return here


def test_run_gives_every_row_once_in_the_order_of_the_input_and_leaves_nothing(
    here: Here, runtime_dir: Path, rows: Path
) -> None:
    output = runtime_dir / "out.json"
    state_dir = runtime_dir / "state"
    ran = here(
        state_dir,
        "run",
        str(rows),
        "--rows-per-chunk",
        "64",
        "--tasks",
        "2",
        "-o",
        str(output),
        "--result-schema",
        "id BIGINT NOT NULL, text STRING",
        *LOCAL,
        "--json",
        "--",
        "sed",
        "s/row/line/",
    )
    assert (ran.returncode, ran.stderr) == (0, "")
    document: dict[str, Any] = json.loads(ran.stdout)
    assert (document["state"], document["completed"], document["rows"]) == ("completed", document["chunks"], 1000)
    assert sum(task["completed"] for task in document["tasks"]) == document["chunks"]
    lines = [line for path in sorted(output.glob("part-*")) for line in path.read_text().splitlines()]
    assert [json.loads(line) for line in lines] == [{"id": n, "text": f"line {n}"} for n in range(1000)]
    with opsq.Queue.open(state_dir) as queue:
        assert list(queue.submissions()) == []


def test_run_keeps_the_types_of_columns_that_a_program_leaves_as_they_are(here: Here, runtime_dir: Path) -> None:
    source, output = runtime_dir / "in.parquet", runtime_dir / "out.parquet"
    numbers = range(50)
    table = pa.table(
        {
            "id": pa.array(numbers, pa.int32()),
            "price": pa.array([Decimal(n).scaleb(-2) for n in numbers], pa.decimal128(10, 2)),
            "day": pa.array([dt.date(2026, 1, 1) + dt.timedelta(n) for n in numbers]),
            "nothing": pa.nulls(50, pa.timestamp("us", "UTC")),
            "pairs": pa.array([[("k", n / 3)] for n in numbers], pa.map_(pa.string(), pa.float64())),
        }
    )
    pq.write_table(table, source)
    ran = here(runtime_dir / "state", "run", str(source), "-o", str(output), "--files", "1", *LOCAL, "--", "cat")
    assert (ran.returncode, ran.stdout, ran.stderr) == (0, "", "")
    found = pq.read_table(output)
    assert [str(kind) for kind in found.schema.types[:3]] == ["int32", "decimal128(10, 2)", "date32[day]"]
    assert str(found.schema.field("nothing").type).startswith("timestamp")
    assert (
        found.drop_columns("nothing").cast(table.drop_columns("nothing").schema).equals(table.drop_columns("nothing"))
    )


def test_submission_of_a_data_set_is_given_what_any_submission_can_be(
    here: Here, daemon: Settings, queue: opsq.Queue, rows: Path
) -> None:
    given = ("--max-lost", "2", "--backoff", "1s,2,5m", "--delay", "1h", "--title", "Of July", "-m", "Tenant=a")
    ran = here(daemon.state_dir, "submit", str(rows), "--weight", "Tenant=2", *given, *LOCAL)
    assert (ran.returncode, ran.stderr) == (0, "")
    state = queue.submission(ran.stdout.strip()).state()
    assert (state.state, state.max_lost, state.title, state.metadata) == ("scheduled", 2, "Of July", {"Tenant": "a"})
    assert (state.backoff.base_s, state.backoff.factor, state.backoff.max_s) == (1, 2, 300)


def test_results_that_are_refused_leave_no_folder_in_the_way(
    here: Here, daemon: Settings, queue: opsq.Queue, runtime_dir: Path
) -> None:
    submission = queue.submit([b"{}\n", b"{}\n"], max_attempts=1, on_dead="keep")
    output = runtime_dir / "out.json"
    ran = here(daemon.state_dir, "results", str(submission.id), "-o", str(output))
    assert (ran.returncode, "has not ended: 0 of 2 chunks are done" in ran.stderr) == (5, True), ran.stderr
    for chunk in queue.consume("OldestFirst"):
        if chunk.index:
            chunk.fail("no such word", retry=False)
        else:
            chunk.complete(b'{"n": 1}\n')
    words = ["results", str(submission.id), "-o", str(output), "--result-format", "jsonl", *LOCAL]
    ran = here(daemon.state_dir, *words)
    assert (ran.returncode, "--skip-dead reads the rest" in ran.stderr) == (1, True), ran.stderr
    assert not output.exists()
    assert here(daemon.state_dir, *words, "--skip-dead").returncode == 0


def test_refusal_of_spark_is_told_in_one_line(here: Here, runtime_dir: Path) -> None:
    rows = runtime_dir / "in.parquet"
    pq.write_table(pa.table({"id": [1]}), rows)
    ran = here(
        runtime_dir / "state",
        "run",
        str(rows),
        "-o",
        str(runtime_dir / "out"),
        "--where",
        "nocol > 3",
        *LOCAL,
        "--",
        "cat",
    )
    assert (ran.returncode, ran.stdout) == (2, "")
    assert ran.stderr.startswith(
        "opsq: A column, variable, or function parameter with name `nocol` cannot be resolved."
    )
    assert ran.stderr.count("\n") == 1, ran.stderr


def test_doctor_sends_a_row_there_and_back_and_leaves_nothing(here: Here, daemon: Settings, queue: opsq.Queue) -> None:
    ran = here(daemon.state_dir, "doctor", *LOCAL, "--json")
    found = {finding["check"]: finding for finding in json.loads(ran.stdout)["findings"]}
    assert all(finding["ok"] for finding in found.values()), found
    assert "came back" in found["round trip"]["detail"]
    assert (ran.returncode, ran.stderr) == (0, "")
    assert list(queue.submissions()) == []


def test_history_of_a_stopped_queue_becomes_a_document_and_a_page(here: Here, runtime_dir: Path) -> None:
    with running(runtime_dir) as settings:
        work_off(settings)
    page = runtime_dir / "report.html"
    ran = here(settings.state_dir, "report", "--by", "tenant", "--json", "--tables", "--html", str(page), *LOCAL)
    assert ran.returncode == 0, ran.stderr
    assert ran.stderr == ""
    told = json.loads(ran.stdout)
    total = told["total"]
    assert (total["completed"], total["failed"], total["dead"], total["dead_rate"]) == (9, 2, 1, 0.1)
    assert {row["value"]: (row["completed"], row["dead"]) for row in told["values"]} == {"acme": (6, 0), "zeta": (3, 1)}
    assert [row["consumer"].startswith("worker") for row in told["consumers"]] == [True]
    assert [(row["chunks"], row["reason"]) for row in told["failures"]] == [(2, "no such host")]
    assert sum(window["completed"] for window in told["throughput"]) == 9
    assert told["html"] == str(page)
    assert page.read_text().startswith("<!DOCTYPE html>")
    assert "no such host" in page.read_text()


def test_tables_that_were_asked_for_are_drawn_in_a_file_without_escapes(here: Here, daemon: Settings) -> None:
    work_off(daemon)
    ran = here(daemon.state_dir, "report", "--by", "tenant", "--tables", *LOCAL)
    assert (ran.returncode, ran.stderr) == (0, "")
    assert not {"\x1b", "\r", "\t"} & set(ran.stdout)
    lines = ran.stdout.splitlines()
    assert max(map(len, lines)) <= 80
    assert [line.split()[:4] for line in lines if line.startswith(("tenant  done", "zeta "))][:2] == [
        ["tenant", "done", "failed", "dead"],
        ["zeta", "3", "2", "1"],
    ]


def test_lines_off_a_terminal_begin_with_what_they_are_of(here: Here, daemon: Settings, tmp_path: Path) -> None:
    work_off(daemon)
    words = [
        PROGRAM,
        "--state-dir",
        str(daemon.state_dir),
        "history",
        "export",
        "--format",
        "parquet",
        "-o",
        str(tmp_path),
    ]
    subprocess.run(words, check=True, stdin=subprocess.DEVNULL, timeout=DEADLINE_S)
    ran = here("/nowhere", "report", "--from", str(tmp_path), *LOCAL)
    assert ran.returncode == 0, ran.stderr
    rows = [line.split("\t") for line in ran.stdout.splitlines()]
    assert [row[0] for row in rows if row[0] not in ("window", "fairness")] == [
        "all",
        "value",
        "value",
        "consumer",
        "failure",
        "jain",
    ]
    assert rows[0][1:6] == ["-", "9", "2", "0", "1"]

"""`opsq spark …` as a shell meets it: what is refused before a JVM is started, and the whole pipeline through one."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

import opsq
from opsq.cli.program_options import Consuming
from opsq.cli.spark.data_sets import Writing, _format_of
from opsq.cli.spark.fleet_work import FLEET_PROGRAMS
from opsq.cli.spark.job import Session, spark_failure
from opsq.cli.verbs.spark.run import missing_results, removes, way_on
from opsq.errors import Conflict, InputUnreadable, NotFinished, OpsqError, TimedOut, UsageError, WorkFailed
from opsq.settings import Settings
from spark.conftest import terminated_at_work
from spark.jvm import DEADLINE_S
from waiting import wait_until

PROGRAM = str(Path(sys.executable).with_name("opsq"))
LOCAL = ("--master", "local[2]")


def run(state_dir: object, *words: str) -> subprocess.CompletedProcess[str]:
    """Run `opsq spark` with that state folder."""
    environ = {name: value for name, value in os.environ.items() if not name.startswith("OPSQ_")}
    line = [PROGRAM, "--state-dir", str(state_dir), "spark", *words]
    return subprocess.run(
        line, env=environ, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=DEADLINE_S
    )


@pytest.mark.parametrize(
    ("words", "status", "message"),
    [
        (("run", "in", "-o", "out"), 2, "needs -- and a program"),
        (("run", "-o", "out", "--", "cat"), 2, "needs an INPUT"),
        (("run", "in", "--", "cat"), 2, "Give --output DIR"),
        (("run", "in", "-o", "/", "--", "cat"), 5, "/ exists already"),
        (("run", "in", "-o", "out", "--", "no-such-program"), 127, "There is no command 'no-such-program'"),
        (("run", "in", "-o", "out", "--strategy", "Fair(", "--", "cat"), 2, "Strategy 'Fair(', column 6"),
        (
            ("run", "in", "-o", "out", "--max-lost", "0", "--", "cat"),
            2,
            "--max-lost 0: give a number from 1 to 2147483648",
        ),
        (("run", "in", "-o", "out", "--delay", "2h", "--expires", "1h", "--", "cat"), 2, "no chunk is reserved before"),
        (("submit", "in", "--delay", "1h", "--at", "@9999999999"), 2, "--delay and --at cannot be combined"),
        (("results", "252265274856701952", "-o", "out"), 4, "No daemon answers"),
    ],
)
def test_what_makes_no_sense_is_refused_before_spark_starts(
    runtime_dir: Path, words: tuple[str, ...], status: int, message: str
) -> None:
    ran = run(runtime_dir / "state", *words)
    assert ran.returncode == status, ran.stderr
    assert message in ran.stderr
    assert "Traceback" not in ran.stderr


def test_unknown_submission_is_told_before_spark_starts(daemon: Settings) -> None:
    ran = run(daemon.state_dir, "results", "252265274856701952", "-o", "out", "--json")
    assert ran.returncode == 3
    assert json.loads(ran.stdout)["error"]["code"] == "not_found"


def test_verbs_are_declared_without_pyspark() -> None:
    code = (
        "import sys, opsq.cli.verb_table as table, opsq.cli.help_pages as pages\n"
        "for part in table.GROUPS['spark']: pages.command(f'spark {part}')\n"
        "sys.exit(sorted({'pyspark', 'pyarrow', 'pandas'} & set(sys.modules)) or 0)"
    )
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert (ran.returncode, ran.stderr) == (0, "")


def test_settings_of_spark_are_key_and_value() -> None:
    assert Session(conf=["spark.a=b=c", "spark.d=1"]).settings() == {"spark.a": "b=c", "spark.d": "1"}
    with pytest.raises(UsageError, match="nonsense: write KEY=VALUE"):
        Session(conf=["nonsense"]).settings()


@pytest.mark.parametrize(
    ("path", "wanted"),
    [
        ("x.csv", "csv"),
        ("x.CSV.gz", "csv"),
        ("x/y.jsonl", "json"),
        ("s3://b/x.orc/", "orc"),
        ("folder", "parquet"),
        ("logs/*.log", "text"),
    ],
)
def test_format_is_what_the_name_says(path: str, wanted: str) -> None:
    assert _format_of(path) == wanted


class AnalysisException(Exception):
    """As Spark's own looks."""

    def getCondition(self) -> str:  # noqa: N802  # Spark's name
        """As Spark's own does."""
        return "PATH_NOT_FOUND"


@pytest.mark.parametrize(
    ("error", "kind", "message"),
    [
        (Exception("x\n  File …\nopsq.errors.Conflict: The key is held.\n\nat org…"), Conflict, "The key is held."),
        (
            Exception("ModuleNotFoundError: No module named 'opsq'"),
            UsageError,
            "opsq is not installed in the Python of the executors.",
        ),
        (
            AnalysisException("[PATH_NOT_FOUND] Path does not exist: file:/x. SQLSTATE: 42K03"),
            InputUnreadable,
            "Path does not exist: file:/x.",
        ),
        (
            Exception("An error occurred while calling o1.save.\n: java.io.IOException: No room\n\tat x"),
            WorkFailed,
            "java.io.IOException: No room",
        ),
    ],
)
def test_what_spark_says_is_told_in_a_line(error: Exception, kind: type[OpsqError], message: str) -> None:
    failure = spark_failure(error)
    assert type(failure) is kind
    assert message in failure.message
    assert "\n" not in failure.message


def test_what_is_missing_results_is_told_with_its_reason_and_the_way_on(daemon: Settings, queue: opsq.Queue) -> None:
    submission = queue.submit([b"good", b"bad"], max_attempts=1, on_dead="keep")
    assert isinstance(missing_results(submission, "5s"), TimedOut)
    assert isinstance(missing_results(submission, None), NotFinished)
    assert "` continues, then `opsq spark results" in way_on(submission.state(), is_temporary=False)
    for chunk in queue.consume("OldestFirst"):
        if chunk.data == b"good":
            chunk.complete(b"")
        else:
            chunk.fail("no such word", retry=False)
    failure = missing_results(submission, None)
    assert isinstance(failure, WorkFailed)
    assert failure.message == f"1 of 2 chunks died.\nChunk {submission.id}/1: no such word"
    writes = f"`opsq spark results {submission.id} -o DIR --skip-dead` writes existing results"
    assert (
        way_on(submission.state(), is_temporary=True)
        == f"After `opsq start`, {writes}, `opsq rm {submission.id}` removes it."
    )


def test_run_leaves_a_submission_that_was_there_before_it(queue: opsq.Queue) -> None:
    made, found = (queue.submit([b"x"], idempotency_key="nightly") for _ in range(2))
    assert made.id == found.id
    assert [removes(one, keep=False) for one in (made, found)] == [True, False]
    assert not removes(made, keep=True)


def test_jobs_of_a_fleet_are_told_to_be_of_each_task() -> None:
    told = FLEET_PROGRAMS.options["jobs"]
    assert (told.help, told.shown) == ("Concurrent programs in each task.", "1")
    assert Consuming().jobs is None


@pytest.mark.parametrize(("given", "taken"), [(None, None), (" same", "same")])
def test_result_schema_that_needs_no_spark_is_taken_as_it_is(given: str | None, taken: str | None) -> None:
    assert Writing(result_schema=given).schema(None) == taken  # type: ignore[arg-type]
    with pytest.raises(UsageError, match="cannot be understood"):
        Writing(result_schema='{"oops"').schema(None)  # type: ignore[arg-type]


@pytest.mark.usefixtures("java")
def test_interrupted_run_ends_its_programs_and_keeps_what_is_done(
    daemon: Settings, queue: opsq.Queue, runtime_dir: Path, rows: Path
) -> None:
    words = [
        PROGRAM,
        "--state-dir",
        daemon.state_dir,
        "spark",
        "run",
        str(rows),
        "--rows-per-chunk",
        "500",
        "--tasks",
        "1",
    ]
    words += ["-o", str(runtime_dir / "out"), *LOCAL]
    said = terminated_at_work(words, runtime_dir)
    [state] = list(queue.submissions())
    goes_on = f"`opsq spark consume --submission {state.submission_id} -- COMMAND` continues"
    assert said.splitlines() == [f"0 of 2 chunks are done. {goes_on}, {said.partition(' continues, ')[2].strip()}"]
    assert (state.state, state.chunks_count) == ("open", 2)
    wait_until(lambda: not queue.submission(state.submission_id).state().reserved_count, 300, "the chunk is given back")


def test_doctor_names_a_java_without_the_module_that_spark_asks_for(
    daemon: Settings, runtime_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    java = runtime_dir / "java" / "bin" / "java"
    java.parent.mkdir(parents=True)
    (runtime_dir / "java" / "release").write_text('JAVA_VERSION="21.0.8"\n')
    java.write_text(
        "#!/bin/sh\necho 'java.lang.module.FindException: Module jdk.incubator.vector not found' >&2\nexit 1\n"
    )
    java.chmod(0o755)
    monkeypatch.setenv("JAVA_HOME", str(java.parent.parent))
    ran = run(daemon.state_dir, "doctor", "--json")
    found = {finding["check"]: finding for finding in json.loads(ran.stdout)["findings"]}
    assert ran.returncode == 5
    assert (found["java"]["ok"], "session" in found) == (False, False)
    assert "lacks a module" in found["java"]["advice"]

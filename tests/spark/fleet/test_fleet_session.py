"""The fleet in a session: tasks of a job work off chunks, errors reach the driver as they were said.

A cancel leaves nothing behind.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import pyarrow as pa
import pytest
from pyspark.java_gateway import ensure_callback_server_started

import opsq
import opsq.spark
from opsq.errors import CommandNotFound, Unreachable, UsageError, WorkFailed
from opsq.settings import Settings
from spark.clusters import is_alive
from waiting import wait_until

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

Write = Callable[..., opsq.Submission]
Read = Callable[..., "DataFrame"]


def test_programs_on_executors_work_off_a_dataframe(
    spark: SparkSession, daemon: Settings, write: Write, read: Read
) -> None:
    submission = write(
        spark.range(100).selectExpr("id AS n", "'row ' || id AS text"), rowsPerChunk=7, chunkFormat="jsonl"
    )
    summary = opsq.spark.consume(
        spark,
        command=["sed", "s/row/line/"],
        strategy="OldestFirst",
        submission=submission.id,
        tasks=2,
        state_dir=str(daemon.state_dir),
    )
    state = submission.state()
    assert (state.state, summary.completed, summary.failed) == ("completed", state.chunks_count, 0)
    assert [(row.task, row.completed) for row in summary.as_frame(spark).collect()] == [
        (task.task, task.completed) for task in summary.tasks
    ]
    rows = read(submission, "n BIGINT, text STRING", resultFormat="jsonl").collect()
    assert sorted((row.n, row.text) for row in rows) == [(n, f"line {n}") for n in range(100)]


def test_function_on_executors_gets_tables_and_gives_tables(
    spark: SparkSession, daemon: Settings, write: Write, read: Read
) -> None:
    submission = write(spark.range(100).selectExpr("id AS n"), rowsPerChunk=9)

    def doubled(table: pa.Table) -> pa.Table:
        import pyarrow.compute as pc

        return table.append_column("m", pc.multiply(table.column("n"), 2))

    summary = opsq.spark.consume(spark, function=doubled, tasks=2, state_dir=str(daemon.state_dir))
    assert summary.completed == submission.state().chunks_count
    assert sorted((row.n, row.m) for row in read(submission).collect()) == [(n, 2 * n) for n in range(100)]


class Listener:
    """Of the JVM, for queries that have succeeded; keeps what they were observed to do."""

    def __init__(self) -> None:
        self.observed: list[dict[str, int]] = []

    def onSuccess(self, name: str, query: Any, _: int) -> None:  # noqa: N802  # Spark's name
        if query.observedMetrics().contains("opsq"):
            self.observed.append(json.loads(query.observedMetrics().apply("opsq").json()))

    def onFailure(self, name: str, query: Any, error: Any) -> None:  # noqa: N802
        """Nothing."""

    class Java:
        """What py4j is told."""

        implements: ClassVar = ["org.apache.spark.sql.util.QueryExecutionListener"]


def test_listeners_of_spark_see_what_a_fleet_has_done_and_its_pages_what_it_is(
    spark: SparkSession, daemon: Settings, write: Write
) -> None:
    submission = write(spark.range(0, 40, 1, 1).selectExpr("id AS n"), rowsPerChunk=9, maxAttempts=1, onDead="keep")

    def failing(table: pa.Table) -> pa.Table:
        if table.column("n")[0].as_py() == 18:
            raise ValueError("not this one")
        return table.slice(0, 1)

    context: Any = spark.sparkContext
    ensure_callback_server_started(context._gateway)
    listener, listeners = Listener(), spark._jsparkSession.listenerManager()  # type: ignore[attr-defined]
    listeners.register(listener)
    try:
        summary = opsq.spark.consume(spark, function=failing, submission=submission.id, state_dir=daemon.state_dir)
        [observed] = wait_until(lambda: listener.observed, 300, "the listener has heard of it")
    finally:
        listeners.unregister(listener)
    assert observed == {"completed": 4, "failed": 1, "dead": 1, "released": 0, "rows": 31}
    assert (summary.completed, summary.failed, summary.dead, summary.rows) == (4, 1, 1, 31)
    [job] = context.statusTracker().getJobIdsForGroup(f"opsq-{submission.id}")
    description = context._jsc.sc().statusStore().job(job).description().get()
    assert description == f"opsq: a fleet on submission {submission.id}"
    assert context.getLocalProperty("spark.jobGroup.id") is None


def test_job_of_a_fleet_keeps_the_group_and_the_description_that_the_user_has_given(
    spark: SparkSession, daemon: Settings, queue: opsq.Queue
) -> None:
    queue.submit([b"x"])
    context: Any = spark.sparkContext
    context.setJobGroup("mine", "what I do")
    try:
        opsq.spark.consume(spark, command=["true"], tasks=1, state_dir=daemon.state_dir)
        [job] = context.statusTracker().getJobIdsForGroup("mine")
        assert context.getLocalProperty("spark.jobGroup.id") == "mine"
    finally:
        for name in ("spark.jobGroup.id", "spark.job.description", "spark.job.interruptOnCancel"):
            context.setLocalProperty(name, None)
    assert context._jsc.sc().statusStore().job(job).description().get() == "what I do"


@pytest.mark.parametrize("kind", ["ddl", "struct", "arrow"])
def test_declared_columns_of_pandas_frames_come_back_with_their_types(
    spark: SparkSession, daemon: Settings, write: Write, read: Read, kind: str
) -> None:
    from pyspark.sql.types import LongType, StructField, StructType

    schemas = {
        "ddl": "m BIGINT",
        "struct": StructType([StructField("m", LongType())]),
        "arrow": pa.schema({"m": pa.int64()}),
    }
    submission = write(spark.range(4).selectExpr("id AS n", "map('k', id) AS tags"), rowsPerChunk=1)
    opsq.spark.consume(
        spark,
        function=lambda frame: frame.assign(m=frame.n if frame.n[0] else None),  # null in all of a chunk
        frames="pandas",
        schema=schemas[kind],
        submission=submission.id,
        tasks=1,
        state_dir=str(daemon.state_dir),
    )
    frame = read(submission)
    assert frame.schema.simpleString() == "struct<n:bigint,tags:map<string,bigint>,m:bigint>"
    assert sorted((row.n, row.tags["k"], row.m) for row in frame.collect()) == [(n, n, n or None) for n in range(4)]


@pytest.mark.parametrize(
    ("schema", "message"),
    [
        ("m BIGNIT", "schema m BIGNIT: Spark cannot parse it"),
        ("m BIGINT, m STRING", "Two columns are named 'm'"),
        (7, "schema is int"),
    ],
)
def test_schema_that_cannot_be_is_refused_before_a_job_is_started(
    spark: SparkSession, daemon: Settings, schema: Any, message: str
) -> None:
    with pytest.raises(UsageError, match=message):
        opsq.spark.consume(spark, function=len, schema=schema, state_dir=str(daemon.state_dir))


def test_summary_of_a_fleet_that_has_lost_a_worker_has_the_counts_of_the_daemon(
    spark: SparkSession, daemon: Settings, queue: opsq.Queue, runtime_dir: Path
) -> None:
    marker = str(runtime_dir / "killed")

    def deadly(content: bytes) -> bytes:
        import os
        import signal
        import subprocess
        import time

        if content == b"30" and not os.path.exists(marker):
            open(marker, "w").close()
            time.sleep(0.5)  # a task that says nothing has completed what is before it
            shown = subprocess.run(["ps", "-o", "ppid=", "-p", str(os.getppid())], capture_output=True, check=True)
            os.kill(int(shown.stdout), signal.SIGKILL)
            time.sleep(600)
        if content == b"31":
            os._exit(1)
        return content

    submission = queue.submit([b"%d" % number for number in range(40)], max_attempts=1, on_dead="keep")
    summary = opsq.spark.consume(
        spark,
        function=deadly,
        strategy="OldestFirst",
        submission=submission.id,
        tasks=1,
        state_dir=str(daemon.state_dir),
    )
    assert sum(task.completed for task in summary.tasks) < 39
    assert (summary.completed, summary.dead) == (39, 1)


@pytest.mark.parametrize("signal_name", ["SIGKILL", "SIGTERM"])
@pytest.mark.parametrize("is_program", [False, True], ids=["a function", "a program"])
def test_fleet_whose_worker_processes_lose_their_parent_leaves_no_work_behind(
    spark: SparkSession, daemon: Settings, queue: opsq.Queue, runtime_dir: Path, signal_name: str, is_program: bool
) -> None:
    """It is Spark's process that forks them, and may be killed for its memory: the tasks used to say that all is done.

    At SIGTERM, it tells its workers to end.
    """
    marker = runtime_dir / "killed"
    script = f"""
case $(cat) in 3) if ! [ -e {marker} ]; then
    touch {marker}; pid=$$
    up() {{ ps -o ppid= -p $pid | tr -d ' '; }}
    until ps -o args= -p $pid | grep -q '[w]orker_daemon pyspark.worker'; do pid=$(up); done
    kill -{signal_name[3:]} $(up); sleep 3
fi;; esac"""

    def run(content: bytes) -> bytes:
        import subprocess
        import time

        time.sleep(0.1)
        subprocess.run(["sh", "-c", script], input=content, check=True)
        return content

    submission = queue.submit([b"%d" % number for number in range(60)])
    work: dict[str, Any] = {"command": ["sh", "-c", f"sleep 0.1; {script}"]} if is_program else {"function": run}
    summary = opsq.spark.consume(
        spark, **work, strategy="OldestFirst", submission=submission.id, tasks=2, state_dir=str(daemon.state_dir)
    )
    assert marker.exists()
    assert (summary.completed, submission.state().state) == (60, "completed")


def test_error_of_every_task_is_raised_on_the_driver_as_it_was_said(
    spark: SparkSession, daemon: Settings, queue: opsq.Queue
) -> None:
    queue.submit([b"x"])
    with pytest.raises(CommandNotFound, match="There is no command 'no-such-program'"):
        opsq.spark.consume(spark, command=["no-such-program"], tasks=1, state_dir=str(daemon.state_dir))


def test_daemon_that_does_not_answer_is_told_before_a_job_is_started(spark: SparkSession, runtime_dir: Path) -> None:
    with pytest.raises(Unreachable, match="opsq start --listen HOST:PORT"):
        opsq.spark.consume(spark, command=["cat"], state_dir=str(runtime_dir))


def test_cancelled_fleet_leaves_no_program_and_gives_chunks_back(
    spark: SparkSession, daemon: Settings, queue: opsq.Queue, runtime_dir: Path
) -> None:
    submission = queue.submit([b"a", b"b"])
    script = f"sleep 600 & echo $$ $! > {runtime_dir}/new-$$; mv {runtime_dir}/new-$$ {runtime_dir}/pids-$$; wait"
    raised: list[Exception] = []

    def run() -> None:
        try:
            opsq.spark.consume(
                spark, command=["sh", "-c", script], submission=submission.id, tasks=2, state_dir=str(daemon.state_dir)
            )
        except Exception as error:  # noqa: BLE001  # looked at by the test
            raised.append(error)

    from pyspark import InheritableThread

    job: Any = InheritableThread(target=run)
    job.start()
    noted = wait_until(
        lambda: (found := list(runtime_dir.glob("pids-*"))) and len(found) == 2 and found, 300, "both programs run"
    )
    pids = [int(word) for path in noted for word in path.read_text().split()]
    spark.sparkContext.cancelJobGroup(f"opsq-{submission.id}")
    job.join(30)
    [ended] = raised
    assert isinstance(ended, WorkFailed)
    assert "cancelled" in ended.message
    assert len(ended.message.splitlines()) == 1
    wait_until(lambda: not any(map(is_alive, pids)), 300, "programs and their children are gone")
    wait_until(lambda: not submission.state().reserved_count, 300, "the chunks are given back")

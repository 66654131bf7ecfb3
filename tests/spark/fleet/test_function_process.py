"""Functions of the fleet that end their process, or hang, or take all memory: what it costs their chunk, and Spark."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

import opsq
import opsq.spark
from opsq.errors import UsageError
from opsq.runner.pool_options import ConsumeOptions
from opsq.settings import Settings
from opsq.spark.fleet.tasks import Plan, work
from opsq.spark.source.daemon_address import Daemon
from spark.clusters import Cluster, is_alive
from spark.jvm import DEADLINE_S
from waiting import wait_until

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def deadly(kind: str) -> Callable[[Any], Any]:
    """A function that ends its process in some way at the one poisoned chunk, and returns the others."""

    def function(content: bytes) -> bytes:
        import ctypes
        import os
        import signal
        import time

        if content == b"poison":
            if kind == "exits":
                os._exit(3)
            elif kind == "is killed":
                os.kill(os.getpid(), signal.SIGKILL)
            elif kind == "reads at 0":
                ctypes.string_at(0)
            elif kind == "hangs":
                time.sleep(600)
            elif kind == "hangs in native code":
                ctypes.PyDLL(None).sleep(600)
            elif kind == "takes all memory":
                taken = []
                while True:
                    taken.append(b"x" * (8 << 20))
        return content

    return function


DEADLY = {
    "exits": "The worker process ended with exit status 3",
    "is killed": "The worker process was killed by SIGKILL",
    "reads at 0": "The worker process was killed by SIGSEGV",
    "hangs": "The function ran for more than 2 s, so its process was killed.",
    "hangs in native code": "The function ran for more than 2 s, so its process was killed.",
    "takes all memory": "The function used more than 400M of memory, so its process was killed.",
}
CHUNKS = [b"poison" if number == 7 else b"%d" % number for number in range(20)]


def plan_for(daemon: Settings, function: Callable[[Any], Any], **fields: Any) -> Plan:
    options = ConsumeOptions(jobs=1, until="empty", strategy="OldestFirst")
    return Plan(daemon=Daemon(daemon.socket, ""), options=options, function=function, **fields)


@pytest.mark.parametrize("kind", DEADLY)
def test_function_that_ends_its_process_costs_its_chunk_an_attempt_and_the_task_nothing(
    daemon: Settings, queue: opsq.Queue, kind: str
) -> None:
    submission = queue.submit(CHUNKS, max_attempts=2, backoff=(0, 1, 0), on_dead="keep")
    limits = {"timeout_s": 2.0} if "hangs" in kind else {"memory_bytes": 400 << 20}
    summary = work(plan_for(daemon, deadly(kind), **limits), 0)
    assert (summary.completed, summary.failed, summary.dead, summary.error) == (19, 2, 1, "")
    [dead] = submission.dead()
    assert (dead.index, dead.attempts, dead.lost) == (7, 2, 0)
    assert dead.reason.startswith(DEADLY[kind])
    assert list(submission.results(skip_dead=True)) == [chunk for chunk in CHUNKS if chunk != b"poison"]


def test_what_a_function_has_started_is_killed_with_it_when_it_takes_too_much_memory(
    daemon: Settings, queue: opsq.Queue, runtime_dir: Path
) -> None:
    noted = str(runtime_dir / "pid")

    def function(content: bytes) -> None:
        import subprocess

        with open(noted, "w") as file:
            file.write(str(subprocess.Popen(["sleep", "600"]).pid))
        taken = []
        while True:
            taken.append(b"x" * (8 << 20))

    queue.submit([b"x"], max_attempts=1)
    assert work(plan_for(daemon, function, memory_bytes=400 << 20), 0).dead == 1
    started = int(Path(noted).read_text())
    wait_until(lambda: not is_alive(started), DEADLINE_S, "what it has started is gone")


def test_module_that_ends_the_process_when_it_is_imported_ends_the_task_with_an_error(
    daemon: Settings, queue: opsq.Queue
) -> None:
    class Deadly:
        def __reduce__(self) -> Any:
            return os._exit, (9,)

    submission = queue.submit([b"x"])
    bad = Deadly()
    summary = work(plan_for(daemon, lambda content: bad), 0)
    assert "ended before it was ready (ended with exit status 9)" in summary.error
    assert submission.state().reserved_count == 0


def test_follow_ups_of_a_function_are_made_with_its_result(daemon: Settings, queue: opsq.Queue) -> None:
    first = queue.submit([b"a"])
    function = lambda content: opsq.Done(content.upper(), [opsq.FollowUp([b"next"])] if content == b"a" else ())  # noqa: E731
    assert work(plan_for(daemon, function), 0).completed == 2
    assert list(first.results()) == [b"A"]
    assert sorted(state.chunks_count for state in queue.submissions()) == [1, 1]


_TASK = """
import sys
from opsq.runner.pool_options import ConsumeOptions
from opsq.spark.source.daemon_address import Daemon
from opsq.spark.fleet.tasks import Plan, work

def stuck(content):
    import ctypes, os, subprocess
    started = subprocess.Popen(["sleep", "600"])
    with open(sys.argv[2] + ".new", "w") as noted:
        noted.write(f"{os.getpid()} {started.pid}")
    os.rename(sys.argv[2] + ".new", sys.argv[2])
    ctypes.PyDLL(None).sleep(600)

if __name__ == "__main__":
    options = ConsumeOptions(jobs=1, until="empty")
    work(Plan(daemon=Daemon(sys.argv[1], ""), options=options, function=stuck), 0)
"""


def test_function_that_is_stuck_in_native_code_and_what_it_has_started_do_not_outlive_their_killed_task(
    daemon: Settings, queue: opsq.Queue, runtime_dir: Path
) -> None:
    submission = queue.submit([b"x"])
    noted, program = runtime_dir / "pid", runtime_dir / "task.py"
    program.write_text(_TASK)
    with subprocess.Popen([sys.executable, str(program), daemon.socket, str(noted)]) as task:
        wait_until(noted.exists, DEADLINE_S, "the function runs")
        task.send_signal(signal.SIGKILL)
        task.wait()
    function, started = map(int, noted.read_text().split())
    wait_until(lambda: not is_alive(function), DEADLINE_S, "its process is gone")
    wait_until(lambda: not is_alive(started), DEADLINE_S, "what it has started is gone")
    wait_until(lambda: submission.state().reserved_count == 0, DEADLINE_S, "the chunk is given back")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"function": bytes, "timeout": "soon"}, "timeout: 'soon' is not a duration"),
        ({"function": bytes, "timeout": 0}, "timeout is 0"),
        ({"function": bytes, "memory": "much"}, "memory: 'much' is not a size"),
        ({"command": ["cat"], "memory": "1G"}, "memory limits functions only"),
    ],
)
def test_limits_that_make_no_sense_are_refused(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        opsq.spark.consume(None, **arguments)  # type: ignore[arg-type]  # refused before the session is looked at


# --- in a session -----------------------------------------------------------------------------------------------------

# One failed task ends the job: in local[2], which is what most people have, and on a cluster that is told so.
_SESSION = """
import json, os, sys
import opsq.spark

state_dir, master, conf = sys.argv[1:]

def deadly(table):
    if 7 in table.column("id").to_pylist():
        os.kill(os.getpid(), 11)
    return table

spark = opsq.spark.build_session(master, conf=json.loads(conf), is_short=True)
spark.range(0, 20, 1, 1).write.format("opsq").mode("append").options(
    stateDir=state_dir, rowsPerChunk=1, idempotencyKey="twenty", maxAttempts=2, onDead="keep").save()
submission = opsq.spark.submission_of("twenty", state_dir=state_dir)
summary = opsq.spark.consume(spark, function=deadly, submission=submission, state_dir=state_dir)
print(json.dumps([summary.completed, summary.failed, summary.dead, submission]))
"""


@pytest.mark.parametrize("place", ["local[2]", "cluster"])
def test_row_that_always_kills_its_process_leaves_nineteen_done_and_no_failed_job(
    java: None, request: pytest.FixtureRequest, daemon: Settings, queue: opsq.Queue, runtime_dir: Path, place: str
) -> None:
    program = runtime_dir / "session.py"
    program.write_text(_SESSION)
    master, conf = place, {}
    if place == "cluster":
        cluster: Cluster = request.getfixturevalue("cluster")
        master, conf = cluster.url, cluster.settings | {"spark.task.maxFailures": "1"}
    line = [sys.executable, str(program), daemon.state_dir, master, json.dumps(conf)]
    ended = subprocess.run(line, capture_output=True, text=True, timeout=DEADLINE_S, check=False)
    assert ended.returncode == 0, ended.stderr
    completed, failed, dead, submission_id = json.loads(ended.stdout)
    assert (completed, failed, dead) == (19, 2, 1)
    assert "Py4J" not in ended.stderr
    [letter] = queue.submission(submission_id).dead()
    assert letter.reason.startswith("The worker process was killed by SIGSEGV")


def test_function_sees_of_pyspark_what_functions_of_tasks_see(
    spark: SparkSession, daemon: Settings, queue: opsq.Queue, runtime_dir: Path
) -> None:
    (runtime_dir / "words.txt").write_text("from a file")
    (runtime_dir / "opsq_test_added.py").write_text("word = 'from a module'\n")
    context = spark.sparkContext
    context.addFile(str(runtime_dir / "words.txt"))
    context.addPyFile(str(runtime_dir / "opsq_test_added.py"))
    shared, seen = context.broadcast({"word": "from a broadcast"}), context.accumulator(0)

    def told(content: bytes) -> bytes:
        import opsq_test_added  # type: ignore[import-not-found]  # added above
        from pyspark import SparkFiles, TaskContext

        seen.add(1)
        if content == b"bad":
            raise ValueError("counted too")
        task = TaskContext.get()
        assert task is not None
        with open(SparkFiles.get("words.txt")) as file:
            return f"{task.partitionId()} {shared.value['word']} {file.read()} {opsq_test_added.word}".encode()

    submission = queue.submit([b"a", b"bad", b"c"], max_attempts=1, on_dead="keep")
    summary = opsq.spark.consume(spark, function=told, tasks=1, state_dir=str(daemon.state_dir))
    assert summary.completed == 2
    assert list(submission.results(skip_dead=True)) == [b"0 from a broadcast from a file from a module"] * 2
    assert seen.value == 3

"""Coroutine functions of the fleet: how many chunks a task awaits at once, what ends them, and limits that hold."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import opsq
import opsq.spark
from opsq.errors import UsageError
from opsq.runner.pool_options import ConsumeOptions
from opsq.settings import Settings
from opsq.spark.fleet.tasks import Plan, work
from opsq.spark.source.daemon_address import Daemon
from spark.clusters import is_alive
from spark.jvm import DEADLINE_S
from waiting import wait_until


def plan_for(daemon: Settings, function: Callable[[Any], Any], **fields: Any) -> Plan:
    options = ConsumeOptions(jobs=1, until="empty", strategy="OldestFirst")
    return Plan(daemon=Daemon(daemon.socket, ""), options=options, function=function, **{"concurrency": 10} | fields)


def together(count: int) -> Callable[[Any], Any]:
    """A coroutine function that ends when so many chunks are in it at once."""

    class Together:
        barrier: asyncio.Barrier | None = None

        async def __call__(self, content: bytes) -> bytes:
            self.barrier = self.barrier or asyncio.Barrier(count)
            await self.barrier.wait()
            return content.upper()

    return Together()


def test_task_awaits_many_chunks_at_once_and_results_are_in_their_order(daemon: Settings, queue: opsq.Queue) -> None:
    submission = queue.submit([b"chunk %d" % number for number in range(100)])
    summary = work(plan_for(daemon, together(100), concurrency=100), 0)
    assert (summary.completed, summary.failed, summary.error) == (100, 0, "")
    assert list(submission.results()) == [b"CHUNK %d" % number for number in range(100)]


def test_exception_fails_one_chunk_and_a_hang_is_cancelled_alone(daemon: Settings, queue: opsq.Queue) -> None:
    async def function(content: bytes) -> bytes:
        import asyncio
        import os

        if content == b"raise":
            raise ValueError("bad")
        if content == b"exit":
            raise SystemExit(3)
        if content == b"hang":
            await asyncio.sleep(3600)
        return b"%d" % os.getpid()

    submission = queue.submit([b"raise", b"a", b"hang", b"b", b"exit"], max_attempts=1, on_dead="keep")
    summary = work(plan_for(daemon, function, timeout_s=3.0), 0)
    assert (summary.completed, summary.failed, summary.dead, summary.error) == (2, 3, 3, "")
    assert {dead.index: dead.reason.split("\n")[0] for dead in submission.dead()} == {
        0: "ValueError: bad",
        2: "The function ran for more than 3 s, so it was cancelled.",
        4: "RuntimeError: The function raised SystemExit: 3",
    }
    assert len(set(submission.results(skip_dead=True))) == 1  # in one process


def test_death_of_the_process_costs_each_chunk_in_it_an_attempt_and_the_task_nothing(
    daemon: Settings, queue: opsq.Queue
) -> None:
    class Deadly:
        barrier: asyncio.Barrier | None = None

        async def __call__(self, content: bytes) -> bytes:
            self.barrier = self.barrier or asyncio.Barrier(3)
            if content != b"x":
                await self.barrier.wait()
            if content == b"first":
                os.kill(os.getpid(), signal.SIGKILL)
            if content == b"held":
                await asyncio.sleep(3600)
            return content

    submission = queue.submit([b"first", b"held", b"held", b"x"], max_attempts=1, on_dead="keep")
    summary = work(plan_for(daemon, Deadly(), concurrency=3), 0)
    assert (summary.completed, summary.failed, summary.dead, summary.error) == (1, 3, 3, "")
    assert {dead.reason for dead in submission.dead()} == {
        "The worker process was killed by SIGKILL while it worked on the chunk and 2 more."
    }


_TASK = """
import asyncio, os, sys
from opsq.runner.pool_options import ConsumeOptions
from opsq.spark.source.daemon_address import Daemon
from opsq.spark.fleet.tasks import Plan, work

async def stuck(content):
    with open(sys.argv[2] + content.decode(), "w") as noted:
        noted.write(str(os.getpid()))
    await asyncio.sleep(3600)

if __name__ == "__main__":
    options = ConsumeOptions(jobs=1, until="empty")
    lease_s = float(sys.argv[3]) or None
    work(Plan(daemon=Daemon(sys.argv[1], ""), options=options, function=stuck, concurrency=9, lease_s=lease_s), 0)
"""


@pytest.mark.parametrize("lease_s", [0, 3600])
def test_chunks_of_a_killed_task_count_against_limits_as_long_as_their_leases(
    daemon: Settings, queue: opsq.Queue, runtime_dir: Path, lease_s: float
) -> None:
    """Two of three chunks may be reserved at once, so that a third tells whether the others are free."""
    queue.limit("service", concurrency=2)
    submission = queue.submit([b"0", b"1", b"2"], metadata={"service": "x"}, backoff=(3600, 1, 3600))
    program, noted = runtime_dir / "task.py", [runtime_dir / f"pid{number}" for number in range(3)]
    program.write_text(_TASK)
    words = [sys.executable, str(program), daemon.socket, str(runtime_dir / "pid"), str(lease_s)]
    with subprocess.Popen(words) as task:
        wait_until(lambda: sum(path.exists() and path.stat().st_size > 0 for path in noted) == 2, DEADLINE_S, "two")
        task.send_signal(signal.SIGKILL)
        task.wait()
    [function] = {int(path.read_text()) for path in noted if path.exists()}
    wait_until(lambda: not is_alive(function), DEADLINE_S, "its process is gone")
    if lease_s:
        assert submission.state().reserved_count == 2
    else:
        wait_until(lambda: submission.state().reserved_count == 0, DEADLINE_S, "both are lost")
    with queue.consumer() as consumer:
        assert (consumer.reserve(3).chunks_count == 0) == bool(lease_s)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"function": bytes, "concurrency": 2}, "concurrency is for coroutine functions"),
        ({"command": ["cat"], "concurrency": 2}, "concurrency is for coroutine functions"),
        ({"function": asyncio.sleep, "concurrency": 0}, "at least 1"),
        ({"function": bytes, "lease": 5}, "lease needs a function and a timeout"),
        ({"function": bytes, "lease": 5, "timeout": 5}, "lease needs a function and a timeout"),
        ({"command": ["cat"], "lease": 5, "timeout": 1}, "lease needs a function and a timeout"),
    ],
)
def test_arguments_that_make_no_sense_are_refused(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        opsq.spark.consume(None, **arguments)  # type: ignore[arg-type]  # refused before the session is looked at


# --- in a session -----------------------------------------------------------------------------------------------------

SERVICE = Path(__file__).parents[3] / "examples" / "spark" / "strict_service.py"

# It kills its process, or the Python worker of its task, once: whoever makes the folder does it.
_SESSION = """
import json, os, signal, subprocess, sys
import opsq, opsq.spark

state_dir, url, victim, folder = sys.argv[1:]

class Ask:
    client = None

    async def __call__(self, table):
        import httpx
        place = table["place"][0].as_py()
        self.client = self.client or httpx.AsyncClient(timeout=None, verify=False)
        if place == "place 40":
            try:
                os.mkdir(folder)
            except FileExistsError:
                pass
            else:
                pid = os.getpid()
                if victim == "task":
                    words = ["ps", "-o", "ppid=", "-p", str(os.getppid())]  # of the fork server
                    pid = int(subprocess.check_output(words))
                os.kill(pid, signal.SIGKILL)
        answer = await self.client.get(url, params={"place": place})
        answer.raise_for_status()
        return table.append_column("answer", [[answer.text]])

with opsq.connect(state_dir=state_dir) as queue:
    queue.limit("service", "geo", concurrency=5, rate_per_s=46, burst=2)
spark = opsq.spark.build_session("local[2,4]", is_short=True)
frame = spark.range(0, 120, 1, 1).selectExpr("id", "'place ' || id AS place")
submission = opsq.spark.write(
    frame, rows_per_chunk=1, metadata={"service": "geo"}, state_dir=state_dir, max_attempts=20, max_lost=20)
opsq.spark.consume(spark, function=Ask(), concurrency=20, timeout=20, lease=25, submission=submission,
                   state_dir=state_dir)
rows = opsq.spark.results(spark, submission, state_dir=state_dir).collect()
print(json.dumps(sorted((row.id, row.answer) for row in rows)))
"""


@pytest.mark.usefixtures("java")
@pytest.mark.parametrize("victim", ["function", "task"])
def test_service_refuses_no_call_although_something_is_killed_with_calls_under_way(
    daemon: Settings, runtime_dir: Path, tmp_path: Path, victim: str
) -> None:
    with subprocess.Popen([sys.executable, str(SERVICE)], stdout=subprocess.PIPE, text=True) as service:
        assert service.stdout is not None
        try:
            url = service.stdout.readline().strip()
            words = [sys.executable, "-c", _SESSION, daemon.state_dir, url, victim, str(tmp_path / "killed")]
            done = subprocess.run(
                words, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=DEADLINE_S, env=os.environ
            )
            assert done.returncode == 0, done.stderr
            with urllib.request.urlopen(url + "counts") as answer:
                counts = json.load(answer)
        finally:
            service.kill()
    assert (tmp_path / "killed").exists()
    assert json.loads(done.stdout.splitlines()[-1]) == [[n, f"PLACE {n}"] for n in range(120)]
    assert counts["refused"] == 0
    assert counts["busiest"] <= 5

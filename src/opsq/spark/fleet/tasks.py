"""A task of the fleet on an executor: a consumer with a program or a function, until its work has ended.

This file must not import PySpark: it runs, and is tested, without. Plans and summaries can be pickled.
"""

from __future__ import annotations

import os
import signal
import socket
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec

from opsq.client.sync.child_process import Program
from opsq.client.sync.connection import Connection
from opsq.errors import OpsqError, from_code
from opsq.runner import pool
from opsq.runner.pool_options import ConsumeOptions
from opsq.runner.process.orphan_guard import OrphanGuard
from opsq.runner.stop_signals import StopSignals
from opsq.runner.tally import Tally
from opsq.spark.fleet.chunk_function import Frames
from opsq.spark.fleet.function_process import add_accumulated, pack
from opsq.spark.source.daemon_address import PATIENCE_S, Daemon

if TYPE_CHECKING:
    import pyarrow as pa

    from opsq.wire.messages import Claim

COLUMNS = (
    "task int, host string, completed bigint, failed bigint, dead bigint, released bigint, "
    "rows bigint, seconds double, error_code string, error string, hint string"
)
"""What a `TaskSummary` is as a row, for Spark."""
_LOOK_S = 1.0
"""How often to check that the executor still exists."""


class Plan(msgspec.Struct, frozen=True, kw_only=True):
    """The orders of every task of a fleet.

    Attributes:
        daemon: has the chunks.
        options: which chunks, in which order, until when, and how programs are run; `stop_after_s` is ignored.
        command: the program and its arguments; None: `function` is called.
        function: see `opsq.spark.consume`; on executors its pickle.
        frames: what the function gets.
        schema: the columns that are declared for what it returns.
        timeout_s: a chunk for which the function takes longer fails; None: no limit.
        memory_bytes: a chunk for which it uses more memory fails; None: no limit.
        concurrency: for how many chunks at once a coroutine function is awaited; None: the function is called.
        lease_s: reservations are leases of this length; None: they end with the task.
        ends_at: the wall clock time from which no chunk is started; None: no such end.
        patience_s: how long the daemon may be unreachable when a task starts.
    """

    daemon: Daemon
    options: ConsumeOptions
    command: tuple[str, ...] | None = None
    function: Callable[[Any], Any] | bytes | None = None
    frames: Frames = "auto"
    schema: pa.Schema | None = None
    timeout_s: float | None = None
    memory_bytes: int | None = None
    concurrency: int | None = None
    lease_s: float | None = None
    ends_at: float | None = None
    patience_s: float = PATIENCE_S


class TaskSummary(msgspec.Struct, frozen=True):
    """The outcome of one task.

    Attributes:
        task: its number, from 0.
        host: where it ran.
        completed: chunks.
        failed: attempts; a chunk may fail several times.
        dead: chunks that failed in this task and are dead now.
        released: chunks returned without counting an attempt.
        rows: of the tables and frames for which a function returned a result; 0 for programs and bytes.
        seconds: how long it worked.
        error_code: of what ended it; empty if it ended as planned.
        error: its message.
        hint: what to do.
    """

    task: int
    host: str
    completed: int = 0
    failed: int = 0
    dead: int = 0
    released: int = 0
    rows: int = 0
    seconds: float = 0.0
    error_code: str = ""
    error: str = ""
    hint: str = ""

    def failure(self) -> OpsqError | None:
        """The error that ended it; None if it ended as planned."""
        return from_code(self.error_code, self.error, self.hint) if self.error_code else None


class _Counts(NamedTuple):
    """Of a `TaskSummary`."""

    completed: int = 0
    failed: int = 0
    dead: int = 0
    released: int = 0
    rows: int = 0


def work(plan: Plan, number: int) -> TaskSummary:
    """Run one consumer of the fleet. An error is returned in the summary, so that it reaches the driver unchanged.

    Raises:
        _StoppedError: it was stopped before its work had ended; Spark repeats the task, unless it is gone itself.

    Effects: however it ends, none of its programs or functions keeps running, and unfinished chunks are released. If
        this process is killed, a shell beside it ends them; if only the executor dies, this process stops and releases
        its chunks.
    """
    host, began_at = socket.gethostname(), time.monotonic()
    try:
        left_s = None if plan.ends_at is None else plan.ends_at - time.time()
        counts = _Counts() if left_s is not None and left_s <= 0 else _consume(plan, f"spark-{host}-{number}", left_s)
    except OpsqError as error:
        seconds = time.monotonic() - began_at
        return TaskSummary(
            number, host, seconds=seconds, error_code=error.code, error=_placed(error, host), hint=error.hint or ""
        )
    return TaskSummary(number, host, **counts._asdict(), seconds=time.monotonic() - began_at)


class _StoppedError(Exception):
    """A signal has come, or the process that forked this one is gone, with the executor or alone."""

    def __init__(self) -> None:
        super().__init__("The task was stopped before its work had ended.")


def _placed(error: OpsqError, host: str) -> str:
    return error.message if host in error.message else f"On {host}: {error.message}"


def _consume(plan: Plan, name: str, left_s: float | None) -> _Counts:
    # A wrong address is reported as such; later the daemon may be unreachable for as long as a restart takes.
    with plan.daemon.open(patience_s=plan.patience_s, name=name) as queue:
        if plan.function is not None:
            return _call(plan, plan.function, queue, left_s)
    return _run(plan, plan.command or (), name, left_s)


def _run(plan: Plan, command: tuple[str, ...], name: str, left_s: float | None) -> _Counts:
    address, token = plan.daemon.address, plan.daemon.token
    patiences_s = iter([plan.patience_s])  # of the first connection; later the pool itself retries

    def connect(*, name: str, claim: Claim | None = None) -> Connection:
        return Connection.open(address, name=name, token=token, reconnect_s=next(patiences_s, 0.0), claim=claim)

    options = plan.options._replace(name=name, stop_after_s=left_s)
    with StopSignals() as signals, _executor_watched(lambda: signals.stop(signal.SIGHUP, is_urgent=True)):
        outcome = pool.consume(connect, command, options, signals=signals)
    if signals.count:
        raise _StoppedError
    return _Counts(outcome.completed_count, outcome.failed_count, outcome.dead_count, outcome.released_count)


def _call(plan: Plan, function: Callable[[Any], Any] | bytes, queue: Any, left_s: float | None) -> _Counts:
    """The function runs in a process of its own, so that whatever it does to that ends neither this one nor the task.

    A fork server makes it, which never runs the function: a fork of this process would have the locks of threads that
    libraries may have started here for other jobs.
    """
    tally = Tally()
    rows_count = 0

    def add(aside: bytes) -> None:
        nonlocal rows_count
        rows_count += add_accumulated(aside)

    packed = pack(function, plan.frames, plan.schema)
    guard = OrphanGuard(tempfile.gettempdir())
    program = Program(
        packed,
        "forkserver",
        on_aside=add,
        on_failed=tally.failed,
        guard=guard,
        is_awaited=plan.concurrency is not None,
    )
    with closing(guard), queue.consumer(plan.options.whole_strategy, lease_s=plan.lease_s) as consumer:
        guard.begin()
        until = plan.options.until
        with _executor_watched(consumer.stop) as is_gone, _stopped_after(left_s, consumer.stop):
            counts = consumer.run_each_chunk(
                program,
                mode="processes",
                concurrency=plan.concurrency or 1,
                until_empty=until == "empty",
                until_idle=until == "idle",
                max_runtime_s=plan.timeout_s,
                max_memory_bytes=plan.memory_bytes,
                on_interrupt="return",
            )
        if is_gone.is_set() or counts.stop_signal is not None:
            raise _StoppedError
        tally.lost(consumer.expired)
    dead_count = tally.dead_count(queue.link) if tally.has_failures else 0
    return _Counts(counts.completed_count, counts.failed_count, dead_count, counts.released_count, rows_count)


@contextmanager
def _stopped_after(left_s: float | None, stop: Callable[[], object]) -> Iterator[None]:
    """Call `stop` from a thread after `left_s` seconds."""
    if left_s is None:
        yield
        return
    timer = threading.Timer(left_s, stop)
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()


@contextmanager
def _executor_watched(stop: Callable[[], object]) -> Iterator[threading.Event]:
    """Call `stop` from a thread, and set the event, when the parent process is gone: as a rule its executor is, too."""
    parent, is_over, is_gone = os.getppid(), threading.Event(), threading.Event()

    def watch() -> None:
        while not is_over.wait(_LOOK_S):
            if os.getppid() != parent:
                is_gone.set()
                stop()
                return

    thread = threading.Thread(target=watch, name="opsq-watch", daemon=True)
    thread.start()
    try:
        yield is_gone
    finally:
        is_over.set()
        thread.join()

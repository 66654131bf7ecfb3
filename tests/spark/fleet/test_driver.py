"""A task of the fleet without Spark: what `work` does with a program and with a function, and what it tells."""

from __future__ import annotations

import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import types as t

import opsq
from daemons import end, running
from opsq.daemon import lifecycle
from opsq.errors import CommandNotFound, NotPermitted, Unreachable, UsageError, WorkFailed
from opsq.runner.pool_options import ConsumeOptions
from opsq.settings import Settings
from opsq.spark.fleet.chunk_function import encoded
from opsq.spark.fleet.driver import FleetSummary, consume, ended_early, plan_fleet
from opsq.spark.fleet.tasks import Plan, TaskSummary, work
from opsq.spark.formats.decoder import decoder
from opsq.spark.formats.result_types import ResultTypes
from opsq.spark.source.daemon_address import Daemon
from opsq.spark.source.source_options import DaemonOptions
from spark.clusters import is_alive
from waiting import wait_until

FORMATS = ("parquet", "arrow", "jsonl", "csv")


@pytest.fixture
def plan(daemon: Settings) -> Callable[..., Plan]:
    """Makes a plan for this test's daemon; what is no field of it is an option."""

    def make(**fields: Any) -> Plan:
        own = {name: fields.pop(name) for name in list(fields) if name in Plan.__struct_fields__}
        options = ConsumeOptions(jobs=1, until="empty", strategy="OldestFirst")._replace(**fields)
        return Plan(daemon=Daemon(daemon.socket, ""), options=options, **own)

    return make


def results(submission: opsq.Submission) -> list[bytes]:
    """The results there are, in the order of the chunks."""
    return list(submission.results())


def waiting_count(submission: opsq.Submission) -> int:
    """How many chunks are free: not finished, not reserved, and waiting for no retry."""
    state = submission.state()
    return (
        state.chunks_count
        - state.completed_count
        - state.dead_count
        - state.skipped_count
        - state.reserved_count
        - state.delayed_count
    )


def test_program_gets_each_chunk_and_its_output_is_the_result(queue: opsq.Queue, plan: Callable[..., Plan]) -> None:
    submission = queue.submit([b"one", b"two", b"three"])
    summary = work(plan(command=("tr", "a-z", "A-Z")), 4)
    assert results(submission) == [b"ONE", b"TWO", b"THREE"]
    assert (summary.task, summary.completed, summary.failed, summary.error) == (4, 3, 0, "")


def test_failed_program_is_counted_and_dead_chunk_is_told(queue: opsq.Queue, plan: Callable[..., Plan]) -> None:
    submission = queue.submit([b"good", b"bad"], max_attempts=1, on_dead="keep")
    summary = work(plan(command=("grep", "good")), 0)
    assert (summary.completed, summary.failed, summary.dead) == (1, 1, 1)
    assert [letter.index for letter in submission.dead()] == [1]


def test_function_gets_bytes_of_a_plain_submission(queue: opsq.Queue, plan: Callable[..., Plan]) -> None:
    submission = queue.submit([b"one", b"two"])
    summary = work(plan(function=bytes.upper), 0)
    assert results(submission) == [b"ONE", b"TWO"]
    assert summary.completed == 2


def test_function_that_raises_fails_its_chunk_and_others_go_on(queue: opsq.Queue, plan: Callable[..., Plan]) -> None:
    submission = queue.submit([b"1", b"x", b"3"], max_attempts=1, on_dead="keep")
    summary = work(plan(function=lambda content: b"%d" % (int(content) + 1)), 0)
    assert (summary.completed, summary.failed, summary.dead) == (2, 1, 1)
    [letter] = submission.dead()
    assert letter.reason.startswith("ValueError: invalid literal for int()")


def panic() -> BaseException:
    """As libraries in Rust raise it."""

    class PanicException(BaseException):
        """Made here so that it is pickled with the function."""

    return PanicException("index out of bounds")


@pytest.mark.parametrize("error", [SystemExit("no licence"), panic()], ids=["exit", "panic"])
def test_function_that_exits_or_panics_fails_its_chunk_and_not_the_fleet(
    queue: opsq.Queue, plan: Callable[..., Plan], error: BaseException
) -> None:
    def raises(content: bytes) -> bytes:
        if content == b"bad":
            raise error
        return content

    submission = queue.submit([b"1", b"bad", b"3"], max_attempts=1, on_dead="keep")
    summary = work(plan(function=raises), 0)
    assert (summary.completed, summary.failed, summary.dead, summary.error) == (2, 1, 1, "")
    [letter] = submission.dead()
    assert letter.reason.startswith(f"RuntimeError: The function raised {type(error).__name__}: {error}")


@pytest.mark.parametrize("chunk_format", FORMATS)
def test_function_gets_arrow_and_its_table_is_kept_in_the_format_of_the_chunks(
    queue: opsq.Queue, plan: Callable[..., Plan], submit_table: Callable[..., opsq.Submission], chunk_format: str
) -> None:
    submission = submit_table([{"n": n, "text": f"t{n}"} for n in range(5)], rowsPerChunk=2, chunkFormat=chunk_format)

    def longer(table: pa.Table) -> pa.Table:
        return table.append_column("m", pa.array([n * 2 for n in table.column("n").to_pylist()], pa.int64()))

    summary = work(plan(function=longer), 0)
    assert (summary.completed, summary.rows) == (3, 5)
    wanted = pa.schema([("n", pa.int64()), ("text", pa.string()), ("m", pa.int64())])
    rows = [row for result in results(submission) for row in decoder(chunk_format, wanted)(result).to_pylist()]
    assert rows == [{"n": n, "text": f"t{n}", "m": n * 2} for n in range(5)]


def test_function_gets_pandas_frames_if_asked_for(
    queue: opsq.Queue, plan: Callable[..., Plan], submit_table: Callable[..., opsq.Submission]
) -> None:
    submission = submit_table([{"n": n, "text": "x"} for n in range(4)], rowsPerChunk=2)
    assert work(plan(function=lambda frame: frame.assign(n=frame.n + 1)[["n"]], frames="pandas"), 0).completed == 2
    tables = [decoder("parquet", pa.schema([("n", pa.int64())]))(result) for result in results(submission)]
    assert pa.concat_tables(tables).column("n").to_pylist() == [1, 2, 3, 4]


def test_coroutine_function_gets_and_gives_tables_and_frames(
    queue: opsq.Queue, plan: Callable[..., Plan], submit_table: Callable[..., opsq.Submission]
) -> None:
    async def doubled(given: Any) -> Any:
        if isinstance(given, pa.Table):
            return given.set_column(0, "n", pa.array([n * 2 for n in given.column("n").to_pylist()]))
        return opsq.Done(given.assign(n=given.n * 2))

    for frames in ("auto", "pandas"):
        submission = submit_table([{"n": n} for n in range(20)], rowsPerChunk=2)
        assert work(plan(function=doubled, frames=frames, concurrency=4), 0).completed == 10
        tables = [decoder("parquet", pa.schema([("n", pa.int64())]))(result) for result in results(submission)]
        assert pa.concat_tables(tables).column("n").to_pylist() == [n * 2 for n in range(20)]


def test_chunk_whose_result_does_not_fit_the_declared_schema_dies_by_the_name_of_the_column(
    queue: opsq.Queue, plan: Callable[..., Plan], submit_table: Callable[..., opsq.Submission]
) -> None:
    submission = submit_table(
        [{"n": n, "text": f"{n}"} for n in range(4)], rowsPerChunk=1, maxAttempts=1, onDead="keep"
    )

    def scored(frame: Any) -> Any:
        return frame.assign(score="high" if frame.n[0] == 2 else frame.n * 0.5)

    declared = pa.schema({"score": pa.float64()})
    summary = work(plan(function=scored, frames="pandas", schema=declared), 0)
    assert (summary.completed, summary.dead) == (3, 1)
    [letter] = submission.dead()
    assert letter.index == 2
    assert "Column 'score' of what the function returned is not double" in letter.reason


def test_declared_column_that_the_chunks_cannot_hold_is_refused_before_any_work(
    daemon: Settings, queue: opsq.Queue, submit_table: Callable[..., opsq.Submission]
) -> None:
    submission = submit_table([{"n": 1, "text": "x"}], chunkFormat="csv")
    tags = t.StructType([t.StructField("tags", t.MapType(t.StringType(), t.LongType()))])
    where, options = DaemonOptions(state_dir=str(daemon.state_dir)), ConsumeOptions(until="empty")
    with pytest.raises(UsageError, match=r"Column 'tags' is map<string,bigint>, which csv cannot hold"):
        plan_fleet(where, options._replace(submission_id=submission.id), function=len, schema=tags)
    with pytest.raises(UsageError, match="schema declares what a function returns"):
        plan_fleet(where, options, command=["cat"], schema=tags)
    assert waiting_count(submission) == 1


def test_frames_of_a_submission_that_no_dataframe_made_bury_the_chunk(
    queue: opsq.Queue, plan: Callable[..., Plan]
) -> None:
    submission = queue.submit([b"x"], on_dead="keep")
    assert work(plan(function=len, frames="arrow"), 0).dead == 1
    [letter] = submission.dead()
    assert "was not made from a DataFrame" in letter.reason


def test_table_without_rows_is_an_empty_result() -> None:
    assert encoded(pa.table({"n": pa.array([], pa.int64())}), "parquet", ResultTypes()) == b""


def test_return_of_another_kind_fails_the_chunk() -> None:
    with pytest.raises(TypeError, match="returned int; a result is an Arrow table, a pandas frame, bytes, or None"):
        encoded(7, "parquet", ResultTypes())


def test_only_chunks_of_the_submission_are_taken(queue: opsq.Queue, plan: Callable[..., Plan]) -> None:
    other, wanted = queue.submit([b"o"]), queue.submit([b"w"])
    assert work(plan(function=bytes, submission_id=wanted.id), 0).completed == 1
    assert (other.state().state, wanted.state().state) == ("open", "completed")


def test_deadline_ends_a_task_that_waits_for_more(queue: opsq.Queue, plan: Callable[..., Plan]) -> None:
    for body in ({"function": bytes}, {"command": ("cat",)}):
        submission = queue.submit([b"x"])
        assert work(plan(until="", ends_at=time.time() + 5, **body), 0).completed == 1
        assert submission.state().state == "completed"


def test_task_that_starts_behind_the_deadline_takes_nothing(queue: opsq.Queue, plan: Callable[..., Plan]) -> None:
    submission = queue.submit([b"x"])
    assert work(plan(command=("cat",), ends_at=time.time() - 1), 0).completed == 0
    assert waiting_count(submission) == 1


def test_missing_program_is_told_and_counts_no_attempt(queue: opsq.Queue, plan: Callable[..., Plan]) -> None:
    submission = queue.submit([b"x"])
    summary = work(plan(command=("no-such-program",)), 0)
    failure = summary.failure()
    assert isinstance(failure, CommandNotFound)
    assert "There is no command 'no-such-program'" in failure.message
    assert waiting_count(submission) == 1


def test_unreachable_daemon_is_told_with_what_executors_need(daemon: Settings, plan: Callable[..., Plan]) -> None:
    end(daemon)
    failure = work(plan(command=("cat",), patience_s=0.0), 0).failure()
    assert isinstance(failure, Unreachable)
    assert "opsq start --listen HOST:PORT" in failure.hint


@pytest.mark.parametrize("kind", ["command", "function"])
def test_daemon_that_dies_and_comes_back_costs_no_chunk(
    daemon: Settings, queue: opsq.Queue, plan: Callable[..., Plan], kind: str
) -> None:
    submission = queue.submit([b"%d" % number for number in range(60)])
    bodies: dict[str, Any] = {
        "command": ("sh", "-c", "sleep 0.02; cat"),
        "function": lambda content: (time.sleep(0.02), content)[1],
    }

    def restart() -> None:
        wait_until(lambda: submission.state().completed_count >= 5, 300, "some are done")
        end(daemon)
        lifecycle.start(daemon)

    thread = threading.Thread(target=restart)
    thread.start()
    summary = work(plan(**{kind: bodies[kind]}), 0)
    thread.join()
    assert (summary.error, submission.state().dead_count) == ("", 0)
    assert results(submission) == [b"%d" % number for number in range(60)]


def test_daemon_that_dies_right_after_it_has_answered_a_task_costs_no_task(
    daemon: Settings, queue: opsq.Queue, plan: Callable[..., Plan], monkeypatch: pytest.MonkeyPatch
) -> None:
    submission = queue.submit([b"a"])
    starting = threading.Thread(target=lifecycle.start, args=(daemon,))
    opened = Daemon.open

    def open_and_end(self: Daemon, **options: Any) -> opsq.Queue:
        answered = opened(self, **options)
        end(daemon)
        starting.start()
        return answered

    monkeypatch.setattr(Daemon, "open", open_and_end)
    summary = work(plan(command=("cat",), patience_s=60.0), 0)
    starting.join()
    assert (summary.error, summary.completed) == ("", 1)
    assert results(submission) == [b"a"]


def test_over_tcp_the_token_decides_and_shows_in_no_error(runtime_dir: Path) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        address = free.getsockname()
    with (
        running(runtime_dir / "tcp", listen=f"127.0.0.1:{address[1]}") as settings,
        opsq.connect(state_dir=settings.state_dir) as queue,
    ):
        submission = queue.submit([b"x"])
        token = Path(settings.token_file).read_text().strip()
        options = ConsumeOptions(jobs=1, until="empty")
        refused = work(Plan(daemon=Daemon(address, "f" * 64), options=options, command=("cat",)), 0)
        assert isinstance(refused.failure(), NotPermitted)
        assert "ffff" not in f"{refused}"
        assert work(Plan(daemon=Daemon(address, token), options=options, command=("cat",)), 0).completed == 1
        assert results(submission) == [b"x"]


def test_token_shows_in_no_text_of_a_plan() -> None:
    plan = Plan(daemon=Daemon(("127.0.0.1", 1), "secret-token"), options=ConsumeOptions())
    assert "secret-token" not in f"{plan!r} {plan}"


def test_error_of_all_tasks_is_raised_and_of_some_is_told() -> None:
    well, ill = TaskSummary(0, "a", completed=1), TaskSummary(1, "b", error_code=WorkFailed.code, error="It broke.")
    with pytest.raises(WorkFailed, match="It broke"):
        ended_early(FleetSummary([ill, ill], 1.0))
    assert ended_early(FleetSummary([well, ill], 1.0)) == "1 of 2 tasks ended early. It broke."
    assert not ended_early(FleetSummary([well, well], 1.0))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({}, "either a command or a function"),
        ({"command": ["cat"], "function": bytes}, "either a command or a function"),
        ({"command": "cat"}, "command is a list"),
        ({"command": ["cat"], "until": ""}, "only a deadline ends"),
    ],
)
def test_arguments_that_make_no_sense_are_refused(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        consume(None, **arguments)  # type: ignore[arg-type]  # refused before the session is looked at


# --- whoever started the task goes away -------------------------------------------------------------------------------

_TASK = """
import os, sys
from opsq.runner.pool_options import ConsumeOptions
from opsq.spark.source.daemon_address import Daemon
from opsq.spark.fleet.tasks import Plan, work
if os.fork():
    os.read(0, 1)
    os._exit(0)
options = ConsumeOptions(jobs=1, until="empty")
plan = Plan(daemon=Daemon(sys.argv[1], ""), options=options, command=("sh", "-c", sys.argv[2]))
work(plan, 0)
"""


def test_killed_task_leaves_no_program_and_costs_its_chunk_one_loss(
    daemon: Settings, queue: opsq.Queue, runtime_dir: Path
) -> None:
    submission = queue.submit([b"x"])
    noted = runtime_dir / "pid"
    words = [
        sys.executable,
        "-c",
        _TASK.replace("os.fork()", "0"),
        daemon.socket,
        f"echo $$ > {noted}.new; mv {noted}.new {noted}; sleep 600",
    ]
    with subprocess.Popen(words, stdin=subprocess.PIPE) as task:
        wait_until(noted.exists, 20, "the program runs")
        task.send_signal(signal.SIGKILL)
        task.wait()
    program = int(noted.read_text())
    wait_until(lambda: not is_alive(program), 10, "the program is gone")
    wait_until(lambda: submission.state().reserved_count == 0, 10, "the chunk is given back")


def test_task_whose_executor_died_ends_itself_and_gives_its_chunk_back(
    daemon: Settings, queue: opsq.Queue, runtime_dir: Path
) -> None:
    submission = queue.submit([b"x"])
    noted = runtime_dir / "pid"
    words = [sys.executable, "-c", _TASK, daemon.socket, f"echo $$ > {noted}.new; mv {noted}.new {noted}; sleep 600"]
    with subprocess.Popen(words, stdin=subprocess.PIPE) as executor:
        wait_until(noted.exists, 20, "the program runs")
        executor.send_signal(signal.SIGKILL)
        executor.wait()
    program = int(noted.read_text())
    wait_until(lambda: not is_alive(program), 10, "the program is gone")
    wait_until(lambda: waiting_count(submission) == 1, 10, "the chunk is free")

"""`opsq consume` is stopped or killed, loses its daemon or chunks: no chunk is lost, no program left behind.

Programs wait for files that the test makes; nothing here depends on how long something takes.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import opsq
from daemons import DEADLINE_S, kill, running
from opsq.client.sync.queue import Queue
from opsq.client.sync.submission import Submission
from opsq.daemon import lifecycle
from opsq.settings import Settings
from opsq.wire.messages import SubmissionState
from waiting import wait_until

UNTIL_GO = "cat > started.$$; while [ ! -e go ]; do sleep 0.01; done; cat started.$$; rm started.$$"
"""Says that it runs by a file with its process id in the name; ends well once there is a file `go`."""
DEAF = f"trap '' TERM INT HUP; {UNTIL_GO}"
TIDY = "trap 'exit 0' TERM; echo half; cat > started.$$; while :; do sleep 0.01; done"
"""Ends with 0 when it is told to end, with half a result."""
NESTED = "sh -c 'sh -c \"trap : HUP; echo > grandchild.\\$\\$; while :; do sleep 0.01; done\" & cat > started.$$; wait'"


@pytest.fixture
def settings(runtime_dir: Path) -> Iterator[Settings]:
    with running(runtime_dir / "s", heartbeat_s="0.3") as found:
        yield found


@pytest.fixture
def queue(settings: Settings) -> Iterator[Queue]:
    with opsq.connect(settings.socket) as found:
        yield found


class Consumer:
    """An `opsq consume` that runs in a folder of its own."""

    def __init__(self, settings: Settings, script: str, *options: str) -> None:
        self.folder = Path(settings.state_dir).parent
        environ = os.environ | {"OPSQ_STATE_DIR": settings.state_dir}
        consume = ["consume", "--quiet", "-s", "OldestFirst", *options, "--", "sh", "-c", script]
        self.process = subprocess.Popen(
            [sys.executable, "-m", "opsq", *consume],
            env=environ,
            cwd=self.folder,
            stdin=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            start_new_session=True,
        )

    @property
    def pids(self) -> set[int]:
        """The programs that have said so."""
        return {
            int(path.suffix[1:])
            for path in self.folder.glob("*.[0-9]*")
            if path.name.startswith(("started.", "grandchild."))
        }

    def wait_started(self, count: int) -> None:
        """Wait until so many programs run at once."""
        wait_until(lambda: len(self.pids) >= count, DEADLINE_S, f"{count} programs have started")

    def go(self) -> None:
        """Let all programs end well."""
        (self.folder / "go").touch()

    def end(self) -> tuple[int, str]:
        """Wait for the end; the exit status, and what it said beside remarks."""
        _, said = self.process.communicate(timeout=DEADLINE_S)
        return self.process.returncode, said.decode()


@contextlib.contextmanager
def consuming(settings: Settings, script: str, *options: str) -> Iterator[Consumer]:
    """Run a consumer that is gone afterwards, with its programs."""
    consumer = Consumer(settings, script, *options)
    try:
        yield consumer
    finally:
        consumer.process.kill()
        consumer.process.wait()
        if consumer.process.stderr is not None:
            consumer.process.stderr.close()
        for pid in consumer.pids:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)


def state_of(submission: Submission) -> tuple[int, int]:
    """How many chunks are completed, and how many reserved."""
    state: SubmissionState = submission.state()
    return state.completed_count, state.reserved_count


def assert_untouched(queue: Queue, submission: Submission, count: int) -> None:
    """So many chunks of the submission are free, and no attempt at any was counted."""
    with queue.consumer("OldestFirst") as consumer:
        reservation = consumer.reserve(count + 1)
        assert reservation.chunks_count == count
        assert {lot.token.attempt for lot in reservation.held_blocks} == {0}


def earlier_attempts(settings: Settings, submission: Submission) -> int:
    """The most attempts that were counted at any chunk before it was completed or failed."""
    with contextlib.closing(sqlite3.connect(f"file:{settings.database_path}?mode=ro", uri=True)) as database:
        (found,) = database.execute(
            "SELECT max(attempt) FROM history WHERE submission_id = ?", (submission.id,)
        ).fetchone()
    return int(found)


def has_begun(consumer: Consumer, submission: Submission) -> bool:
    """Whether the program of chunk 20 runs and those before are completed, or nothing is left to do."""
    state = submission.state()
    return state.state == "completed" or (bool(consumer.pids) and state.completed_count == 20)


def is_alive(pid: int) -> bool:
    """Whether a process runs, and is no zombie."""
    done = subprocess.run(["ps", "-o", "stat=", "-p", str(pid)], capture_output=True, text=True)
    return bool(done.stdout.strip()) and not done.stdout.startswith("Z")


def assert_no_program_left(pids: set[int]) -> None:
    assert [pid for pid in pids if is_alive(pid)] == []


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_first_signal_lets_what_runs_end_and_gives_back_the_rest(queue: Queue, settings: Settings, number: int) -> None:
    """Whatever the signal, the way is the same: what ran is completed, exit 0."""
    submission = queue.submit([b"x"] * 20)
    with consuming(settings, UNTIL_GO, "-j", "2", "--grace", "1h") as consumer:
        consumer.wait_started(2)
        consumer.process.send_signal(number)
        wait_until(lambda: state_of(submission) == (0, 2), DEADLINE_S, "only what runs is reserved")
        consumer.go()
        assert consumer.end() == (0, "")
    assert state_of(submission) == (2, 0)
    assert_untouched(queue, submission, 18)


def test_no_chunk_is_taken_after_the_first_signal(queue: Queue, settings: Settings) -> None:
    """A reserve that waits in the daemon is withdrawn: what is submitted later goes to others."""
    first = queue.submit([b"x"])
    with consuming(settings, UNTIL_GO, "-j", "2", "--grace", "1h") as consumer:
        consumer.wait_started(1)
        wait_until(lambda: queue.status().parked_count == 1, DEADLINE_S, "it asks for a second chunk")
        consumer.process.terminate()
        wait_until(lambda: queue.status().parked_count == 0, DEADLINE_S, "nothing is asked for any more")
        second = queue.submit([b"y"])
        consumer.go()
        assert consumer.end()[0] == 0
    assert state_of(first) == (1, 0)
    assert_untouched(queue, second, 1)


@pytest.mark.parametrize("script", [UNTIL_GO, DEAF, TIDY])
def test_without_grace_all_is_given_back_at_once(queue: Queue, settings: Settings, script: str) -> None:
    """No attempt is counted, whether the program dies, is deaf, or tidies up and exits 0 with half a result."""
    submission = queue.submit([b"x"] * 3)
    with consuming(settings, script, "-j", "2", "--grace", "0") as consumer:
        consumer.wait_started(2)
        pids = consumer.pids
        consumer.process.terminate()
        status, said = consumer.end()
        assert (status, [line for line in said.splitlines() if not line.endswith("Terminated")]) == (
            0,
            [],
        )  # so says a shell
        assert_no_program_left(pids)
    assert_untouched(queue, submission, 3)


def test_program_that_ignores_sigterm_is_killed_after_the_grace(queue: Queue, settings: Settings) -> None:
    submission = queue.submit([b"x"])
    with consuming(settings, DEAF, "--grace", "0.1") as consumer:
        consumer.wait_started(1)
        pids = consumer.pids
        consumer.process.send_signal(signal.SIGINT)
        assert consumer.end() == (0, "")
        assert_no_program_left(pids)
    assert_untouched(queue, submission, 1)


@pytest.mark.parametrize(("number", "status"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_second_signal_ends_at_once(queue: Queue, settings: Settings, number: int, status: int) -> None:
    """Deaf programs are killed, chunks given back, no attempt is counted."""
    submission = queue.submit([b"x"] * 2)
    with consuming(settings, DEAF, "-j", "3", "--grace", "1h") as consumer:
        consumer.wait_started(2)
        pids = consumer.pids
        wait_until(lambda: queue.status().parked_count == 1, DEADLINE_S, "it asks for a third chunk")
        consumer.process.send_signal(number)
        wait_until(lambda: queue.status().parked_count == 0, DEADLINE_S, "it drains")
        assert consumer.process.poll() is None
        # One that follows at once would be taken for an echo.
        wait_until(
            lambda: consumer.process.poll() is not None or consumer.process.send_signal(number),
            DEADLINE_S,
            "it has ended",
        )
        assert consumer.end() == (status, "")
        assert_no_program_left(pids)
    assert_untouched(queue, submission, 2)


def test_three_levels_of_shell_leave_nothing_behind(queue: Queue, settings: Settings) -> None:
    submission = queue.submit([b"x"])
    with consuming(settings, NESTED, "--grace", "0") as consumer:
        consumer.wait_started(2)
        pids = consumer.pids
        consumer.process.terminate()
        assert consumer.end()[0] == 0
        assert_no_program_left(pids)
    assert_untouched(queue, submission, 1)


def test_cancel_reaches_running_programs_also_while_draining(queue: Queue, settings: Settings) -> None:
    """The chunks are lost, the programs are ended, the consumer ends as it was asked to."""
    submission = queue.submit([b"x"] * 2)
    with consuming(settings, UNTIL_GO, "-j", "3", "--grace", "1h") as consumer:
        consumer.wait_started(2)
        pids = consumer.pids
        wait_until(lambda: queue.status().parked_count == 1, DEADLINE_S, "it asks for a third chunk")
        consumer.process.terminate()
        wait_until(lambda: queue.status().parked_count == 0, DEADLINE_S, "it drains")
        submission.cancel()
        status, said = consumer.end()
        assert status == 0
        assert said.count("was lost") == 2
        assert_no_program_left(pids)


def test_lost_reservation_ends_the_program_and_the_consumer_goes_on(queue: Queue, settings: Settings) -> None:
    lost = queue.submit([b"lost"])
    with consuming(settings, UNTIL_GO, "-j", "1", "--grace", "0") as consumer:
        consumer.wait_started(1)
        (pid,) = consumer.pids
        kept = queue.submit([b"kept"])
        lost.cancel()
        wait_until(lambda: not is_alive(pid), DEADLINE_S, "the program has ended")
        consumer.go()
        assert kept.wait(DEADLINE_S).state == "completed"
        consumer.process.terminate()
        status, said = consumer.end()
    assert (status, said.count("was lost")) == (0, 1)
    assert list(kept.results()) == [b"kept"]


def test_verdict_waits_for_a_daemon_that_is_gone(queue: Queue, settings: Settings) -> None:
    """The daemon is killed while programs run.

    They end meanwhile; the next daemon takes their results, no attempt is counted.
    """
    submission = queue.submit([b"a", b"b", b"c"])
    with consuming(settings, UNTIL_GO, "-j", "2", "--until-empty") as consumer:
        consumer.wait_started(2)
        kill(settings)
        consumer.go()
        wait_until(lambda: not consumer.pids, DEADLINE_S, "the programs have ended")
        assert lifecycle.start(settings).status == "started"
        assert consumer.end() == (0, "")
    assert list(submission.results()) == [b"a", b"b", b"c"]
    assert earlier_attempts(settings, submission) == 0


def test_running_programs_survive_a_restart_of_the_daemon(queue: Queue, settings: Settings) -> None:
    """Their chunks are taken up again, and are given to nobody else."""
    submission = queue.submit([b"a", b"b"])
    with consuming(settings, UNTIL_GO, "-j", "2") as consumer:
        consumer.wait_started(2)
        lifecycle.restart(settings, 0.0)
        wait_until(lambda: queue.status().connections_count >= 2, DEADLINE_S, "it has come back")
        with queue.consumer() as other:
            assert other.reserve(1).chunks_count == 0
        consumer.go()
        assert submission.wait(DEADLINE_S).state == "completed"
        consumer.process.terminate()
        assert consumer.end() == (0, "")
    assert list(submission.results()) == [b"a", b"b"]


def test_signal_is_heard_while_the_daemon_is_gone(queue: Queue, settings: Settings) -> None:
    submission = queue.submit([b"x"])
    with consuming(settings, UNTIL_GO, "--grace", "0") as consumer:
        consumer.wait_started(1)
        pids = consumer.pids
        kill(settings)
        consumer.process.terminate()
        assert consumer.end()[0] == 0
        assert_no_program_left(pids)
    assert lifecycle.start(settings).status == "started"
    assert submission.state().completed_count == 0


def test_killed_program_is_a_failed_attempt_named_by_its_signal(queue: Queue, settings: Settings) -> None:
    """SIGKILL, as by the system short of memory, is no completion."""
    submission = queue.submit([b"x"], max_attempts=1)
    with consuming(settings, "kill -KILL $$", "--until-empty") as consumer:
        status, said = consumer.end()
    assert status == 1
    assert "killed by SIGKILL" in said
    assert submission.wait(DEADLINE_S).state == "failed"


def test_killed_consumer_loses_what_it_had_begun_and_no_more(queue: Queue, settings: Settings) -> None:
    """What was only reserved ahead was never tried.

    What ran counts a loss, if the daemon was told (within 50 ms), up to `max_lost`.
    """
    submission = queue.submit([b"%d" % number for number in range(50)], max_lost=2, on_dead="keep")
    script = "read x; if [ $x -ne 20 ]; then exit 0; fi; echo > started.$$; exec sleep 600"
    for _ in range(3):
        with consuming(settings, script, "-j", "1") as consumer:
            wait_until(lambda consumer=consumer: has_begun(consumer, submission), DEADLINE_S, "it runs, or all is done")
            consumer.process.kill()
            consumer.process.wait()
            wait_until(lambda: submission.state().reserved_count == 0, DEADLINE_S, "its chunks are back")
        for path in consumer.folder.glob("started.*"):
            path.unlink()
    assert [(chunk.index, chunk.lost, chunk.attempts) for chunk in submission.dead()] == [(20, 2, 0)]
    with consuming(settings, script, "--until-empty") as consumer:
        assert consumer.end() == (0, "")
    assert submission.state().completed_count == 49
    assert earlier_attempts(settings, submission) == 1


def test_consumers_restarted_one_by_one_leave_nothing_over(queue: Queue, settings: Settings) -> None:
    """Each of them is stopped while it works; every chunk is completed, by exactly one attempt."""
    submission = queue.submit([b"%d\n" % number for number in range(3000)])
    with contextlib.ExitStack() as stack:
        consumers = [stack.enter_context(consuming(settings, "exec cat", "-j", "1")) for _ in range(4)]
        for at in range(4):
            goal = (at + 1) * 200
            wait_until(lambda goal=goal: submission.state().completed_count >= goal, DEADLINE_S, f"{goal} are done")
            consumers[at].process.terminate()
            assert consumers[at].end() == (0, "")
            consumers.append(stack.enter_context(consuming(settings, "exec cat", "-j", "1", "--until-empty")))
        assert submission.wait(DEADLINE_S * 3).state == "completed"
        assert [consumer.end() for consumer in consumers[4:]] == [(0, "")] * 4
    assert b"".join(submission.results()) == b"".join(b"%d\n" % number for number in range(3000))
    assert earlier_attempts(settings, submission) == 0


IN_TERMINAL = "import os, pty, sys; sys.exit(os.waitstatus_to_exitcode(pty.spawn(sys.argv[1:])))"
"""Runs a command in a terminal of its own; what comes on stdin is typed there."""


@pytest.mark.parametrize("run", range(3))
@pytest.mark.parametrize("way", ["terminal", "group"])
def test_signal_to_the_whole_group_amid_quick_programs_fails_nothing(
    queue: Queue, settings: Settings, way: str, run: int
) -> None:
    """Ctrl-C, or what `timeout` does: it also reaches programs that are being started, by chance.

    None counts an attempt.
    """
    count = 5000
    submission = queue.submit([b"%d\n" % number for number in range(count)])
    launcher = [sys.executable, "-c", IN_TERMINAL] if way == "terminal" else []
    consumer = subprocess.Popen(
        [*launcher, sys.executable, "-m", "opsq", "consume", "-q", "-j", "4", "--", "cat"],
        env=os.environ | {"OPSQ_STATE_DIR": settings.state_dir},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        start_new_session=True,
    )
    try:
        wait_until(lambda: submission.state().completed_count >= 200, DEADLINE_S, "it is amid its work")
        if way == "group":
            os.killpg(consumer.pid, signal.SIGTERM)
        else:
            assert consumer.stdin is not None
            consumer.stdin.write(b"\x03")
            consumer.stdin.flush()
        said, _ = consumer.communicate(timeout=DEADLINE_S)
    finally:
        consumer.kill()
        consumer.wait()
    assert (consumer.returncode, said.strip()) in [(0, b""), (0, b"^C")]
    completed_count, reserved_count = state_of(submission)
    assert (completed_count < count, reserved_count) == (True, 0)
    assert_untouched(queue, submission, count - completed_count)

"""Functions called for chunks and operations in threads: verdicts, ends, signals.

With an embedded queue and with a daemon.
"""

from __future__ import annotations

import logging
import os
import signal
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import opsq
from daemons import kill, running
from opsq.client.core.outcome import Tally
from opsq.daemon import lifecycle
from opsq.errors import InvalidStrategy, UsageError
from opsq.queue.policy import Policy
from waiting import wait_until


@pytest.fixture
def queue(runtime_dir: Path) -> Iterator[opsq.Queue]:
    with opsq.Queue.open(runtime_dir, policy=Policy(heartbeat_s=0.2)) as queue:
        yield queue


def upper(chunk: Any) -> bytes:
    return bytes(chunk.data.upper())


@pytest.mark.parametrize("jobs", [1, 3])
def test_each_chunk_is_completed_with_what_the_function_returns(queue: opsq.Queue, jobs: int) -> None:
    submission = queue.submit(b"a%d" % number for number in range(200))
    with queue.consumer() as consumer:
        assert consumer.run_each_chunk(upper, jobs=jobs) == Tally(200, 0, 0)
        assert submission.state().state == "completed"  # every verdict is durable on return
    assert list(submission.results()) == [b"A%d" % number for number in range(200)]


def test_a_consumer_can_run_again_and_elsewhere_than_on_the_main_thread(queue: opsq.Queue) -> None:
    tallies = []
    with queue.consumer() as consumer:
        for _ in range(2):
            queue.submit([b"a"])
            thread = threading.Thread(target=lambda: tallies.append(consumer.run_each_chunk(upper, jobs=2)))
            thread.start()
            thread.join(180)
    assert tallies == [Tally(1, 0, 0)] * 2


def test_jobs_work_side_by_side(queue: opsq.Queue) -> None:
    queue.submit([b"a"] * 6)
    meeting = threading.Barrier(3, timeout=180)

    def meet(chunk: Any) -> None:
        meeting.wait()

    with queue.consumer() as consumer:
        assert consumer.run_each_chunk(meet, jobs=3) == Tally(6, 0, 0)


def test_chunks_are_begun_only_when_a_job_is_free(queue: opsq.Queue) -> None:
    """What waits in the consumer is not begun, so losing the consumer costs it nothing."""
    submission = queue.submit([b"a"] * 100)
    begun, most = [0], [0]

    def work(chunk: Any) -> None:
        begun[0] += 1
        most[0] = max(most[0], begun[0])
        begun[0] -= 1

    with queue.consumer(batch=64) as consumer:
        consumer.run_each_chunk(work, jobs=2)
    assert most[0] <= 2
    assert submission.state().completed_count == 100


def test_a_job_that_finds_nothing_takes_nothing_from_another(queue: opsq.Queue) -> None:
    """The run of one job ends while the other works on its chunk, which is completed all the same."""
    submission = queue.submit([b"a"])

    def work(chunk: Any) -> bytes:
        wait_until(lambda: sum(thread.name == "opsq-job" for thread in threading.enumerate()) == 1)
        return b"done"

    with queue.consumer() as consumer:
        assert consumer.run_each_chunk(work, jobs=2, until_idle=True) == Tally(1, 0, 0)
    assert list(submission.results()) == [b"done"]


def test_an_exception_fails_the_attempt_with_its_traceback(queue: opsq.Queue, caplog: pytest.LogCaptureFixture) -> None:
    submission = queue.submit([b"a", b"bad", b"c"], on_dead="keep", max_attempts=2, backoff=(0.01, 1, 0.01))

    def work(chunk: Any) -> bytes:
        if chunk.data == b"bad":
            raise ValueError("no good")
        return upper(chunk)

    with queue.consumer() as consumer, caplog.at_level(logging.WARNING, "opsq"):
        assert consumer.run_each_chunk(work, jobs=2) == Tally(2, 2, 0)
    [dead] = submission.dead()
    assert dead.reason.startswith("ValueError: no good\nTraceback")
    assert "in work" in dead.reason
    assert f"Chunk {submission.id}/1 failed: ValueError: no good" in caplog.text


def test_wishes_decide_what_comes_of_a_failure(queue: opsq.Queue) -> None:
    submission = queue.submit([b"retry", b"bury"], on_dead="keep", backoff=(3600, 1, 3600))

    def work(chunk: Any) -> None:
        if chunk.data == b"bury":
            raise opsq.Bury("never")
        if chunk.attempt == 0:
            raise opsq.Retry("again", delay_s=0.0)

    with queue.consumer() as consumer:
        assert consumer.run_each_chunk(work) == Tally(1, 2, 0)
    assert [(dead.index, dead.reason) for dead in submission.dead()] == [(1, "never")]


def test_a_function_may_give_the_verdict_itself(queue: opsq.Queue) -> None:
    submission = queue.submit([b"a"])
    with queue.consumer() as consumer:
        consumer.run_each_chunk(lambda chunk: chunk.complete(b"mine"))
    assert list(submission.results()) == [b"mine"]


@pytest.mark.parametrize("jobs", [1, 2])
def test_an_interrupt_in_the_function_gives_all_back_and_is_raised(queue: opsq.Queue, jobs: int) -> None:
    submission = queue.submit([b"a"] * 50)

    def work(chunk: Any) -> None:
        if chunk.index == 20:
            raise KeyboardInterrupt

    with queue.consumer("OldestFirst") as consumer, pytest.raises(KeyboardInterrupt):
        consumer.run_each_chunk(work, jobs=jobs)
    state = submission.state()
    assert (state.reserved_count, state.delayed_count, state.dead_count) == (0, 0, 0)
    for chunk in queue.consume("OldestFirst"):
        assert chunk.attempt == 0
        chunk.complete()
    assert submission.state().state == "completed"


@pytest.mark.parametrize("jobs", [1, 2])
def test_an_exit_of_the_function_fails_its_chunk_and_the_run_goes_on(queue: opsq.Queue, jobs: int) -> None:
    submission = queue.submit([b"0", b"x", b"1"], max_attempts=2, on_dead="keep", backoff=(0.01, 1, 0.01))

    def work(chunk: Any) -> None:
        if chunk.data != b"x":
            sys.exit(int(chunk.data))

    with queue.consumer("OldestFirst") as consumer:
        tally = consumer.run_each_chunk(work, jobs=jobs)
    assert (tally.completed_count, tally.failed_count) == (1, 4)
    assert sorted(dead.reason.partition("\n")[0] for dead in submission.dead()) == ["SystemExit: 0", "SystemExit: 1"]


@pytest.mark.parametrize("jobs", [1, 2])
def test_a_refusal_of_the_daemon_is_raised(queue: opsq.Queue, jobs: int) -> None:
    with queue.consumer("Nonsense") as consumer, pytest.raises(InvalidStrategy):
        consumer.run_each_chunk(upper, jobs=jobs)


def test_stop_ends_the_run_after_the_chunks_at_hand(queue: opsq.Queue) -> None:
    submission = queue.submit([b"a"] * 50)
    with queue.consumer(batch=16) as consumer:

        def work(chunk: Any) -> None:
            if chunk.index == 20:
                consumer.stop()

        tally = consumer.run_each_chunk(work, until_empty=False)
    assert tally == Tally(submission.state().completed_count, 0, 0)
    assert submission.state().reserved_count == 0


@pytest.mark.parametrize("arguments", [{"jobs": 0}, {"mode": "fibres"}, {"max_runtime_s": 1.0}])
def test_arguments_without_sense_are_refused(queue: opsq.Queue, arguments: dict[str, Any]) -> None:
    with queue.consumer() as consumer, pytest.raises(UsageError):
        consumer.run_each_chunk(upper, **arguments)


def test_a_chunk_that_was_cancelled_meanwhile_is_neither_failed_nor_raised(
    queue: opsq.Queue, caplog: pytest.LogCaptureFixture
) -> None:
    submission = queue.submit([b"a", b"b"])

    def work(chunk: Any) -> None:
        submission.cancel()
        wait_until(lambda: chunk.is_revoked)
        raise ValueError("too late")

    with queue.consumer() as consumer:
        tally = consumer.run_each_chunk(work)
    assert (tally.completed_count, tally.failed_count) == (0, 0)
    assert "too late" not in caplog.text


@pytest.mark.parametrize("name", ["bytes", "text", "json", "msgpack"])
def test_operations_go_round_in_every_format(queue: opsq.Queue, name: str) -> None:
    records: list[Any] = {"bytes": [b"1", b"", b"3"], "text": ["ä", "", "z"]}.get(name, [1, "a\nb", [None]])
    submission = queue.submit([opsq.serialisation.find(name).encode(records)] * 3)
    with queue.consumer() as consumer:
        assert consumer.run_each_operation(lambda operation: operation * 2, serialisation=name) == Tally(3, 0, 0)
    doubled = [record * 2 for record in records]
    assert [opsq.serialisation.find(name).decode(result) for result in submission.results()] == [doubled] * 3


def test_a_failing_operation_fails_its_chunk_and_is_named(queue: opsq.Queue) -> None:
    submission = queue.submit([b"1\n2\n", b"1\nx\n3", b"\xff"], on_dead="keep", max_attempts=1)
    with queue.consumer() as consumer:
        assert consumer.run_each_operation(int, serialisation="text", result_serialisation="json") == Tally(1, 2, 0)
    first, second = submission.dead()
    assert first.reason.splitlines()[0] == "ValueError: invalid literal for int() with base 10: 'x' (operation 2 of 3)"
    assert second.reason == "Record 1 is not UTF-8: invalid start byte (byte 0xff)."


# --- signals ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
@pytest.mark.parametrize("jobs", [1, 2])
def test_the_first_signal_drains_and_the_run_returns(queue: opsq.Queue, number: signal.Signals, jobs: int) -> None:
    submission = queue.submit([b"a"] * 100)
    before = signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM)

    def work(chunk: Any) -> bytes:
        if chunk.index == 0:
            os.kill(os.getpid(), number)
        return b"done"

    with queue.consumer("OldestFirst", batch=16) as consumer:
        tally = consumer.run_each_chunk(work, jobs=jobs, until_empty=False, on_interrupt="return")
    assert (signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM)) == before
    assert tally.stop_signal == number
    assert tally.completed_count >= 1
    state = submission.state()
    assert (state.completed_count, state.reserved_count, state.delayed_count) == (tally.completed_count, 0, 0)


@pytest.mark.parametrize("jobs", [1, 2])
def test_interrupt_is_raised_when_the_chunks_at_hand_have_ended(queue: opsq.Queue, jobs: int) -> None:
    """In a notebook, what follows is not run."""
    submission = queue.submit([b"a"] * 100)

    def work(chunk: Any) -> bytes:
        if chunk.index == 0:
            os.kill(os.getpid(), signal.SIGINT)
        return b"done"

    with queue.consumer("OldestFirst", batch=16) as consumer, pytest.raises(KeyboardInterrupt, match="completed"):
        consumer.run_each_chunk(work, jobs=jobs, until_empty=False)
    state = submission.state()
    assert 1 <= state.completed_count < 100
    assert (state.reserved_count, state.delayed_count, state.dead_count) == (0, 0, 0)


def test_other_way_to_end_after_an_interrupt_is_refused(queue: opsq.Queue) -> None:
    with queue.consumer() as consumer, pytest.raises(UsageError, match="on_interrupt is 'exit'"):
        consumer.run_each_chunk(print, on_interrupt="exit")  # type: ignore[arg-type]


@pytest.mark.parametrize(("number", "error"), [(signal.SIGTERM, SystemExit), (signal.SIGINT, KeyboardInterrupt)])
def test_the_second_signal_gives_back_at_once(
    queue: opsq.Queue, number: signal.Signals, error: type[BaseException]
) -> None:
    submission = queue.submit([b"a"])

    def work(chunk: Any) -> None:
        while True:  # the next but one of these ends it: one that follows at once is an echo
            os.kill(os.getpid(), number)

    with queue.consumer() as consumer, pytest.raises(error) as raised:
        consumer.run_each_chunk(work)
    if error is SystemExit:
        assert raised.value.args == (128 + number,)
    assert submission.state().reserved_count == 0
    for chunk in queue.consume():
        assert chunk.attempt == 0
        chunk.complete()


def test_a_handler_of_the_program_stays_in_charge(queue: opsq.Queue) -> None:
    queue.submit([b"a"] * 3)
    heard: list[int] = []
    before = signal.signal(signal.SIGTERM, lambda number, frame: heard.append(number))
    try:
        with queue.consumer() as consumer:
            tally = consumer.run_each_chunk(lambda chunk: os.kill(os.getpid(), signal.SIGTERM))
    finally:
        signal.signal(signal.SIGTERM, before)
    assert tally == Tally(3, 0, 0)
    assert heard == [signal.SIGTERM] * 3


# --- with a daemon ----------------------------------------------------------------------------------------------------


def test_a_run_outlives_a_killed_daemon(runtime_dir: Path) -> None:
    with running(runtime_dir, heartbeat_s="0.3") as settings, opsq.connect(settings.socket) as queue:
        submission = queue.submit(b"%d" % number for number in range(300))

        def work(chunk: Any) -> bytes:
            if chunk.index == 100:
                kill(settings)
                assert lifecycle.start(settings).status == "started"
            return bytes(chunk.data)

        with queue.consumer("OldestFirst", batch=16) as consumer:
            consumer.run_each_chunk(work, jobs=2)
        assert list(submission.results()) == [b"%d" % number for number in range(300)]

"""Coroutine functions awaited in worker processes: many chunks at once, and what ends one of them or all."""

from __future__ import annotations

import asyncio
import errno
import multiprocessing
import os
import signal
from collections.abc import Iterator
from multiprocessing.context import SpawnProcess
from pathlib import Path
from typing import Any

import pytest

import opsq
import worker_functions as zoo
from daemons import running
from opsq.client.aio import verdict_sender as aio_sender
from opsq.client.core.outcome import Tally
from opsq.client.core.worker_frames import Broken, Ready
from opsq.client.sync import awaiting_pool, child_process, verdict_sender
from opsq.client.sync.awaiting_pool import AwaitingProcess
from opsq.errors import UsageError, WorkFailed
from opsq.queue.policy import Policy
from opsq.settings import Settings
from unit.client.shards.fake_shards import WELCOME
from user_programs import Script, is_there, number_in
from waiting import wait_until

DEADLINE_S = 180


@pytest.fixture
def queue(runtime_dir: Path) -> Iterator[opsq.Queue]:
    with opsq.Queue.open(runtime_dir, policy=Policy(heartbeat_s=0.2)) as queue:
        yield queue


@pytest.fixture
def settings(runtime_dir: Path) -> Iterator[Settings]:
    with running(runtime_dir, heartbeat_s="0.3") as settings:
        yield settings


def run(queue: opsq.Queue, f: Any = zoo.awaited, *, lease_s: float | None = None, **options: Any) -> Tally:
    with queue.consumer("OldestFirst", lease_s=lease_s) as consumer:
        return consumer.run_each_chunk(f, mode="processes", **{"concurrency": 1 if f is zoo.obedient else 10} | options)


def test_so_many_chunks_are_awaited_at_once_in_one_process(queue: opsq.Queue) -> None:
    submission = queue.submit([b"with%d with%d" % (number, (number + 1) % 50) for number in range(50)])
    assert run(queue, concurrency=50) == Tally(50, 0, 0)
    assert list(submission.results()) == [b"with%d" % number for number in range(50)]


def test_results_are_in_the_order_of_chunks_whichever_ends_first(queue: opsq.Queue) -> None:
    submission = queue.submit([b"behind1 behind2", b"behind2 with3", b"with3 behind2"])
    assert run(queue) == Tally(3, 0, 0)
    assert list(submission.results()) == [b"behind1", b"behind2", b"with3"]


def test_chunk_is_completed_when_it_ends_although_others_go_on(
    settings: Settings, tmp_path: Path, script: Script
) -> None:
    begun, cleaned = tmp_path / "begun", tmp_path / "cleaned"
    with opsq.connect(settings.socket) as queue:
        submission = queue.submit([b"clean %s %s" % (bytes(begun), bytes(cleaned)), b"x"])
        script(PROGRAM, settings.socket, 3600)
        wait_until(lambda: submission.state().completed_count == 1, DEADLINE_S, "the second chunk is completed")
        assert not cleaned.exists()


def test_exceptions_and_wishes_decide_what_comes_of_each_chunk(queue: opsq.Queue) -> None:
    chunks = [b"x", b"raise bad", b"retry soon", b"bury it", b"sysexit 7", b"cancelled", b"then next"]
    submission = queue.submit(chunks, on_dead="keep", max_attempts=2, backoff=(0, 1, 0))
    run(queue)
    assert submission.state().completed_count == 2
    dead = {each.index: (each.attempts, each.reason.split("\n")[0]) for each in submission.dead()}
    assert dead == {
        1: (2, "ValueError: bad"),
        2: (2, "soon"),
        3: (1, "it"),
        4: (2, "SystemExit: 7"),
        5: (2, "asyncio.exceptions.CancelledError"),
    }
    assert sorted(state.chunks_count for state in queue.submissions(states=["completed"])) == [1, 7]  # a follow-up


def test_coroutines_see_attachments_and_metadata_of_their_own_chunks(queue: opsq.Queue) -> None:
    submissions = [
        queue.submit([b"attached"] * 5, metadata={"tenant": name}, attachment=name.encode()) for name in "abc"
    ]
    assert run(queue) == Tally(15, 0, 0)
    for submission, name in zip(submissions, [b"a", b"b", b"c"], strict=True):
        assert list(submission.results()) == [b"%s %s %d" % (name, name, number) for number in range(5)]


def test_attachment_that_is_wanted_by_what_a_chunk_has_left_behind_stops_nobody(queue: opsq.Queue) -> None:
    submission = queue.submit([b"left", b"stale"], attachment=b"a")
    assert run(queue, concurrency=2) == Tally(2, 0, 0)
    assert list(submission.results()) == [b"left", b"late, a"]


def test_attachment_that_is_wanted_too_late_is_not_that_of_the_next_chunk(queue: opsq.Queue) -> None:
    queue.submit([b"left"], attachment=b"a")
    submission = queue.submit([b"stale", b"attached"], metadata={"tenant": "t"}, attachment=b"b")
    assert run(queue, concurrency=1) == Tally(3, 0, 0)
    assert list(submission.results()) == [b"late, b", b"b t 1"]


def test_frame_that_is_none_ends_all_lanes(queue: opsq.Queue, monkeypatch: pytest.MonkeyPatch) -> None:
    decode = child_process.decode_of_worker

    def decode_not(frame: bytes) -> Any:
        return decode(frame if isinstance(decode(frame), Ready) else b"\xc1")

    monkeypatch.setattr(child_process, "decode_of_worker", decode_not)
    submission = queue.submit([b"x", b"hang", b"hang"])
    with pytest.raises(WorkFailed, match="said what cannot be understood"):
        run(queue, concurrency=3)
    assert submission.state().reserved_count == 0


def test_each_frame_is_sent_under_the_lock_of_its_process(queue: opsq.Queue, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two that lanes send at once would be one in the pipe."""
    are_held: list[bool] = []
    send = awaiting_pool.AwaitingProcess._send

    def note(self: Any, frame: Any) -> None:
        are_held.append(self._lock._is_owned())
        send(self, frame)

    monkeypatch.setattr(awaiting_pool.AwaitingProcess, "_send", note)
    queue.submit([b"attached"], metadata={"tenant": "a"}, attachment=b"a")
    assert run(queue) == Tally(1, 0, 0)
    assert are_held == [True] * 3  # the chunk, its attachment, the end


def test_operations_of_a_chunk_are_awaited_one_after_the_other(queue: opsq.Queue) -> None:
    submission = queue.submit([b"1\n2\n", b"3\n"])
    with queue.consumer() as consumer:
        tally = consumer.run_each_operation(
            zoo.twice_awaited, serialisation="json", mode="processes", jobs=2, concurrency=3
        )
    assert tally == Tally(2, 0, 0)
    assert list(submission.results()) == [b"2\n4\n", b"6\n"]


def test_coroutine_that_takes_too_long_is_cancelled_and_the_others_go_on(queue: opsq.Queue) -> None:
    submission = queue.submit([b"pid"] * 4 + [b"hang"] + [b"pid"] * 4, on_dead="keep", max_attempts=1)
    assert run(queue, max_runtime_s=3) == Tally(8, 1, 0)
    [dead] = submission.dead()
    assert (dead.index, dead.signal, dead.exit_status) == (4, None, None)
    told, _, where = dead.reason.partition("\n")
    assert told == "The function ran for more than 3 s, so it was cancelled."
    assert "in awaited" in where
    assert len(set(submission.results(skip_dead=True))) == 1  # one process has done them all


@pytest.mark.parametrize("word", [b"stubborn", b"block"])
def test_coroutine_that_cannot_be_cancelled_fails_with_what_its_process_held(
    queue: opsq.Queue, word: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(awaiting_pool, "_CANCEL_S", 0.1)
    submission = queue.submit([word, b"x"], on_dead="keep", max_attempts=1)
    assert run(queue, concurrency=1, max_runtime_s=3) == Tally(1, 1, 0)
    [dead] = submission.dead()
    assert dead.reason == "The function ran for more than 3 s and did not end, so its process was killed."
    assert dead.signal == signal.SIGKILL


def test_process_that_dies_costs_each_chunk_that_it_still_held_an_attempt(queue: opsq.Queue) -> None:
    submission = queue.submit([b"hang", b"hang", b"die with", b"with hang"], on_dead="keep", max_attempts=1)
    assert run(queue) == Tally(1, 3, 0)
    dead = list(submission.dead())
    assert [(each.index, each.attempts, each.lost, each.signal) for each in dead] == [
        (index, 1, 0, signal.SIGKILL) for index in range(3)
    ]
    assert {each.reason for each in dead} == {
        "The worker process was killed by SIGKILL while it worked on the chunk and 2 more."
    }


def no_process(patch: pytest.MonkeyPatch) -> None:
    def refuse(_: Any) -> None:
        raise BlockingIOError(errno.EAGAIN, "Resource temporarily unavailable")

    patch.setattr(SpawnProcess, "start", refuse)


def no_listener(patch: pytest.MonkeyPatch) -> None:
    def refuse(_: Any) -> None:
        raise RuntimeError("can't start new thread")

    patch.setattr(awaiting_pool.threading.Thread, "start", refuse)


def no_function(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(child_process, "decode_of_worker", lambda _: Broken("ImportError: not today"))


@pytest.mark.parametrize("fail", [no_process, no_listener, no_function])
def test_no_lane_waits_for_a_process_that_could_not_be_started(fail: Any) -> None:
    no_limits = child_process.Limits(None, None)
    process = AwaitingProcess(None, WELCOME, child_process.program_of(zoo.awaited), no_limits, lanes_count=2)
    chunk: Any = None  # which none of them comes to
    with pytest.MonkeyPatch.context() as patch:
        fail(patch)
        for number in range(2):
            with pytest.raises((BlockingIOError, RuntimeError, UsageError)):
                process.begin(number, chunk)
    assert multiprocessing.active_children() == []
    for lane in process.lanes:
        lane.prepare()
        lane.close()


def test_process_that_takes_too_much_memory_is_killed(queue: opsq.Queue, tmp_path: Path) -> None:
    submission = queue.submit([b"hog %s" % bytes(tmp_path / "pid"), b"pid"], on_dead="keep", max_attempts=1)
    assert run(queue, concurrency=1, max_memory_bytes=256 << 20) == Tally(1, 1, 0)
    [dead] = submission.dead()
    assert dead.reason == "The function used more than 256M of memory, so its process was killed."


@pytest.mark.parametrize("f", [zoo.awaited, zoo.obedient])
def test_call_that_a_death_has_cut_off_keeps_its_lease_until_it_would_have_timed_out(
    queue: opsq.Queue, f: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    submission = queue.submit([b"kill", b"x"], on_dead="keep", max_attempts=1)
    queue.limit("submission", concurrency=1)
    held: list[tuple[int, bool]] = []

    def hold(process: Any, began_at: float) -> None:
        limits = process._limits
        held.append((submission.state().reserved_count, limits.is_held))
        process._limits = limits._replace(max_runtime_s=0.0)  # the time is over
        original(process, began_at)
        process._limits = limits

    original = child_process.ChildProcess.hold
    monkeypatch.setattr(child_process.ChildProcess, "hold", hold)
    assert run(queue, f, lease_s=3600, max_runtime_s=1800) == Tally(1, 1, 0)
    assert held == [(1, True)]


def test_interrupt_of_the_function_gives_all_back_and_is_raised(queue: opsq.Queue) -> None:
    submission = queue.submit([b"hang", b"interrupt"])
    with pytest.raises(KeyboardInterrupt):
        run(queue)
    state = submission.state()
    assert (state.completed_count, state.reserved_count, state.delayed_count) == (0, 0, 0)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_when_the_grace_is_over_coroutines_may_clean_up_and_their_chunks_are_given_back(
    settings: Settings, tmp_path: Path, script: Script, number: signal.Signals
) -> None:
    begun, cleaned = tmp_path / "begun", tmp_path / "cleaned"
    with opsq.connect(settings.socket) as queue:
        submission = queue.submit([b"clean %s %s" % (bytes(begun), bytes(cleaned)), b"hang"])
        program = script(PROGRAM, settings.socket, 0.1)
        worker = number_in(begun)
        os.killpg(program.pid, number)
        output, errors = program.communicate(timeout=DEADLINE_S)
        assert (program.returncode, output.strip(), errors) == (0, str(int(number)), "")
        assert cleaned.exists()
        assert not is_there(worker)
        assert (submission.state().reserved_count, submission.state().delayed_count) == (0, 0)


def test_no_process_outlives_a_consumer_that_is_killed(settings: Settings, tmp_path: Path, script: Script) -> None:
    begun, cleaned = tmp_path / "begun", tmp_path / "cleaned"
    with opsq.connect(settings.socket) as queue:
        queue.submit([b"clean %s %s" % (bytes(begun), bytes(cleaned))])
        program = script(PROGRAM, settings.socket, 3600)
        worker = number_in(begun)
        program.kill()
        program.communicate(timeout=DEADLINE_S)
        wait_until(lambda: not is_there(worker), DEADLINE_S, "the end of the worker")
        assert cleaned.exists()


@pytest.mark.parametrize(
    ("f", "options", "message"),
    [
        (zoo.nothing, {"mode": "processes", "concurrency": 2}, "concurrency is for coroutine functions"),
        (zoo.awaited, {"mode": "processes", "concurrency": 0}, "at least 1"),
        (zoo.awaited, {"mode": "threads", "concurrency": 2}, "which no thread awaits"),
    ],
)
def test_arguments_that_make_no_sense_are_refused(queue: opsq.Queue, f: Any, options: Any, message: str) -> None:
    with queue.consumer() as consumer, pytest.raises(UsageError, match=message):
        consumer.run_each_chunk(f, **options)


# --- a limit is used up -----------------------------------------------------------------------------------------------


def test_verdict_that_makes_room_for_a_job_that_waits_is_sent_at_once(
    queue: opsq.Queue, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Verdicts that nobody waits for may come together for a while; here that is for ever."""
    monkeypatch.setattr(verdict_sender, "FLUSH_S", 3600.0)
    queue.limit("service", concurrency=1)
    queue.submit([b"x"] * 5, metadata={"service": "x"})
    assert run(queue, concurrency=2) == Tally(5, 0, 0)


def test_verdict_that_makes_room_is_sent_at_once_from_an_event_loop(
    settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(aio_sender, "FLUSH_S", 3600.0)

    async def f(chunk: Any) -> bytes:
        await asyncio.sleep(0.01)
        return b""

    async def work() -> Tally:
        async with opsq.connect_async(settings.socket) as queue:
            await queue.limit("service", concurrency=1)
            await queue.submit([b"x"] * 5, metadata={"service": "x"})
            async with queue.consumer() as consumer:
                return await consumer.run_each_chunk(f, concurrency=2)

    assert asyncio.run(asyncio.wait_for(work(), DEADLINE_S)) == Tally(5, 0, 0)


# --- programs ---------------------------------------------------------------------------------------------------------

PROGRAM = """
import sys, opsq
from worker_functions import awaited
async def mine(chunk): return await awaited(chunk)
if __name__ == "__main__":
    grace_s = float(sys.argv[2])
    with opsq.connect(sys.argv[1]) as queue, queue.consumer("OldestFirst") as consumer:
        print(consumer.run_each_chunk(
            mine, mode="processes", concurrency=5, until_empty=False, grace_s=grace_s, on_interrupt="return"
        ).stop_signal)
"""

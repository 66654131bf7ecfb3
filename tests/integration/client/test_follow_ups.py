"""Follow-ups in Python: with the completion of a chunk, from a loop, a function, a worker process and asyncio."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import opsq
import worker_functions
from daemons import running
from opsq.client.core.outcome import Tally
from opsq.content.manifest import INLINE_LIMIT_BYTES
from opsq.errors import UsageError
from opsq.traces import TraceContext, given

LARGE = b"x" * (INLINE_LIMIT_BYTES + 1)
TRACE = TraceContext("00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01")


@pytest.fixture
def queue(runtime_dir: Path) -> Iterator[opsq.Queue]:
    with opsq.Queue.open(runtime_dir) as queue:
        yield queue


def followers(queue: opsq.Queue, **metadata: int | str) -> list[opsq.Submission]:
    """The submissions with this metadata, oldest first."""
    found = list(queue.submissions(metadata=metadata))
    return [queue.submission(state.submission_id) for state in reversed(found)]


def contents(queue: opsq.Queue) -> list[bytes]:
    """What is left in the queue, worked off."""
    found = []
    for chunk in queue.consume("OldestFirst"):
        found.append(chunk.data)
        chunk.complete()
    return found


def test_chunk_is_completed_with_follow_ups(queue: opsq.Queue) -> None:
    submission = queue.submit([b"a"])
    with queue.consumer() as consumer:
        for chunk in consumer:
            then = [
                opsq.FollowUp([b"small", LARGE], metadata={"step": 2}, title="the next", priority=3),
                opsq.FollowUp(({"n": n} for n in range(5)), serialisation="json", operations_per_chunk=2),
            ]
            chunk.complete(b"A", then=then)
            break
    assert list(submission.results()) == [b"A"]
    [state] = queue.submissions(metadata={"step": 2})
    assert (state.chunks_count, state.title, state.priority) == (2, "the next", 3)
    assert contents(queue) == [b"small", LARGE, b'{"n":0}\n{"n":1}\n', b'{"n":2}\n{"n":3}\n', b'{"n":4}\n']


def test_follow_ups_prepared_before_are_taken_as_they_are(queue: opsq.Queue) -> None:
    queue.submit([b"a"])
    for chunk in queue.consume():
        chunk.complete(then=chunk.prepare([opsq.FollowUp([LARGE])]))
        break
    assert contents(queue) == [LARGE]


def test_mistake_in_a_follow_up_leaves_the_chunk_without_a_verdict(queue: opsq.Queue) -> None:
    queue.submit([b"a"])
    with pytest.raises(UsageError, match="on_dead"):
        opsq.FollowUp([b"a"], on_dead="other")  # type: ignore[arg-type]
    with pytest.raises(UsageError, match="ack"):
        opsq.FollowUp([b"a"], ack="replicated")
    for chunk in queue.consume():
        for then in (["text"], [opsq.FollowUp(["text"])], 7):
            with pytest.raises(UsageError):
                chunk.complete(then=then)  # type: ignore[arg-type]
        assert not chunk.has_verdict
        chunk.complete(then=[opsq.FollowUp([b"b"])])
        break
    assert contents(queue) == [b"b"]


def test_too_many_follow_ups_and_too_long_ones_are_refused(queue: opsq.Queue, monkeypatch: pytest.MonkeyPatch) -> None:
    queue.submit([b"a"])
    monkeypatch.setattr("opsq.client.core.follow_ups.FOLLOW_UPS_LIMIT", 3)
    for chunk in queue.consume():
        with pytest.raises(UsageError, match="may have 3"):
            chunk.complete(then=[opsq.FollowUp([b"b"])] * 4)
        with pytest.raises(UsageError, match="more than a frame"):
            chunk.complete(then=[opsq.FollowUp([b"b"], attachment=b"x" * (6 << 20))] * 3)
        chunk.complete()


def test_follow_up_that_the_daemon_refuses_fails_its_attempt_alone(queue: opsq.Queue) -> None:
    submission = queue.submit([b"a", b"b"], max_attempts=1, on_dead="keep")
    with queue.consumer(batch=2) as consumer:
        for chunk in consumer:
            metadata = {"submission": 1} if chunk.index == 0 else {"fine": 1}
            chunk.complete(then=[opsq.FollowUp([b"c"], metadata=metadata)])
            if chunk.index:
                break
    state = submission.wait()
    assert (state.completed_count, state.dead_count) == (1, 1)
    [dead] = submission.dead()
    assert dead.reason.startswith("Its follow-ups are refused: ")
    assert contents(queue) == [b"c"]


@pytest.mark.parametrize("mode", ["threads", "processes"])
def test_function_returns_follow_ups(queue: opsq.Queue, mode: Any) -> None:
    with given(TRACE):
        submission = queue.submit([b"small", LARGE])
    with queue.consumer(f"SelectOnly(submission={submission.id})") as consumer:
        assert consumer.run_each_chunk(worker_functions.followed, mode=mode) == Tally(2, 0, 0)
    assert list(submission.results()) == [b"small", LARGE]
    for index, content in enumerate([b"small", LARGE]):
        [follower] = followers(queue, of=index)
        with queue.consumer(f"SelectOnly(submission={follower.id})") as consumer:
            for chunk in consumer:
                assert (chunk.data, chunk.trace_context) == (content, TRACE)
                chunk.complete()
                break


@pytest.mark.parametrize("mode", ["threads", "processes"])
def test_mistake_in_what_a_function_returns_fails_the_attempt(
    queue: opsq.Queue, mode: Any, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.CRITICAL, "opsq")
    submission = queue.submit([b"a"], max_attempts=1)
    with queue.consumer() as consumer:
        assert consumer.run_each_chunk(worker_functions.followed_in_vain, mode=mode) == Tally(0, 1, 0)
    [dead] = submission.dead()
    assert "each must be bytes" in dead.reason


def test_operations_of_a_chunk_give_their_follow_ups_together(queue: opsq.Queue) -> None:
    submission = queue.submit([1, 2, 3], serialisation="json")

    def odd(number: int) -> Any:
        if number % 2:
            return opsq.Done(-number, [opsq.FollowUp([number], serialisation="json")])
        return -number

    with queue.consumer(f"SelectOnly(submission={submission.id})") as consumer:
        consumer.run_each_operation(odd, serialisation="json")
    assert list(submission.results()) == [b"-1\n-2\n-3\n"]
    assert contents(queue) == [b"1\n", b"3\n"]


def test_asyncio_has_follow_ups_awaited_and_in_threads(runtime_dir: Path) -> None:
    def in_thread(chunk: Any) -> opsq.Done:
        return opsq.Done(b"thread", [opsq.FollowUp([LARGE], metadata={"step": 3})])

    async def awaited(chunk: Any) -> opsq.Done:
        return opsq.Done(b"awaited", [opsq.FollowUp([await chunk.data()], metadata={"step": 4})])

    async def work(socket: str) -> None:
        async with opsq.connect_async(socket) as queue:
            first = await queue.submit([b"a"])
            async with queue.consumer() as consumer:
                async for chunk in consumer.chunks():
                    await chunk.complete(b"loop", then=[opsq.FollowUp([b"b"], metadata={"step": 2})])
                    break
            assert [result async for result in first.results()] == [b"loop"]
            for f, step in ((in_thread, 2), (awaited, 3)):
                async with queue.consumer(f"SelectOnly(step={step})") as consumer:
                    assert await consumer.run_each_chunk(f) == Tally(1, 0, 0)
            async with queue.consumer("SelectOnly(step=4)") as consumer:
                async for chunk in consumer.chunks():
                    assert await chunk.data() == LARGE
                    await chunk.complete()
                    break

    with running(runtime_dir) as settings:
        asyncio.run(asyncio.wait_for(work(str(settings.socket)), 180))

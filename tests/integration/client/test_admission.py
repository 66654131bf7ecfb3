"""Back-pressure as Python producers meet it: `NoRoom`, or `wait_for_room=`; blocking, asyncio and embedded."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

import opsq
from daemons import running
from opsq.client.sync.queue import Queue
from opsq.errors import NoRoom, UsageError
from opsq.queue.policy import Policy
from opsq.settings import Settings
from waiting import wait_until

LIMIT = 3
DEADLINE_S = 120.0
LARGE = [b"x" * 100_000] * LIMIT


@pytest.fixture(params=["daemon", "embedded"])
def queue(request: pytest.FixtureRequest, runtime_dir: Path) -> Iterator[Queue]:
    """A queue in which three chunks may be unfinished."""
    if request.param == "embedded":
        with Queue.open(runtime_dir / "e", policy=Policy(max_backlog_chunks=LIMIT)) as embedded:
            yield embedded
        return
    with (
        running(runtime_dir / "d", max_backlog_chunks=str(LIMIT)) as settings,
        opsq.connect(settings.socket) as connected,
    ):
        yield connected


def folders(queue: Queue) -> list[str]:
    return list(queue.contents.store.folders())


def complete_one(queue: Queue) -> None:
    for chunk in queue.consume("OldestFirst"):
        chunk.complete()
        return


def test_list_of_chunks_for_which_there_is_no_room_is_refused_before_it_is_written(queue: Queue) -> None:
    queue.submit([b"1"])
    with pytest.raises(NoRoom, match="3 more chunks: 1 are unfinished, and 3 may be"):
        queue.submit(LARGE)
    assert folders(queue) == []


def test_iterator_for_which_there_is_no_room_is_refused_and_leaves_nothing(queue: Queue) -> None:
    queue.submit([b"1"])
    with pytest.raises(NoRoom):
        queue.submit(iter(LARGE))
    assert folders(queue) == []


def test_producer_that_waits_gets_in_when_chunks_complete(queue: Queue) -> None:
    queue.submit([b"1", b"2", b"3"])
    made: list[opsq.Submission] = []
    thread = threading.Thread(target=lambda: made.append(queue.submit(LARGE[:2], wait_for_room=True)))
    thread.start()
    wait_until(lambda: queue.status().room_waiting_count == 1, DEADLINE_S, "the producer waits")
    complete_one(queue)
    assert not made
    complete_one(queue)
    thread.join(DEADLINE_S)
    assert made[0].state().chunks_count == 2


def test_producer_waits_no_longer_than_it_wants(queue: Queue) -> None:
    queue.submit([b"1", b"2", b"3"])
    with pytest.raises(NoRoom):
        queue.submit([b"4"], wait_for_room=0.1)
    with pytest.raises(NoRoom, match="4 chunks are more than the 3"):
        queue.submit([b"4"] * 4, wait_for_room=True)
    with pytest.raises(UsageError, match="wait_for_room"):
        queue.submit([b"4"], wait_for_room=-1)
    assert queue.status().room_waiting_count == 0


def test_asyncio_producer_waits_for_room_and_may_give_up(runtime_dir: Path) -> None:
    async def main(settings: Settings) -> None:
        async with opsq.connect_async(settings.socket) as queue:
            await queue.submit([b"1", b"2", b"3"])
            with pytest.raises(NoRoom):
                await queue.submit(LARGE)
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(0.2):
                    await queue.submit([b"4"], wait_for_room=True)
            assert (await queue.status()).room_waiting_count == 0
            waiting = asyncio.create_task(queue.submit(LARGE[:1], wait_for_room=DEADLINE_S))
            async for chunk in queue.consume():
                await chunk.complete()
                if waiting.done():
                    break
            assert (await waiting).is_new

    with running(runtime_dir / "d", max_backlog_chunks=str(LIMIT)) as settings:
        asyncio.run(main(settings))

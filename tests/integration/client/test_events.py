"""Events for programs: embedded, over a socket and awaited, with a cursor that survives a killed daemon."""

from __future__ import annotations

import asyncio
import threading
from itertools import islice
from pathlib import Path

import pytest

import opsq
from daemons import kill, running
from opsq.errors import UsageError


def test_embedded_queue_tells_what_happened_and_waits_for_more(runtime_dir: Path) -> None:
    with opsq.Queue.open(runtime_dir) as queue:
        assert list(queue.events()) == []
        done = queue.submit([b"a"])
        for chunk in queue.consume():
            chunk.complete()
        [event] = queue.events()
        assert (event.kind, event.submission_id) == ("completed", done.id)
        pausing = threading.Timer(0.1, queue.pause, [{"tenant": "a"}])
        pausing.start()
        [paused] = islice(queue.events(event.seq, follow=True, kinds=["paused"]), 1)
        assert (paused.kind, paused.metadata) == ("paused", {"tenant": "a"})
        pausing.join()
        assert list(queue.events(event.seq, since_at=event.at, kinds=["completed"])) == []
        assert [one.kind for one in queue.events(event.seq, since_at=event.at - 1)] == ["lost", "completed", "paused"]
        with pytest.raises(UsageError):
            queue.event_page(-1)


def test_follower_goes_on_when_its_daemon_was_killed(runtime_dir: Path) -> None:
    with running(runtime_dir) as settings, opsq.connect(settings.socket) as queue:
        queue.pause({"tenant": "a"})
        following = queue.events(follow=True)
        assert next(following).metadata == {"tenant": "a"}
        kill(settings)
        with running(runtime_dir):
            queue.pause({"tenant": "b"})
            assert next(following).metadata == {"tenant": "b"}


def test_events_are_awaited_under_the_same_names(runtime_dir: Path) -> None:
    async def work(address: str) -> None:
        async with opsq.connect_async(address) as queue:
            waiting = asyncio.create_task(queue.event_page(wait_s=None))
            await queue.pause({"tenant": "a"})
            page = await waiting
            assert [event.kind for event in page.events] == ["paused"]
            assert [event.seq async for event in queue.events()] == [page.next_since]
            assert (await queue.event_page(page.next_since, wait_s=0.01, since_at=page.next_at)).events == []
            assert [one.kind async for one in queue.events(page.next_since, since_at=1)] == ["lost", "paused"]

    with running(runtime_dir) as settings:
        asyncio.run(asyncio.wait_for(work(settings.socket), 180))

"""How long a daemon that is to stop waits for what is reserved."""

from __future__ import annotations

import asyncio

from opsq.daemon.stopping import Stopping


def test_second_request_can_only_shorten_the_wait() -> None:
    stopping = Stopping()
    assert not stopping.is_asked
    assert stopping.ask(1000.0)
    assert not stopping.ask(2000.0)
    assert 0 < stopping.left_s <= 1000
    assert not stopping.ask(10.0)
    assert 0 < stopping.left_s <= 10


def test_wait_ends_when_nothing_is_reserved_or_the_time_is_over() -> None:
    async def story() -> None:
        quiet, hurried = Stopping(), Stopping()
        quiet.ask(1000.0)
        hurried.ask(1000.0)
        quiet.note_quiet()
        await quiet.wait_for_quiet()
        hurried.ask(0.0)
        await hurried.wait_for_quiet()

    asyncio.run(asyncio.wait_for(story(), 30))

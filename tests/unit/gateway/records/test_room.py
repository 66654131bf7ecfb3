"""The room in a queue with a limit: when it is counted, and when reckoned."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from opsq.gateway.records import room
from opsq.gateway.records.queue_defaults import QueueDefaults
from opsq.gateway.records.room import FRESH_S, FULL_FRESH_S, Room


class _Counts:
    def __init__(self, backlog_count: int) -> None:
        self.value, self.backlog_count = "mail", backlog_count


class _Daemon:
    """Connections, queue, link and state of one, with some unfinished records."""

    def __init__(self) -> None:
        self.unfinished = self.asked_count = 0

    @property
    def link(self) -> _Daemon:
        return self

    @property
    def by(self) -> list[_Counts]:
        return [_Counts(self.unfinished)]

    async def queue(self) -> _Daemon:
        return self

    def next_id(self) -> int:
        return 1

    async def call(self, *_: object) -> _Daemon:
        self.asked_count += 1
        return self


@pytest.fixture
def daemon() -> _Daemon:
    return _Daemon()


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    now = [100.0]
    monkeypatch.setattr(room, "time", SimpleNamespace(monotonic=lambda: now[0]))
    return now


def takes(taker: Room, *counts: int) -> list[int | None]:
    async def story() -> list[int | None]:
        return [await taker.take("mail", count) for count in counts]

    return asyncio.run(story())


def of(daemon: _Daemon, limit: int | None) -> Room:
    connections: Any = daemon
    return Room(connections, lambda _: QueueDefaults(limit=limit))


def test_queue_without_a_limit_is_not_counted(daemon: _Daemon):
    assert takes(of(daemon, None), 5) == [None]
    assert daemon.asked_count == 0


def test_what_was_let_in_is_reckoned_until_the_count_is_old(daemon: _Daemon, clock: list[float]):
    taker, daemon.unfinished = of(daemon, 10), 3
    assert takes(taker, 2, 2, 2) == [2, 2, 2]
    assert daemon.asked_count == 1
    clock[0] += 2 * FRESH_S
    assert takes(taker, 2) == [2]  # the daemon says that there are three still
    assert daemon.asked_count == 2


def test_full_queue_is_counted_again_at_once_when_a_record_is_done(daemon: _Daemon, clock: list[float]):
    taker, daemon.unfinished = of(daemon, 10), 10
    assert takes(taker, 1) == [0]
    daemon.unfinished = 9
    taker.note_done()
    assert takes(taker, 1, 1, 1) == [1, 0, 0]
    assert daemon.asked_count == 2


def test_full_queue_is_counted_again_soon_but_not_for_each_record(daemon: _Daemon, clock: list[float]):
    taker, daemon.unfinished = of(daemon, 10), 10
    assert takes(taker, *[1] * 50) == [0] * 50
    assert daemon.asked_count == 1
    daemon.unfinished = 4
    clock[0] += 2 * FULL_FRESH_S
    assert takes(taker, 5, 5) == [5, 1]
    assert daemon.asked_count == 2

"""Silent connections are closed in parts, and others are served in between."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import cast

import pytest

from daemons import settings_of
from opsq.daemon import heartbeats
from opsq.daemon.heartbeats import Heartbeats
from opsq.daemon.session import Session


class Connection:
    """Notes when it was looked at."""

    def __init__(self, events: list[str], *, is_silent: bool) -> None:
        self._events, self._is_silent = events, is_silent

    def check(self, now_ns: int, silence_ns: int) -> bool:
        if self._is_silent:
            self._events.append("closed")
        return self._is_silent


def events_of(connections: list[Connection], events: list[str]) -> list[str]:
    """What happens when others wait for the loop meanwhile."""

    async def look() -> None:
        settings = settings_of(Path("/unused"), heartbeat_s="1s")
        beats = Heartbeats(settings, 0)
        beats.check(cast("list[Session]", connections), 10**9)
        while len([event for event in events if event == "closed"]) < sum(one._is_silent for one in connections):
            events.append("served")
            await asyncio.sleep(0)

    asyncio.run(look())
    return events


def test_others_are_served_while_very_many_are_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(heartbeats, "_CLOSED_AT_ONCE", 2)
    events: list[str] = []
    found = events_of([Connection(events, is_silent=True) for _ in range(5)], events)
    assert found == ["closed", "closed", "served", "closed", "closed", "served", "closed"]


def test_those_that_are_not_silent_are_looked_at_in_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(heartbeats, "_CLOSED_AT_ONCE", 2)
    events: list[str] = []
    found = events_of([Connection(events, is_silent=number < 2) for number in range(1000)], events)
    assert found == ["closed", "closed"]

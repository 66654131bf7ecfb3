"""A router over shards that only note what they are asked."""

from __future__ import annotations

from typing import Any

from opsq.client.shards.router import Router
from opsq.wire import messages as m
from unit.client.shards.fake_shards import FakeShards, FakeTimer, granted

NOW_MS = 5_000


class Routed:
    """A router over three shards, and what it says."""

    def __init__(self, *numbers: int) -> None:
        self.shards = FakeShards(*(numbers or (0, 1, 2)))
        self.said: list[Any] = []
        self.timers: list[FakeTimer] = []
        self.router = Router(
            self.shards,  # type: ignore[arg-type]
            self.said.append,
            lambda: NOW_MS,
            self._later,
        )

    def _later(self, _: float, call: Any) -> FakeTimer:
        self.timers.append(FakeTimer(call))
        return self.timers[-1]

    def take(self, request: Any) -> None:
        self.router.take(request)

    def give(self, shard: int, mask: int = 1, request_id: int = 90, lease_s: float | None = None) -> m.HeldChunks:
        """Have the client reserve chunks of a shard."""
        for one in self.shards:
            one.is_draining = one.number != shard
        self.take(m.Reserve(request_id, 64, lease_s=lease_s))
        self.shards[shard].answer(granted(shard, mask), m.Reserve)
        for one in self.shards:
            one.is_draining = False
        self.said.clear()
        return held(shard, mask)

    def lose(self, shard: int) -> None:
        self.shards[shard].is_away = True
        self.router.changed(self.shards[shard])  # type: ignore[arg-type]

    @property
    def asked(self) -> list[int]:
        return [shard.number for shard in self.shards if shard.questions]


def held(shard: int, mask: int = 1) -> m.HeldChunks:
    grant = granted(shard, mask).grants[0]
    return m.HeldChunks.of_grant(7, grant)


def done(shard: int, mask: int = 1) -> m.Completion:
    return m.Completion(held(shard, mask))

"""Shards that are simulated: the real `Parking` of many clients over them, on a clock that a simulation moves.

A shard here only grants, parks and cancels as the engine does: by rank, and of one rank the longest waiting. Each
message takes the same time on its way and is counted. Completions are counted, not sent.
"""

from __future__ import annotations

import functools
import heapq
import itertools
import random
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

from msgspec.structs import replace

from opsq.client.shards.parking import Parking
from opsq.wire.messages import Grant, Reply, Reserve, Reserved

Chunk = tuple[int, float]
"""Its shard, and when it came there."""


class Event:
    """What happens at an instant."""

    def __init__(self, call: Callable[[], None]) -> None:
        self._call: Callable[[], None] | None = call

    def happen(self) -> None:
        """Have it happen, unless it was cancelled."""
        if self._call is not None:
            self._call()

    def cancel(self) -> None:
        """Do not have it happen."""
        self._call = None


class Clock:
    """What happens when, in seconds."""

    def __init__(self) -> None:
        self.now_s = 0.0
        self._events: list[tuple[float, int, Event]] = []
        self._order = itertools.count()

    def later(self, seconds: float, call: Callable[[], None]) -> Event:
        """Call something in so many seconds."""
        event = Event(call)
        heapq.heappush(self._events, (self.now_s + seconds, next(self._order), event))
        return event

    def run(self, seconds: float) -> None:
        """Let so much time pass."""
        end_s = self.now_s + seconds
        while self._events and self._events[0][0] <= end_s:
            self.now_s, _, event = heapq.heappop(self._events)
            event.happen()
        self.now_s = end_s


class SimulatedShard:
    """A shard with chunks of one submission each."""

    hands_out = True

    def __init__(self, number: int, world: World) -> None:
        self.number = number
        self.name = str(number)
        self.is_away = False
        self.is_silent = False
        """Its machine is gone, and nobody knows yet."""
        self.holdings = self
        self._world = world
        self._free: deque[int] = deque()
        self._parked: list[tuple[int, int, int]] = []  # rank, order, request; those that were answered stay in it
        self._waiting: dict[int, Callable[[Reply], None]] = {}

    def granted(self, reply: Reserved) -> None:
        """What a client is given is noted by nobody."""

    @property
    def is_empty(self) -> bool:
        """Nothing is free."""
        return not self._free

    # --- as a router uses it ---

    def ask(self, request: Reserve, on_reply: Callable[[Reply], None], patience_s: float = 0.0) -> int:
        """Send a request; the answer comes later."""
        request_id = next(self._world.ids)
        self._world.send(lambda: self._arrived(request_id, request, on_reply))
        return request_id

    def cancel(self, request_id: int) -> None:
        """End a parked call; its last answer still comes."""
        self._world.send(lambda: self._cancelled(request_id))

    def give_back(self, reply: Reserved) -> None:
        """Release chunks that nobody was given."""
        self._world.given_back_count += 1
        self._world.messages_count += 1  # the answer
        self._world.send(lambda: self._released([grant.submission_id for grant in reply.grants]))

    # --- as the engine behaves ---

    def put(self, chunks: Sequence[int]) -> None:
        """Chunks are free from now on."""
        self._free += chunks
        self._serve()

    def _arrived(self, request_id: int, request: Reserve, on_reply: Callable[[Reply], None]) -> None:
        if self.is_silent:
            return
        if self._free:
            self._grant(on_reply)
        elif request.wait_s == 0:
            nothing = Reserved(0, waiting_count=len(self._waiting))
            self._world.send(lambda: on_reply(nothing))
        else:
            self._waiting[request_id] = on_reply
            heapq.heappush(self._parked, (request.rank, request_id, request_id))

    def _released(self, chunks: Sequence[int]) -> None:
        if not self.is_silent:
            self._free.extendleft(chunks)
            self._serve()

    def _serve(self) -> None:
        while self._free and self._parked:
            on_reply = self._waiting.pop(heapq.heappop(self._parked)[2], None)
            if on_reply is not None:
                self._grant(on_reply)

    def _grant(self, on_reply: Callable[[Reply], None]) -> None:
        chunk = self._free.popleft()
        reply = Reserved(0, 1, 60.0, [Grant(chunk, 0, 1, 0, chunk)])
        self._world.send(lambda: on_reply(reply))

    def _cancelled(self, request_id: int) -> None:
        on_reply = self._waiting.pop(request_id, None)
        if on_reply is not None and not self.is_silent:
            nothing = Reserved(0, waiting_count=len(self._waiting))
            self._world.send(lambda: on_reply(nothing))


class World:
    """Shards, and consumers over all of them that take one chunk a call.

    Args:
        shards_count: how many shards.
        consumers_count: how many, each a client of its own with one call.
        work_s: how long a consumer works on a chunk.
        way_s: how long a message takes.
    """

    def __init__(
        self, shards_count: int, consumers_count: int, *, work_s: float = 0.0, way_s: float = 0.0005, seed: int = 1
    ) -> None:
        self.clock = Clock()
        self.ids = itertools.count(1)
        self.random = random.Random(seed)
        self.messages_count = 0
        self.given_back_count = 0
        self.waits_s: list[float] = []
        """Of each chunk that a consumer was given, until it had it."""
        self._work_s = work_s
        self._way_s = way_s
        self._came: dict[int, Chunk] = {}
        self._all = [SimulatedShard(number, self) for number in range(shards_count)]
        random.seed(seed)  # the clients choose where they begin
        self.consumers = [_Consumer(self) for _ in range(consumers_count)]

    def __getitem__(self, number: int) -> SimulatedShard:
        return self._all[number]

    @property
    def served(self) -> list[SimulatedShard]:
        """The shards, as a client's `ShardSet` has them."""
        return self._all

    def note_owner(self, shard: SimulatedShard, submission_ids: Sequence[int]) -> None:
        """Nothing moves here."""

    def send(self, arrive: Callable[[], None]) -> None:
        """A message: it arrives later."""
        self.messages_count += 1
        self.clock.later(self._way_s, arrive)

    def park(self, consumers: Sequence[_Consumer] | None = None) -> None:
        """Have consumers ask for a chunk each, all unless told which, and let them wait where they wait."""
        for consumer in self.consumers if consumers is None else consumers:
            consumer.reserve()
        self.clock.run(0.1)

    def submit(self, shard: int, chunks_count: int = 1) -> None:
        """Chunks come to a shard now."""
        chunks = [next(self.ids) for _ in range(chunks_count)]
        self._came.update(dict.fromkeys(chunks, (shard, self.clock.now_s)))
        self._all[shard].put(chunks)

    def taken(self, chunk: int) -> SimulatedShard:
        """A consumer has got a chunk; returns its shard."""
        number, came_at = self._came.pop(chunk)
        self.waits_s.append(self.clock.now_s - came_at)
        return self._all[number]

    def work(self, then: Callable[[], None]) -> None:
        """A consumer works, and then completes."""
        self.clock.later(self._work_s, then)

    def forget(self) -> None:
        """Count from now on."""
        self.messages_count = self.given_back_count = 0
        self.waits_s.clear()


class _Consumer:
    """A client with one call at a time."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._parking = Parking(
            world,  # type: ignore[arg-type]  # as much of a ShardSet as it uses
            self._heard,
            lambda *_: None,
            world.clock.later,
        )
        self._ids = itertools.count(1)

    def reserve(self) -> None:
        """Ask for a chunk."""
        self._parking.reserve(Reserve(next(self._ids), 1, "OldestFirst", None))

    def _complete_and_reserve(self, shard: SimulatedShard) -> None:
        """Complete a chunk of a shard and ask for one: in one request if that shard may have more, as a router does."""
        request = Reserve(next(self._ids), 1, "OldestFirst", None)
        last: Any = shard
        if self._parking.may_stay(last):
            self._world.messages_count += 1  # the first of two answers
            whole = replace(request, wait_s=0.0)
            self._parking.reserve(request, last, lambda on_reply: shard.ask(whole, on_reply))
        else:
            self._world.messages_count += 2
            self._parking.reserve(request)

    def _heard(self, reply: Any) -> None:
        for grant in reply.grants:
            shard = self._world.taken(grant.submission_id)
            self._world.work(functools.partial(self._complete_and_reserve, shard))

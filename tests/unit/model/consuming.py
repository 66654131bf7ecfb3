"""The rules by which consumers act: they reserve, report, give back, hold on, and vanish.

Also late, twice and with forged tokens.
"""

from __future__ import annotations

from typing import NamedTuple

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import precondition, rule

from opsq.errors import OpsqError
from opsq.ids import FULL
from opsq.queue.engine import Peer
from opsq.wire import messages as m
from unit.model.driver import Driver, Waiting, refused, results_of
from unit.model.rig import Ticket
from unit.model.things import SECOND, Refusals

STRATEGIES = ["OldestFirst", "NewestFirst", "CustomPriority", "Random"]
EVERYTHING = 1_000_000

numbers = st.integers(0, 1 << 16)
times = st.sampled_from([0.5, 1.0, 2.0, 5.0, 11.0])
bits = st.integers(1, FULL)


class _Todo(NamedTuple):
    """A completion to be sent."""

    ticket: Ticket
    mask: int
    is_genuine: bool
    then: tuple[m.NewSubmission, ...] = ()


class Consuming(Driver):
    """The consumers' part of the state machine."""

    # --- consumers ---

    @rule()
    def connect(self) -> None:
        if len(self.peers) < 4:
            peer = self.rig.connect()
            self.peers.append(peer)
            self.model.heard[peer] = self.now.mono

    @precondition(lambda self: len(self.peers) > 1)
    @rule(number=numbers)
    def disconnect(self, number: int) -> None:
        peer = self.peers.pop(number % len(self.peers))
        for request_id in [request_id for request_id, call in self.waiting.items() if call.peer is peer]:
            if (
                request_id not in self.predicted
                and request_id not in self.promises
                and request_id not in self.flying_promises
            ):
                del self.waiting[request_id]
        self.model.disconnect(peer, self.now)
        self.rig.disconnect(peer)
        self.compare()

    @rule(
        peer=numbers,
        count=st.one_of(st.integers(1, 4), st.integers(1, 200), st.just(EVERYTHING)),
        strategy=st.sampled_from(STRATEGIES),
        wait_s=st.sampled_from([0.0, 0.0, None, 2.0, 5.0]),
        lease_s=st.sampled_from([None, None, 2.0, 30.0]),
        until_empty=st.booleans(),
    )
    def reserve(
        self, peer: int, count: int, strategy: str, wait_s: float | None, lease_s: float | None, until_empty: bool
    ) -> None:
        self._reserve(self._peer(peer), m.Reserve(next(self.rig.ids), count, strategy, wait_s, lease_s, until_empty))

    def _reserve(self, peer: Peer, request: m.Reserve) -> None:
        if self.model.is_full and request.wait_s == 0:
            with pytest.raises(OpsqError):
                self.send(peer, request)
            return
        self._wait(peer, request)
        self.send(peer, request)

    def _wait(self, peer: Peer, request: m.Reserve | m.CompleteAndReserve) -> None:
        deadline = self.now.mono + int(request.wait_s * SECOND) if request.wait_s is not None else None
        self.waiting[request.id] = Waiting(peer, request, deadline)

    @precondition(lambda self: self.waiting)
    @rule(number=numbers)
    def cancel_wait(self, number: int) -> None:
        request_id, call = list(self.waiting.items())[number % len(self.waiting)]
        if request_id not in self.predicted and call.peer in self.model.heard and self._is_parked(request_id):
            call.deadline = self.now.mono
            self.model.is_full, was_full = True, self.model.is_full  # it gets nothing, whatever there is
            try:
                self.send(call.peer, m.CancelWait(request_id))
            finally:
                self.model.is_full = was_full
            assert request_id not in self.waiting

    def _is_parked(self, request_id: int) -> bool:
        return request_id not in self.promises and request_id not in self.flying_promises

    @precondition(lambda self: self.tickets)
    @rule(
        peer=numbers,
        picks=st.lists(st.tuples(numbers, bits), min_size=1, max_size=3),
        has_results=st.booleans(),
        is_genuine=st.integers(0, 9),
        count=st.none() | st.integers(1, 70),
        strategy=st.sampled_from(STRATEGIES),
        wait_s=st.sampled_from([0.0, None]),
        followers=st.sampled_from([(), (), (), (1,), (0,), (3, 65)]),
    )
    def complete(
        self,
        peer: int,
        picks: list[tuple[int, int]],
        has_results: bool,
        is_genuine: int,
        count: int | None,
        strategy: str,
        wait_s: float | None,
        followers: tuple[int, ...],
    ) -> None:
        """Also late, twice, with a wrong token; with follow-ups; and with the next reserve in the same request."""
        sender = self._peer(peer)
        request_id = next(self.rig.ids)
        todo = [_Todo(self._ticket(number), mask, is_genuine > 0) for number, mask in picks]
        if followers and len(self.model.submissions) + len(self.model.coming) <= 6:
            todo = [self._followed(one, followers) for one in todo]
        completions = [
            m.Completion(
                self._held(ticket, mask, good),
                results_of(self._indexes(ticket, mask)) if has_results else m.msgspec.Raw(b"\xc0"),
                then=list(then),
            )
            for ticket, mask, good, then in todo
        ]
        request: m.Complete | m.CompleteAndReserve
        if count is None:
            request = m.Complete(request_id, completions)
        else:
            request = m.CompleteAndReserve(request_id, completions, count, strategy, wait_s)
        if self.model.is_full and any(one.then for one in todo):
            with pytest.raises(OpsqError):
                self.send(sender, request)
            return
        self._judge(sender, request, todo, {}, has_results)
        self.send(sender, request)

    def _followed(self, one: _Todo, counts: tuple[int, ...]) -> _Todo:
        """The same for the first of its chunks, with follow-ups of so many chunks."""
        indexes = self._indexes(one.ticket, one.mask)
        then = tuple(
            m.NewSubmission(self.rig.request_key(), count, max_attempts=2, max_lost=2, reservation_s=5.0)
            for count in counts
        )
        return one._replace(mask=1 << indexes[0] % 64, then=then) if indexes else one

    def _judge(
        self,
        peer: Peer,
        request: m.Complete | m.CompleteAndReserve,
        todo: list[_Todo],
        refusals: Refusals,
        has_results: bool,
    ) -> None:
        undecided = []
        for one in todo:
            indexes = self._indexes(one.ticket, one.mask)
            judged = self.model.complete(
                one.ticket, indexes, is_genuine=one.is_genuine, has_results=has_results, now=self.now
            )
            if judged is None:
                undecided.append(one)
                continue
            refusals |= judged
            if one.then and one.is_genuine and any(chunk.intent for chunk in self.model.named(one.ticket, indexes)):
                self.followers += one.then
        if undecided:
            self.promises[request.id] = None
            self.model.forming.after.append(lambda now: self._judge(peer, request, undecided, refusals, has_results))
            return
        self.promises.pop(request.id, None)
        self.predicted[request.id] = lambda reply: refused(reply) == refusals
        if isinstance(request, m.CompleteAndReserve):
            self.model.forming.following.append(lambda now: self._reserve_after(peer, request))

    def _reserve_after(self, peer: Peer, request: m.CompleteAndReserve) -> None:
        if peer not in self.model.heard:
            return
        if self.model.is_full and request.wait_s == 0:
            self.refused_as_full.add(request.id)
        else:
            self._wait(peer, request)

    @precondition(lambda self: self.tickets)
    @rule(
        peer=numbers,
        number=numbers,
        mask=bits,
        delay_s=st.none() | times | st.just(0.0),
        is_final=st.integers(0, 5),
        is_genuine=st.integers(0, 9),
    )
    def fail(self, peer: int, number: int, mask: int, delay_s: float | None, is_final: int, is_genuine: int) -> None:
        ticket = self._ticket(number)
        failure = m.Failure(self._held(ticket, mask, is_genuine > 0), "broken", delay_s=delay_s, is_final=is_final == 0)
        sender, request = self._peer(peer), m.Fail(next(self.rig.ids), [failure])
        self._fail(request, ticket, self._indexes(ticket, mask), is_genuine=is_genuine > 0)
        self.send(sender, request)

    def _fail(self, request: m.Fail, ticket: Ticket, indexes: list[int], *, is_genuine: bool) -> None:
        if not self.model.forming.has_room:
            self.promises[request.id] = None
            self.model.forming.after.append(lambda _: self._fail(request, ticket, indexes, is_genuine=is_genuine))
            return
        self.promises.pop(request.id, None)
        [failure] = request.failures
        refusals = self.model.fail(
            ticket,
            indexes,
            is_genuine=is_genuine,
            delay_s=failure.delay_s,
            is_final=failure.is_final,
            now=self.now,
        )
        self.predicted[request.id] = lambda reply: refused(reply) == refusals

    @precondition(lambda self: self.tickets)
    @rule(peer=numbers, number=numbers, mask=bits, is_genuine=st.integers(0, 9))
    def release(self, peer: int, number: int, mask: int, is_genuine: int) -> None:
        ticket = self._ticket(number)
        refusals = self.model.release(ticket, self._indexes(ticket, mask), is_genuine=is_genuine > 0)
        held = self._held(ticket, mask, is_genuine > 0)
        self._ask(self._peer(peer), m.Release(next(self.rig.ids), [held]), lambda reply: refused(reply) == refusals)

    @precondition(lambda self: self.tickets)
    @rule(peer=numbers, number=numbers, mask=bits, lease_s=st.none() | times, is_genuine=st.integers(0, 9))
    def extend(self, peer: int, number: int, mask: int, lease_s: float | None, is_genuine: int) -> None:
        ticket = self._ticket(number)
        request = m.Extend(next(self.rig.ids), [self._held(ticket, mask, is_genuine > 0)], lease_s)
        self._extend(request, ticket, self._indexes(ticket, mask), is_genuine=is_genuine > 0)
        self.send(self._peer(peer), request)

    def _extend(self, request: m.Extend, ticket: Ticket, indexes: list[int], *, is_genuine: bool) -> None:
        if self.model.must_wait(ticket, indexes):
            self.promises[request.id] = None
            self.model.forming.after.append(lambda now: self._extend(request, ticket, indexes, is_genuine=is_genuine))
            return
        self.promises.pop(request.id, None)
        refusals = self.model.extend(ticket, indexes, request.lease_s, is_genuine=is_genuine, now=self.now)
        self.predicted[request.id] = lambda reply: refused(reply) == refusals

    @precondition(lambda self: self.tickets)
    @rule(peer=numbers, number=numbers, mask=bits, lease_s=st.none() | times, is_genuine=st.integers(0, 9))
    def reclaim(self, peer: int, number: int, mask: int, lease_s: float | None, is_genuine: int) -> None:
        ticket = self._ticket(number)
        request = m.Reclaim(next(self.rig.ids), [self._held(ticket, mask, is_genuine > 0)], lease_s)
        sender = self._peer(peer)
        self._reclaim(sender, request, ticket, self._indexes(ticket, mask), is_genuine=is_genuine > 0)
        self.send(sender, request)

    def _reclaim(self, peer: Peer, request: m.Reclaim, ticket: Ticket, indexes: list[int], *, is_genuine: bool) -> None:
        begun = self.begun.pop(request.id, [])
        if self.model.must_wait(ticket, indexes):
            self.begun[request.id] = begun
            self.promises[request.id] = None
            self.model.forming.after.append(
                lambda now: self._reclaim(peer, request, ticket, indexes, is_genuine=is_genuine)
            )
            return
        self.promises.pop(request.id, None)
        refusals = self.model.reclaim(peer, ticket, indexes, request.lease_s, is_genuine=is_genuine, now=self.now)
        for started, those in begun:
            self.model.start(peer, started, those)
        self.predicted[request.id] = lambda reply: refused(reply) == refusals

    @precondition(lambda self: self.tickets)
    @rule(peer=numbers, number=numbers, mask=bits)
    def start(self, peer: int, number: int, mask: int) -> None:
        ticket, sender = self._ticket(number), self._peer(peer)
        indexes = self._indexes(ticket, mask)
        self.model.start(sender, ticket, indexes)
        for request_id, begun in self.begun.items():
            if self.owners[request_id] is sender:
                begun.append((ticket, indexes))
        chunks = m.ChunkMask(ticket.submission_id, ticket.block, self._held(ticket, mask, True).mask)
        self.send(sender, m.Started([chunks]))

    @rule(number=numbers)
    def heartbeat(self, number: int) -> None:
        self._see_missed_step()
        peer = self._peer(number)
        self.model.heard[peer] = self.now.mono
        self.rig.send(peer, m.Heartbeat(0))
        assert self.rig.replies(peer, 0) == [m.Alive(0)]
        self.compare()

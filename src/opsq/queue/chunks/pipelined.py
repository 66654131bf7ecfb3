"""Reserves that follow completions in one request: answered after the commit, a few in each turn of the event loop.

Decides who is next, and gives the chunks of a block to calls of one chunk; `reserve` does everything else. A client
that keeps many such calls under way works on the first answers while the others are made.
"""

from __future__ import annotations

from collections import deque

from opsq.clock import Now
from opsq.queue.chunks.reservations import Reservations
from opsq.queue.chunks.reserve import ReserveCalls
from opsq.queue.peer import Peer
from opsq.queue.state import EngineState
from opsq.wire.messages import CompleteAndReserve, Grant

TURN_CALLS = 32
"""Calls answered in one turn: a fraction of a millisecond."""


class Pipelined:
    """The calls whose completions are committed and that have not been answered yet, in order."""

    def __init__(self, state: EngineState, reserve_calls: ReserveCalls, reservations: Reservations) -> None:
        self._state = state
        self._reserve_calls = reserve_calls
        self._reservations = reservations
        self._calls: deque[tuple[Peer, CompleteAndReserve]] = deque()

    @property
    def has_turn(self) -> bool:
        """Whether there are more calls than one turn answers."""
        return bool(self._calls)

    def add(self, calls: list[tuple[Peer, CompleteAndReserve]]) -> None:
        """What these calls complete is committed."""
        self._calls += calls

    def serve(self, now: Now) -> None:
        """Answer the first calls."""
        left = TURN_CALLS
        while self._calls and left > 0:
            dealt = self._deal(left, now)
            if not dealt:
                self._reserve(*self._calls.popleft(), now)
            left -= dealt or 1

    def _reserve(self, peer: Peer, request: CompleteAndReserve, now: Now) -> None:
        if not peer.is_connected:
            return
        self._state.attempt(peer, request.id, lambda: self._reserve_calls.reserve(peer, request, now))

    def _deal(self, most: int, now: Now) -> int:
        """Give one chunk each to the first calls that are alike: of one connection and strategy, for one chunk.

        Returns:
            How many were answered; 0: the first call must go the long way.
        """
        state, descriptions = self._state, self._reserve_calls.descriptions
        peer, request = self._calls[0]
        front = self._reserve_calls.ready_front(peer, request)
        if front is None:
            return 0
        request_ids = self._alike(peer, request.strategy, most)
        dealt = 0
        while dealt < len(request_ids):
            found = front.next(state)
            if found is None:
                break
            submission, room = found
            parts = self._reservations.take_each(
                peer, submission, 1 if front.has_turns else min(len(request_ids) - dealt, room), now
            )
            if not parts:
                break
            front.served(state, len(parts), has_more=submission.may_have_more)
            for part in parts:
                grant = Grant(submission.id, part.work.index, part.granted, 0, part.mac)
                reply = descriptions.reserved(peer, request_ids[dealt], part.reservation, [grant])
                state.outbox.append((peer, reply))
                dealt += 1
        for _ in range(dealt):
            self._calls.popleft()
        state.has_granted |= dealt > 0
        return dealt

    def _alike(self, peer: Peer, strategy: str, most: int) -> list[int]:
        """The ids of the first calls that can be answered like the very first, up to `most`."""
        request_ids: list[int] = []
        for other, request in self._calls:
            if other is not peer or request.strategy != strategy or request.count != 1 or request.lease_s is not None:
                break
            request_ids.append(request.id)
            if len(request_ids) == most:
                break
        return request_ids

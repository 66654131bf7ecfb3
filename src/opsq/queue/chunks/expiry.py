"""When reservations end by themselves: a connection is lost, heartbeats are missed, a lease expires.

Decides which of their chunks count as lost; what a loss means is decided in `fail`. One batch counts a bounded number
of them, and the next ones the rest, which its reservation holds until then; a crash in between leaves a lease expired.
"""

from __future__ import annotations

from collections import deque

from opsq.clock import MonoNs, Now
from opsq.queue.chunks.fail import Failures
from opsq.queue.chunks.reservations import Reservations
from opsq.queue.live_submission import Reservation
from opsq.queue.peer import Peer
from opsq.queue.state import EngineState
from opsq.wire.messages import ChunkMask, Revoked

_DISCONNECTED = "the connection of the consumer was lost"
_EXPIRED = "the reservation expired"


class Expiry:
    """Ends reservations."""

    def __init__(self, state: EngineState, reservations: Reservations, failures: Failures) -> None:
        self._state = state
        self._reservations = reservations
        self._failures = failures
        self._hold_until: MonoNs = state.now.mono
        self._ended: deque[Reservation] = deque()
        """Of which chunks are still to be counted as lost, unless they have been reclaimed."""

    def disconnect(self, peer: Peer, now: Now) -> None:
        """A connection is gone: what it had started is lost, the rest is free at once. Leases stay."""
        for reservation in self._reservations.of_peer(peer):
            reservation.peer = None
            if not reservation.is_lease:
                self._leave(reservation, now)
        peer.reservation_ids.clear()

    def _leave(self, reservation: Reservation, now: Now) -> None:
        """Nobody holds a reservation any more: free what was not started, and count what was as lost."""
        self._give_back_waiting(reservation)
        self._end(reservation, _DISCONNECTED)
        self._lose(now)

    def _give_back_waiting(self, reservation: Reservation) -> None:
        """Free what was not started."""
        for part in list(reservation.parts.values()):
            waiting = part.mask & ~(part.work.settling | part.started)
            if waiting:
                self._reservations.give_back_part(part, waiting)

    def _end(self, reservation: Reservation, reason: str) -> None:
        """Have all that a reservation still holds counted as lost."""
        if not reservation.end_reason:
            reservation.end_reason = reason
            self._ended.append(reservation)

    def _lose(self, now: Now) -> None:
        """Count chunks of reservations that have ended as lost, as many as the batch has room for."""
        while self._ended:
            reservation = self._ended[0]
            reason = reservation.end_reason
            for part in list(reservation.parts.values()) if reason else ():
                mask = part.mask & ~part.work.settling
                if mask:
                    if not self._failures.has_room:
                        return
                    self._failures.lose(part, mask, reason, now)
            self._ended.popleft()

    def hold_by_connection(self, reservation: Reservation, now: Now) -> None:
        """A reservation is its connection's from now on; if that is gone already, nobody's."""
        reservation.is_lease = reservation.is_for_restart = reservation.is_taken_up = False
        longest = max(
            (part.submission.row.reservation_s for part in reservation.parts.values()),
            default=self._state.policy.reservation_s,
        )
        self._reservations.seal(reservation, longest, now)
        peer = reservation.peer
        if peer is not None and peer.is_connected:
            peer.reservation_ids[reservation.id] = None
        else:
            reservation.peer = None
            self._leave(reservation, now)

    def hold(self, until: MonoNs) -> None:
        """Postpone all expiries: the process itself was late, so consumers may have been alive all the time."""
        self._hold_until = max(self._hold_until, until)

    def tick(self, now: Now) -> None:
        """Let reservations expire whose deadline has come and that no heartbeat has extended, and go on with losses."""
        if now.mono >= self._hold_until:
            self._expire(now)
        self._lose(now)

    def _expire(self, now: Now) -> None:
        for reservation in self._reservations.take_expired(now):
            parts = reservation.parts.values()
            held = [
                ChunkMask(p.submission.id, p.work.index, mask) for p in parts if (mask := p.mask & ~p.work.settling)
            ]
            if reservation.peer is not None:
                reservation.peer.reservation_ids.pop(reservation.id, None)
                if held:
                    self._state.reply(reservation.peer, Revoked(held, "reservation_lost"))
            reservation.peer = None
            if reservation.is_for_restart:  # its consumer may have gone with the machine before it began with the rest
                self._give_back_waiting(reservation)
            self._end(reservation, _EXPIRED)

    @property
    def is_losing(self) -> bool:
        """Whether chunks of reservations that have ended are still to be counted as lost."""
        return bool(self._ended)

    def next_due(self) -> MonoNs | None:
        """When `tick` has something to do."""
        if self._ended and self._failures.has_room:
            return MonoNs(0)
        due = self._reservations.next_deadline()
        return None if due is None else max(due, self._hold_until)

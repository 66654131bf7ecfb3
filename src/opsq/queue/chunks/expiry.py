"""When reservations end by themselves: a connection is lost, heartbeats are missed, a lease expires.

Decides which of their chunks count as lost; what a loss means is decided in `fail`.
"""

from __future__ import annotations

from opsq.clock import MonoNs, Now
from opsq.queue.chunks.fail import Failures
from opsq.queue.chunks.reservations import Reservations
from opsq.queue.live_submission import Reservation
from opsq.queue.peer import Peer
from opsq.queue.state import EngineState
from opsq.wire.messages import ChunkMask, Revoked


class Expiry:
    """Ends reservations."""

    def __init__(self, state: EngineState, reservations: Reservations, failures: Failures) -> None:
        self._state = state
        self._reservations = reservations
        self._failures = failures
        self._hold_until: MonoNs = state.now.mono

    def disconnect(self, peer: Peer, now: Now) -> None:
        """A connection is gone: what it had started is lost, the rest is free at once. Leases stay."""
        for reservation in self._reservations.of_peer(peer):
            reservation.peer = None
            if not reservation.is_lease:
                self._lose(reservation, now, reason="the connection of the consumer was lost")
        peer.reservation_ids.clear()

    def _lose(self, reservation: Reservation, now: Now, *, reason: str, has_expired: bool = False) -> None:
        """Count what was started as lost, and free the rest; of a reservation that has expired, all was.

        Unless it is held over a restart: its consumer may have gone with the machine before it began with the rest.
        """
        is_all_lost = has_expired and not reservation.is_for_restart
        for part in list(reservation.parts.values()):
            mask = part.mask & ~part.work.settling
            lost = mask if is_all_lost else mask & part.started
            if lost:
                self._failures.lose(part, lost, reason, now)
            if mask & ~lost:
                self._reservations.give_back_part(part, mask & ~lost)

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
            self._lose(reservation, now, reason="the connection of the consumer was lost")

    def hold(self, until: MonoNs) -> None:
        """Postpone all expiries: the process itself was late, so consumers may have been alive all the time."""
        self._hold_until = max(self._hold_until, until)

    def tick(self, now: Now) -> None:
        """Let reservations expire whose deadline has come and that no heartbeat has extended."""
        if now.mono < self._hold_until:
            return
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
            self._lose(reservation, now, reason="the reservation expired", has_expired=True)

    def next_due(self) -> MonoNs | None:
        """When `tick` has something to do."""
        due = self._reservations.next_deadline()
        return None if due is None else max(due, self._hold_until)

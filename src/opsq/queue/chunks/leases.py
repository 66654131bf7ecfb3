"""Reservations that outlive a connection or the process: saved, restored, and reclaimed by their consumer.

Must not decide when one expires.
"""

from __future__ import annotations

from opsq.clock import Now, WallMs, after
from opsq.queue.chunks.expiry import Expiry
from opsq.queue.chunks.refusals import refusal
from opsq.queue.chunks.reservations import Reservations
from opsq.queue.live_submission import Part, Reservation
from opsq.queue.peer import Peer
from opsq.queue.state import EngineState
from opsq.store import backlog
from opsq.wire.messages import HeldChunks, Refusal


class Leases:
    """Saves, restores and hands over reservations."""

    def __init__(self, state: EngineState, reservations: Reservations, expiry: Expiry) -> None:
        self._state = state
        self._reservations = reservations
        self._expiry = expiry

    # --- reclaimed ---

    def reclaim(self, peer: Peer, held_list: list[HeldChunks], lease_s: float | None, now: Now) -> list[Refusal]:
        """A client that reconnects keeps what it held, except chunks that others have reserved since.

        A reservation that has ended begins again: as a lease of `lease_s` (0: as long as its submission says), or held
        by the connection (None).

        One that is gone again, because this had to wait, gets nothing.
        """
        refusals = []
        for held in held_list:
            is_owed = peer.is_connected and self._reservations.tokens.is_genuine(held)
            kept = self._take_up(peer, held, lease_s, now) if is_owed else 0
            if held.mask & ~kept:
                refusals.append(refusal(self._state, held, held.mask & ~kept, "reservation_lost"))
        return refusals

    def _take_up(self, peer: Peer, held: HeldChunks, lease_s: float | None, now: Now) -> int:
        state = self._state
        submission = state.submission(held.submission_id)
        if submission is None or not submission.is_open or held.block >= submission.blocks_count:
            return 0
        reservation = self._reservations.get(held.reservation_id)
        if reservation is not None and reservation.peer is not peer:
            self._move(reservation, peer, now)
        part = self._reservations.find(held)
        kept = held.mask & part.mask if part is not None else 0
        work = submission.block(state.reader, held.block)
        mask = held.mask & ~kept & (work.free | work.delayed)
        if mask:
            state.until_empty.note_free(submission)
            if reservation is None:
                again = Now(now.mono, WallMs(0))
                length_s = lease_s or submission.row.reservation_s
                reservation = Reservation(
                    held.reservation_id, peer.consumer, peer, length_s, again, now.mono, is_lease=lease_s is not None
                )
                self._reservations.enter(reservation)
                self._reservations.seal(reservation, reservation.length_s, now)
            submission.delayed_count -= (work.delayed & mask).bit_count()
            work.delayed &= ~mask
            self._reservations.hold(submission, work, mask)
            if part is None:
                part = Part(reservation, submission, work, held.granted, 0, held.attempt, held.mac)
            part.mask |= mask
            if reservation.is_lease:
                self._store_taken(part, mask)
        return kept | mask

    def _store_taken(self, part: Part, mask: int) -> None:
        """Have the batch write that a lease holds `mask` too; without its commit it does not."""

        def give_up(_: Now) -> None:
            self._reservations.free(part.submission, part.work, mask & part.mask)

        self._state.batch.leased[id(part)] = part
        self._state.batch.add(lambda _: None, give_up)

    def _move(self, reservation: Reservation, peer: Peer, now: Now) -> None:
        """A reservation gets a new connection.

        A lease stays one, unless it was made for a restart: then it will be one no more.
        """
        if reservation.peer is not None:
            reservation.peer.reservation_ids.pop(reservation.id, None)
        reservation.peer = peer
        reservation.consumer = peer.consumer
        reservation.end_reason = ""
        if not reservation.is_lease:
            self._expiry.hold_by_connection(reservation, now)
        elif reservation.is_for_restart:
            reservation.is_taken_up = True
            self._reservations.store_lease(reservation)
            self._state.batch.add(
                lambda now: self._settle_reclaimed(reservation, now),
                lambda now: self._cancel_reclaimed(reservation, now),
            )
        elif reservation.deadline <= now.mono:  # it has expired, but for chunks that were just being committed
            self._reservations.seal(reservation, reservation.length_s, now)
            self._reservations.store_lease(reservation)

    def _settle_reclaimed(self, reservation: Reservation, now: Now) -> None:
        if reservation.parts:
            self._expiry.hold_by_connection(reservation, now)

    def _cancel_reclaimed(self, reservation: Reservation, now: Now) -> None:
        """It is the lease that it was."""
        reservation.is_taken_up = False
        self._reservations.look_again(reservation, now)

    # --- over a restart ---

    def save(self, now: Now) -> None:
        """Turn what connections hold into leases, for the time of a restart."""
        for reservation in list(self._reservations.all()):
            if not reservation.is_lease and reservation.parts:
                if reservation.end_reason:
                    for part in reservation.parts.values():  # what is still to be lost will be, started or not
                        part.started |= part.mask & ~part.work.settling
                reservation.is_lease = reservation.is_for_restart = True
                self._reservations.seal(reservation, self._state.policy.restart_lease_s, now)
                self._reservations.store_lease(reservation)

    def restore(self, now: Now) -> None:
        """Restore the leases of the file: what remains of each is at least 0 and at most its full length."""
        for row in backlog.leases(self._state.reader):
            submission = self._state.submission(row.submission_id)
            work = (
                submission.block(self._state.reader, row.block)
                if submission is not None and submission.is_open
                else None
            )
            mask = row.mask & work.free if work is not None else 0
            if submission is None or work is None or not mask:
                self._state.batch.unleased.append((row.reservation_id, row.submission_id, row.block, row.granted))
                continue
            reservation = self._reservations.get(row.reservation_id)
            if reservation is None:
                remaining_s = min(max(row.deadline_at + self._state.missed_step_ms - now.wall, 0), row.length_ms) / 1000
                reservation = Reservation(
                    row.reservation_id,
                    row.consumer,
                    None,
                    row.length_ms / 1000,
                    Now(now.mono, WallMs(0)),
                    after(now.mono, remaining_s),
                    is_lease=True,
                    is_for_restart=bool(row.for_restart),
                )
                self._reservations.enter(reservation)
                self._reservations.set_alarm(reservation)
            mac = self._reservations.tokens.mac(submission.id, row.block, reservation.id, row.attempt, row.granted)
            started = row.started & mask if row.for_restart else 0
            Part(reservation, submission, work, row.granted, mask, row.attempt, mac, started)
            self._reservations.hold(submission, work, mask)

"""The table of reservations: which chunks are held, by whom, until when. Grants, extends, gives back.

What becomes of a chunk that is completed, failed or lost is decided in `complete` and `fail`; when a reservation ends
by itself, in `expiry`.
"""

from __future__ import annotations

from collections.abc import Iterator

from opsq.clock import MonoNs, Now, after
from opsq.ids import first_bits
from opsq.queue.chunks.attempts import split_by_attempt
from opsq.queue.chunks.refusals import refusal
from opsq.queue.chunks.reservation_tokens import ReservationTokens
from opsq.queue.live_submission import BlockWork, LiveSubmission, Part, Reservation
from opsq.queue.peer import Peer
from opsq.queue.state import EngineState
from opsq.queue.timers import Timers
from opsq.wire.messages import ChunkMask, HeldChunks, Refusal, Revoked

TOGETHER_NS = 10_000_000
"""Calls of one chunk that are answered within this time may share a reservation."""


class Reservations:
    """The table of reservations."""

    def __init__(self, state: EngineState) -> None:
        self._state = state
        self._by_id: dict[int, Reservation] = {}
        self._deadlines: Timers[int] = Timers()
        self._next_id = state.starts << 32
        self.tokens = ReservationTokens(state.reader)
        self._singles: dict[tuple[Peer, float], Reservation] = {}
        """What was opened for calls of one chunk that are being answered together, by connection and length."""

    # --- granting ---

    def open(self, peer: Peer, length_s: float, now: Now, *, is_lease: bool) -> Reservation:
        """Begin a reservation; `add` fills it."""
        self._next_id += 1
        reservation = Reservation(self._next_id, peer.consumer, peer, length_s, now, now.mono, is_lease)
        self.enter(reservation)
        return reservation

    def enter(self, reservation: Reservation) -> None:
        """Add a reservation to the table."""
        self._by_id[reservation.id] = reservation
        if reservation.peer is not None and not reservation.is_lease:
            reservation.peer.reservation_ids[reservation.id] = None

    def open_single(self, peer: Peer, length_s: float, now: Now) -> Reservation:
        """Begin a reservation of one chunk, or continue the one opened just now for the same connection and length.

        So what a pipelining client is handed out together is one reservation, and what it completes together one row of
        history a block.
        """
        singles = self._singles
        if singles:
            known = singles.get((peer, length_s))
            if (
                known is not None
                and known.parts
                and now.mono - known.granted_at.mono < TOGETHER_NS
                and known.is_like(peer, length_s)
            ):
                return known
        reservation = singles[peer, length_s] = self.open(peer, length_s, now, is_lease=False)
        return reservation

    @property
    def has_singles(self) -> bool:
        """Whether calls of one chunk are being answered together."""
        return bool(self._singles)

    def end_singles(self) -> None:
        """Such calls have been answered: the next begin a reservation of their own."""
        self._singles.clear()

    def add(self, reservation: Reservation, submission: LiveSubmission, work: BlockWork, mask: int) -> list[Part]:
        """Reserve free chunks of a block: one part for each attempt number among them. The caller tells the gates."""
        state = self._state
        work.reserved |= mask
        submission.reserved_count += mask.bit_count()
        attempts = work.attempts if work.attempts is not None else submission.attempts_of(state.reader, work)
        parts = []
        for attempt, hit in split_by_attempt(attempts, mask) if attempts else ((0, mask),):
            mac = self.tokens.mac(submission.id, work.index, reservation.id, attempt, hit)
            parts.append(Part(reservation, submission, work, hit, hit, attempt, mac))
        return parts

    def take_each(self, peer: Peer, submission: LiveSubmission, most: int, now: Now) -> list[Part]:
        """Reserve up to `most` chunks of one block, a part for each.

        None if its next block is not as plain as most are.
        """
        work = submission.next_block(self._state.reader)
        if work is None or work.attempts != ():
            return []
        length_s = submission.row.reservation_s
        reservation = self.open_single(peer, length_s, now)
        parts = self._add_each(reservation, submission, work, first_bits(work.free, most))
        self.seal(reservation, length_s, now)
        return parts

    def _add_each(self, reservation: Reservation, submission: LiveSubmission, work: BlockWork, mask: int) -> list[Part]:
        """Reserve free chunks of a block of which none has failed before: a part for each, in order."""
        state = self._state
        count = mask.bit_count()
        work.reserved |= mask
        submission.reserved_count += count
        state.gates.taken(submission, count)
        parts, mac = [], self.tokens.mac
        while mask:
            chunk = mask & -mask
            mask ^= chunk
            token = mac(submission.id, work.index, reservation.id, 0, chunk)
            parts.append(Part(reservation, submission, work, chunk, chunk, 0, token))
        return parts

    def hold(self, submission: LiveSubmission, work: BlockWork, mask: int) -> None:
        """Count chunks as reserved that a part holds again; nothing is granted by that."""
        work.reserved |= mask
        submission.reserved_count += mask.bit_count()
        self._state.gates.taken(submission, mask.bit_count(), is_grant=False)

    def seal(self, reservation: Reservation, length_s: float, now: Now) -> None:
        """The reservation is complete: set its deadline."""
        reservation.length_s = length_s
        reservation.deadline = after(now.mono, length_s)
        self.set_alarm(reservation)

    def set_alarm(self, reservation: Reservation) -> None:
        """Have the deadline looked at in time; one that was only moved on is looked at when it was due before."""
        alarm = reservation.alarm
        if alarm is None or reservation.deadline < alarm:
            if alarm is not None:
                self._stop_alarm(reservation)
            reservation.alarm = reservation.deadline
            self._deadlines.add(reservation.deadline, reservation.id)

    def look_again(self, reservation: Reservation, now: Now) -> None:
        """What an expired lease holds cannot be taken from it now: retry in a second."""
        reservation.end_reason = ""
        if reservation.alarm is None:
            reservation.alarm = after(now.mono, 1.0)
            self._deadlines.add(reservation.alarm, reservation.id)

    def take_expired(self, now: Now) -> Iterator[Reservation]:
        """The reservations whose deadline has come and that no heartbeat has extended."""
        for reservation_id in self._deadlines.take(now.mono):
            reservation = self._by_id.get(reservation_id)
            if reservation is None:
                continue
            reservation.alarm = None
            if reservation.peer is not None and not reservation.is_lease:
                reservation.deadline = max(reservation.deadline, after(reservation.peer.heard, reservation.length_s))
            if reservation.deadline > now.mono:
                self.set_alarm(reservation)
            else:
                yield reservation

    def next_deadline(self) -> MonoNs | None:
        """When `take_expired` has something to look at."""
        return self._deadlines.next_due()

    def _stop_alarm(self, reservation: Reservation) -> None:
        if reservation.alarm is not None:
            self._deadlines.discard(reservation.alarm, reservation.id)
            reservation.alarm = None

    # --- finding ---

    def find(self, held: HeldChunks) -> Part | None:
        """The part that a right token stands for, if the reservation still holds any of it and has not ended."""
        reservation = self._by_id.get(held.reservation_id)
        if reservation is None or reservation.end_reason:
            return None
        part = reservation.parts.get((held.submission_id, held.block, held.granted))
        return part if part is not None and part.mac == held.mac and part.attempt == held.attempt else None

    def is_settling(self, held_list: list[HeldChunks]) -> bool:
        """Whether something about any of these chunks is being committed."""
        for held in held_list:
            submission = self._state.live.get(held.submission_id)
            work = submission.blocks.get(held.block) if submission is not None else None
            if work is not None and work.settling & held.mask:
                return True
        return False

    def get(self, reservation_id: int) -> Reservation | None:
        """A reservation by its id."""
        return self._by_id.get(reservation_id)

    def of_peer(self, peer: Peer) -> list[Reservation]:
        """What a connection holds."""
        return [self._by_id[reservation_id] for reservation_id in peer.reservation_ids]

    def oldest(self) -> Reservation | None:
        """The reservation that has been held longest."""
        return next(iter(self._by_id.values()), None)

    def all(self) -> Iterator[Reservation]:
        """Every reservation, oldest first."""
        yield from self._by_id.values()

    # --- giving back ---

    def take(self, part: Part, mask: int) -> None:
        """A part holds `mask`, which is all its own, no more."""
        part.mask &= ~mask
        part.started &= ~mask
        if not part.mask:
            part.work.parts.remove(part)
            self._drop(part)
        self._given_back(part.submission, part.work, mask)

    def _given_back(self, submission: LiveSubmission, work: BlockWork, mask: int) -> None:
        """These chunks, which were reserved, are so no more."""
        count = mask.bit_count()
        work.reserved &= ~mask
        submission.reserved_count -= count
        self._state.gates.given_back(submission, count)

    def take_from_holders(
        self,
        submission: LiveSubmission,
        work: BlockWork,
        mask: int,
        *,
        code: str = "",
        spared: Reservation | None = None,
    ) -> None:
        """Nobody holds `mask` any more. With a `code`, holders other than `spared` are notified."""
        taken = 0
        kept: list[Part] = []
        for part in work.parts:
            hit = part.mask & mask
            if hit:
                taken |= hit
                reservation = part.reservation
                if code and reservation is not spared and reservation.peer is not None:
                    self._state.reply(reservation.peer, Revoked([ChunkMask(submission.id, work.index, hit)], code))
                part.mask &= ~hit
                part.started &= ~hit
                if not part.mask:
                    self._drop(part)
                    continue
            kept.append(part)
        if taken:
            work.parts = kept
            self._given_back(submission, work, taken)

    def _drop(self, part: Part) -> None:
        """Nothing is left of a part that its block knows no more."""
        reservation = part.reservation
        reservation.parts.pop((part.submission.id, part.work.index, part.granted), None)
        if not reservation.parts:
            self._stop_alarm(reservation)
            self._by_id.pop(reservation.id, None)
            if reservation.peer is not None:
                reservation.peer.reservation_ids.pop(reservation.id, None)

    def still_held(self, part: Part, mask: int) -> None:
        """The batch in which chunks would have left their holder is gone: they stay, if the holder is still there."""
        if part.reservation.peer is None and not part.reservation.is_lease:
            self.take_from_holders(part.submission, part.work, part.mask & mask)
        else:
            part.reservation.end_reason = ""
            self.set_alarm(part.reservation)  # one that has expired does so again

    def keep_held(self, submission: LiveSubmission, work: BlockWork, mask: int) -> None:
        """The batch that would have finished chunks is gone: holders keep them, the others are free."""
        work.settling &= ~mask
        for part in list(work.parts):
            if part.mask & mask:
                self.still_held(part, mask)
        self._state.give_back(submission, work)

    def store_lease(self, reservation: Reservation) -> None:
        """Have the batch write the rows of a reservation that is, or was, a lease."""
        self._state.batch.leased |= {id(part): part for part in reservation.parts.values()}

    def touch_leases(self, work: BlockWork, mask: int) -> None:
        """Chunks are settling: the rows of leases that hold them change with the batch."""
        for part in work.parts:
            if part.mask & mask and part.reservation.is_lease:
                self._state.batch.leased[id(part)] = part

    def release(self, held_list: list[HeldChunks], now: Now) -> list[Refusal]:
        """Give chunks back; counts no attempt. Leases give back with the commit, other reservations at once."""
        refusals = []
        for held in held_list:
            part = self.find(held)
            mask = held.mask & part.mask & ~part.work.settling if part is not None else 0
            if part is not None and mask:
                self.give_back_part(part, mask)
            if held.mask & ~mask:
                refusals.append(refusal(self._state, held, held.mask & ~mask, "reservation_lost"))
        return refusals

    def give_back_part(self, part: Part, mask: int) -> None:
        """Free chunks of a part: with the commit, if it is a lease."""
        if part.reservation.is_lease:
            part.work.settling |= mask
            self._state.batch.leased[id(part)] = part
            self._state.batch.add(
                lambda _: self._settle_given_back(part, mask), lambda _: self._cancel_given_back(part, mask)
            )
        else:
            self.free(part.submission, part.work, mask)

    def _settle_given_back(self, part: Part, mask: int) -> None:
        part.work.settling &= ~mask
        self.free(part.submission, part.work, mask)

    def _cancel_given_back(self, part: Part, mask: int) -> None:
        part.work.settling &= ~mask
        self.still_held(part, mask)
        self.free(part.submission, part.work, mask & ~part.mask)

    def free(self, submission: LiveSubmission, work: BlockWork, mask: int) -> None:
        """Take chunks from their holders and make them available again, now."""
        self.take_from_holders(submission, work, mask)
        self._state.give_back(submission, work)

    def release_consumer(self, consumer: str, now: Now) -> int:
        """Give back all that one consumer holds, leases included; the count of chunks."""
        count = 0
        for reservation in [r for r in self._by_id.values() if r.consumer == consumer]:
            given = self.give_back(reservation)
            if given and reservation.peer is not None:
                self._state.reply(reservation.peer, Revoked(given, "reservation_lost"))
            count += sum(chunk.mask.bit_count() for chunk in given)
        return count

    def give_back(self, reservation: Reservation) -> list[ChunkMask]:
        """Give back all that a reservation holds, without counting an attempt; what that was."""
        given = []
        for part in list(reservation.parts.values()):
            mask = part.mask & ~part.work.settling
            if mask:
                given.append(ChunkMask(part.submission.id, part.work.index, mask))
                self.give_back_part(part, mask)
        return given

    # --- keeping ---

    def start(self, peer: Peer, chunks: list[ChunkMask], now: Now) -> None:
        """Note that work on chunks has started, so that losing the peer counts against them."""
        for chunk in chunks:
            submission = self._state.live.get(chunk.submission_id)
            work = submission.blocks.get(chunk.block) if submission is not None else None
            for part in work.parts if work is not None else ():
                if part.reservation.peer is peer:
                    begun = part.mask & chunk.mask & ~part.started
                    if begun:
                        part.started |= begun
                        part.begun = (*part.begun, (now.mono, begun))
                        if part.reservation.is_for_restart:
                            self._store_started(part, begun)

    def _store_started(self, part: Part, mask: int) -> None:
        """Have the batch write what was started of what is held over a restart; without its commit it was not."""

        def give_up(_: Now) -> None:
            if part.reservation.is_for_restart:
                part.started &= ~mask

        self._state.batch.leased[id(part)] = part
        self._state.batch.add(lambda _: None, give_up)

    def extend(self, held_list: list[HeldChunks], lease_s: float | None, now: Now) -> list[Refusal]:
        """Move the deadline of the reservations that hold these chunks to `lease_s` (None: their length) from now.

        That is their length from then on, by which heartbeats move the deadline.
        """
        refusals = []
        for held in held_list:
            part = self.find(held)
            if part is None or held.mask & ~part.mask:
                refusals.append(refusal(self._state, held, held.mask, "reservation_lost"))
                continue
            reservation = part.reservation
            self.seal(reservation, lease_s if lease_s is not None else reservation.length_s, now)
            if reservation.is_lease:
                self.store_lease(reservation)
        return refusals

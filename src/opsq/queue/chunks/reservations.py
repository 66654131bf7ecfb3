"""Reservations: who holds which chunks until when, and the proof of it.

Owns `Reservation` and `Part` and the table of them; grants, gives back, extends, takes up again, lets expire. What becomes of a chunk that
is completed, failed or lost is decided in `outcomes`.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from opsq.clock import MonoNs, Now, WallMs, after
from opsq.ids import first_bits
from opsq.queue.chunks.live_submission import BlockWork, LiveSubmission, split_by_attempt
from opsq.queue.state import EngineState, Peer
from opsq.queue.timers import Timers
from opsq.store import backlog
from opsq.store.submissions import FINAL_STATES
from opsq.wire.messages import ChunkMask, Detail, HeldChunks, Refusal, Revoked

if TYPE_CHECKING:
    from opsq.queue.chunks.complete import Outcomes


TOGETHER_NS = 10_000_000
"""Calls of one chunk that are answered within this time may share a reservation."""


class Reservation:
    """What one call was handed out, or calls of one chunk that were answered together.

    Its deadline holds for all of it; a heartbeat of its peer moves it to the full length from then.
    """

    __slots__ = (
        "alarm",
        "consumer",
        "deadline",
        "granted_at",
        "id",
        "is_for_restart",
        "is_lease",
        "is_taken_up",
        "length_s",
        "parts",
        "peer",
    )

    def __init__(
        self, reservation_id: int, consumer: str, peer: Peer | None, length_s: float, now: Now, *, is_lease: bool
    ) -> None:
        self.id = reservation_id
        self.consumer = consumer
        self.peer = peer
        self.length_s = length_s
        self.is_lease = is_lease
        self.is_for_restart = False
        """A lease only because the daemon was ending; who takes it up again holds it by connection."""
        self.is_taken_up = False
        """That is being committed: its rows go."""
        self.granted_at = now
        """Taken up again, or restored: since then; its wall instant is 0, since nobody knows when it was granted."""
        self.deadline: MonoNs = now.mono
        self.alarm: MonoNs | None = None
        """When its deadline will be looked at; none is set once it has expired."""
        self.parts: dict[tuple[int, int, int], Part] = {}

    def is_like(self, peer: Peer, length_s: float) -> bool:
        """Whether nobody has taken it over or extended it since `peer` was given it."""
        return self.peer is peer and self.length_s == length_s

    def deadline_at(self, now: Now) -> int:
        """The deadline as a wall instant; what is stored of a lease."""
        return now.wall + max(self.deadline - now.mono, 0) // 1_000_000


class Part:
    """What a reservation holds of one block, at one attempt: `granted` at first, `mask` still."""

    __slots__ = ("attempt", "granted", "mac", "mask", "reservation", "started", "submission", "work")

    def __init__(
        self, reservation: Reservation, submission: LiveSubmission, work: BlockWork, mask: int, attempt: int, mac: int
    ) -> None:
        self.reservation = reservation
        self.submission = submission
        self.work = work
        self.granted = mask
        self.mask = mask
        self.attempt = attempt
        self.mac = mac
        self.started = 0

    @property
    def key(self) -> tuple[int, int, int]:
        """Names the part within its reservation."""
        return self.submission.id, self.work.index, self.granted

    @property
    def row_key(self) -> tuple[int, int, int, int]:
        """The primary key of its row, if it is leased."""
        return self.reservation.id, self.submission.id, self.work.index, self.granted


class Reservations:
    """The table of reservations."""

    def __init__(self, state: EngineState) -> None:
        self._state = state
        self._by_id: dict[int, Reservation] = {}
        self._deadlines: Timers[int] = Timers()
        self._next_id = state.starts << 32
        self.outcomes: Outcomes
        self._hold_until: MonoNs = state.now.mono

    # --- granting -----------------------------------------------------------------------------------------------------------------

    def open(self, peer: Peer, length_s: float, now: Now, *, is_lease: bool) -> Reservation:
        """Begin a reservation; `add` fills it."""
        self._next_id = reservation_id = self._next_id + 1
        reservation = self._by_id[reservation_id] = Reservation(
            reservation_id, peer.consumer, peer, length_s, now, is_lease=is_lease
        )
        if not is_lease:
            peer.reservations[reservation_id] = reservation
        return reservation

    def open_single(self, peer: Peer, length_s: float, now: Now) -> Reservation:
        """Begin a reservation of one chunk, or go on with the one begun just now for the same connection and length.

        So what a pipelining client is handed out together is one reservation, and what it completes together one row of history a block.
        """
        singles = self._state.singles
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

    def add(self, reservation: Reservation, submission: LiveSubmission, work: BlockWork, mask: int) -> list[Part]:
        """Reserve free chunks of a block: one part for each attempt number among them. The caller tells the gates."""
        state = self._state
        work.reserved |= mask
        submission.reserved_count += mask.bit_count()
        attempts = work.attempts if work.attempts is not None else submission.attempts_of(state.reader, work)
        parts = []
        for attempt, hit in split_by_attempt(attempts, mask) if attempts else ((0, mask),):
            mac = state.mac(submission.id, work.index, reservation.id, attempt, hit)
            part = Part(reservation, submission, work, hit, attempt, mac)
            reservation.parts[submission.id, work.index, hit] = part
            parts.append(part)
        work.parts += parts
        return parts

    def take_each(self, peer: Peer, submission: LiveSubmission, most: int, now: Now) -> list[Part]:
        """Reserve up to `most` chunks of one block, a part for each; none if its next block is not as plain as most are."""
        state = self._state
        found = submission.next_block(state.reader, now)
        if found is None:
            return []
        work, late = found
        for due, row in late:
            state.add_retry(due, submission, work, row)
        if work.attempts != ():
            return []
        length_s = submission.row.reservation_s
        reservation = self.open_single(peer, length_s, now)
        parts = self._add_each(reservation, submission, work, first_bits(work.free, most))
        self.seal(reservation, length_s, now)
        return parts

    def _add_each(self, reservation: Reservation, submission: LiveSubmission, work: BlockWork, mask: int) -> list[Part]:
        """Reserve free chunks of a block of which none was tried in vain: a part for each, in order."""
        state = self._state
        count = mask.bit_count()
        work.reserved |= mask
        submission.reserved_count += count
        state.gates.taken(submission, count)
        parts = []
        while mask:
            chunk = mask & -mask
            mask ^= chunk
            part = Part(
                reservation, submission, work, chunk, 0, state.mac(submission.id, work.index, reservation.id, 0, chunk)
            )
            reservation.parts[submission.id, work.index, chunk] = part
            parts.append(part)
        work.parts += parts
        return parts

    def seal(self, reservation: Reservation, length_s: float, now: Now) -> None:
        """The reservation is complete: set its deadline."""
        reservation.length_s = length_s
        reservation.deadline = after(now.mono, length_s)
        self._set_alarm(reservation)

    def _set_alarm(self, reservation: Reservation) -> None:
        """Have the deadline looked at in time; one that was only moved on is looked at when it was due before."""
        alarm = reservation.alarm
        if alarm is None or reservation.deadline < alarm:
            if alarm is not None:
                self._stop_alarm(reservation)
            reservation.alarm = reservation.deadline
            self._deadlines.add(reservation.deadline, reservation.id)

    def look_again(self, reservation: Reservation, now: Now) -> None:
        """What an expired lease holds cannot be taken from it now: look again in a second."""
        if reservation.alarm is None:
            reservation.alarm = after(now.mono, 1.0)
            self._deadlines.add(reservation.alarm, reservation.id)

    def _stop_alarm(self, reservation: Reservation) -> None:
        if reservation.alarm is not None:
            self._deadlines.discard(reservation.alarm, reservation.id)
            reservation.alarm = None

    # --- finding ------------------------------------------------------------------------------------------------------------------

    def find(self, held: HeldChunks) -> Part | None:
        """The part that a token stands for, if the reservation still holds any of it and the token is right."""
        reservation = self._by_id.get(held.reservation_id)
        if reservation is None:
            return None
        part = reservation.parts.get((held.submission_id, held.block, held.granted))
        return part if part is not None and part.mac == held.mac and part.attempt == held.attempt else None

    def is_genuine(self, held: HeldChunks) -> bool:
        """Whether the token was made by us for these chunks, however long ago."""
        if held.mask & ~held.granted:
            return False
        return held.mac == self._state.mac(
            held.submission_id, held.block, held.reservation_id, held.attempt, held.granted
        )

    def is_settling(self, held_list: list[HeldChunks]) -> bool:
        """Whether something about any of these chunks is being committed."""
        for held in held_list:
            submission = self._state.live.get(held.submission_id)
            work = submission.blocks.get(held.block) if submission is not None else None
            if work is not None and work.settling & held.mask:
                return True
        return False

    def refusal(self, held: HeldChunks, mask: int, code: str) -> Refusal:
        """Refuse something, with the present state."""
        cause, details = self._present_state(held)
        return Refusal(held.submission_id, held.block, mask, code, cause, details)

    def _present_state(self, held: HeldChunks) -> tuple[str, dict[str, Detail]]:
        submission = self._state.submission(held.submission_id)
        if submission is None:
            return "unknown_submission", {}
        if not submission.is_open:
            if submission.state in FINAL_STATES:
                return "submission_ended", {"state": submission.state}
            return "submission_scheduled" if submission.state == "scheduled" else "submission_finalizing", {}
        work = submission.blocks.get(held.block)
        if work is None:
            is_untouched = held.block >= submission.frontier
            pending = held.mask if is_untouched else backlog.pending(self._state.reader, submission.id, held.block)
            return "chunk_waiting" if pending & held.mask else "chunk_finished", {}
        if not work.unfinished & held.mask:
            return "chunk_finished", {}
        if work.delayed & held.mask:
            return "chunk_delayed", {}
        holders = sorted({part.reservation.consumer for part in work.parts if part.mask & held.mask})
        return ("chunk_reserved", {"holders": ", ".join(holders)}) if holders else ("chunk_waiting", {})

    def oldest(self) -> Reservation | None:
        """The reservation that has been held longest."""
        return next(iter(self._by_id.values()), None)

    def all(self) -> Iterator[Reservation]:
        """Every reservation, oldest first."""
        yield from self._by_id.values()

    # --- giving back --------------------------------------------------------------------------------------------------------------

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
        """Nobody holds `mask` any more. With a `code`, holders other than `spared` are told."""
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
                reservation.peer.reservations.pop(reservation.id, None)

    def still_held(self, part: Part, mask: int) -> None:
        """The batch in which chunks would have left their holder is gone: they stay, unless nobody is there to hold them."""
        if part.reservation.peer is None and not part.reservation.is_lease:
            self.take_from_holders(part.submission, part.work, part.mask & mask)
        else:
            self._set_alarm(part.reservation)  # one that has expired does so again

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
                self._give_back(part, mask)
            if held.mask & ~mask:
                refusals.append(self.refusal(held, held.mask & ~mask, "reservation_lost"))
        return refusals

    def _give_back(self, part: Part, mask: int) -> None:
        if part.reservation.is_lease:
            part.work.settling |= mask
            self._state.batch.leased[id(part)] = part
            self._state.batch.entries.append(_GivenBack(self, part, mask))
        else:
            self.free(part.submission, part.work, mask)

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
                self._give_back(part, mask)
        return given

    def disconnect(self, peer: Peer, now: Now) -> None:
        """A connection is gone: what it had started is lost, the rest is free at once. Leases stay."""
        self._state.consumers.pop(peer, None)
        for reservation in list(peer.reservations.values()):
            reservation.peer = None
            if not reservation.is_lease:
                self._lose(reservation, now, reason="the connection of the consumer was lost")
        peer.reservations.clear()

    def _lose(self, reservation: Reservation, now: Now, *, reason: str) -> None:
        for part in list(reservation.parts.values()):
            mask = part.mask & ~part.work.settling
            started = mask if reservation.is_lease else mask & part.started
            if started:
                self.outcomes.lose(part, started, reason, now)
            if mask & ~started:
                self.free(part.submission, part.work, mask & ~started)

    # --- keeping ------------------------------------------------------------------------------------------------------------------

    def start(self, peer: Peer, chunks: list[ChunkMask]) -> None:
        """Note that work on chunks has begun, so that losing the peer counts against them."""
        for chunk in chunks:
            submission = self._state.live.get(chunk.submission_id)
            work = submission.blocks.get(chunk.block) if submission is not None else None
            for part in work.parts if work is not None else ():
                if part.reservation.peer is peer:
                    part.started |= part.mask & chunk.mask

    def extend(self, held_list: list[HeldChunks], lease_s: float | None, now: Now) -> list[Refusal]:
        """Move the deadline of the reservations that hold these chunks to `lease_s` (None: their length) from now."""
        refusals = []
        for held in held_list:
            part = self.find(held)
            if part is None or held.mask & ~part.mask:
                refusals.append(self.refusal(held, held.mask, "reservation_lost"))
                continue
            reservation = part.reservation
            self.seal(reservation, lease_s if lease_s is not None else reservation.length_s, now)
            if reservation.is_lease:
                self._state.batch.leased |= {id(part): part for part in reservation.parts.values()}
        return refusals

    def reclaim(self, peer: Peer, held_list: list[HeldChunks], now: Now) -> list[Refusal]:
        """A client that reconnects goes on with what it holds: chunks that nobody else has got meanwhile are its own again."""
        refusals = []
        for held in held_list:
            kept = self._take_up(peer, held, now) if self.is_genuine(held) else 0
            if held.mask & ~kept:
                refusals.append(self.refusal(held, held.mask & ~kept, "reservation_lost"))
        return refusals

    def _take_up(self, peer: Peer, held: HeldChunks, now: Now) -> int:
        state = self._state
        submission = state.submission(held.submission_id)
        if submission is None or not submission.is_open or held.block >= submission.blocks_count:
            return 0
        reservation = self._by_id.get(held.reservation_id)
        if reservation is not None and reservation.peer is not peer:
            self._move(reservation, peer, now)
        part = self.find(held)
        kept = held.mask & part.mask if part is not None else 0
        work = submission.block(state.reader, held.block)
        mask = held.mask & ~kept & (work.free | work.delayed)
        if mask:
            state.until_empty.freed(submission)
            if reservation is None:
                again = Now(now.mono, WallMs(0))
                reservation = Reservation(
                    held.reservation_id, peer.consumer, peer, submission.row.reservation_s, again, is_lease=False
                )
                self._by_id[reservation.id] = peer.reservations[reservation.id] = reservation
                self.seal(reservation, reservation.length_s, now)
            submission.delayed_count -= (work.delayed & mask).bit_count()
            work.delayed &= ~mask
            work.reserved |= mask
            submission.reserved_count += mask.bit_count()
            state.gates.taken(submission, mask.bit_count(), is_grant=False)
            if part is None:
                part = Part(reservation, submission, work, held.granted, held.attempt, held.mac)
                part.mask = 0
                reservation.parts[part.key] = part
                work.parts.append(part)
            part.mask |= mask
            if reservation.is_lease:
                state.batch.leased[id(part)] = part
        return kept | mask

    def _move(self, reservation: Reservation, peer: Peer, now: Now) -> None:
        """A reservation gets a new connection. A lease stays one, unless it was made for a restart: then it will be one no more."""
        if reservation.peer is not None:
            reservation.peer.reservations.pop(reservation.id, None)
        reservation.peer = peer
        reservation.consumer = peer.consumer
        if not reservation.is_lease:
            self.hold_by_connection(reservation, now)
        elif reservation.is_for_restart:
            reservation.is_taken_up = True
            self._state.batch.leased |= {id(part): part for part in reservation.parts.values()}
            self._state.batch.entries.append(_TakenUp(self, reservation))
        elif reservation.deadline <= now.mono:  # it has expired, but for chunks that were just being committed
            self.seal(reservation, reservation.length_s, now)
            self._state.batch.leased |= {id(part): part for part in reservation.parts.values()}

    def hold_by_connection(self, reservation: Reservation, now: Now) -> None:
        """A reservation is its connection's from now on; if that is gone already, nobody's."""
        reservation.is_lease = reservation.is_for_restart = reservation.is_taken_up = False
        longest = max(
            (part.submission.row.reservation_s for part in reservation.parts.values()),
            default=self._state.policy.reservation_s,
        )
        self.seal(reservation, longest, now)
        peer = reservation.peer
        if peer is not None and peer.is_connected:
            peer.reservations[reservation.id] = reservation
        else:
            reservation.peer = None
            self._lose(reservation, now, reason="the connection of the consumer was lost")

    # --- time ---------------------------------------------------------------------------------------------------------------------

    def hold(self, until: MonoNs) -> None:
        """Postpone all expiries: the process itself was late, so consumers may have been alive all the time."""
        self._hold_until = max(self._hold_until, until)

    def tick(self, now: Now) -> None:
        """Let reservations expire whose deadline has come and that no heartbeat has extended."""
        if now.mono < self._hold_until:
            return
        for reservation_id in self._deadlines.take(now.mono):
            reservation = self._by_id.get(reservation_id)
            if reservation is None:
                continue
            reservation.alarm = None
            if reservation.peer is not None and not reservation.is_lease:
                reservation.deadline = max(reservation.deadline, after(reservation.peer.heard, reservation.length_s))
            if reservation.deadline > now.mono:
                self._set_alarm(reservation)
                continue
            parts = reservation.parts.values()
            held = [
                ChunkMask(p.submission.id, p.work.index, mask) for p in parts if (mask := p.mask & ~p.work.settling)
            ]
            if reservation.peer is not None:
                reservation.peer.reservations.pop(reservation.id, None)
                if held:
                    self._state.reply(reservation.peer, Revoked(held, "reservation_lost"))
            reservation.peer = None
            for part in parts:
                part.started = part.mask  # expiry counts as a loss: whoever sits on chunks for so long has started them
            self._lose(reservation, now, reason="the reservation expired")

    def next_due(self) -> MonoNs | None:
        """When `tick` has something to do."""
        due = self._deadlines.next_due()
        return None if due is None else max(due, self._hold_until)

    # --- leases over restarts -----------------------------------------------------------------------------------------------------

    def save(self, now: Now) -> None:
        """Turn what connections hold into leases, for the time of a restart."""
        for reservation in list(self._by_id.values()):
            if not reservation.is_lease and reservation.parts:
                reservation.is_lease = reservation.is_for_restart = True
                self.seal(reservation, self._state.policy.restart_lease_s, now)
                self._state.batch.leased |= {id(part): part for part in reservation.parts.values()}

    def restore(self, now: Now) -> None:
        """Take up the leases of the file: what remains of each lies between nothing and its full length."""
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
            reservation = self._by_id.get(row.reservation_id)
            if reservation is None:
                length_s = row.length_ms / 1000
                reservation = Reservation(
                    row.reservation_id, row.consumer, None, length_s, Now(now.mono, WallMs(0)), is_lease=True
                )
                remaining_s = min(max(row.deadline_at + self._state.missed_step_ms - now.wall, 0), row.length_ms) / 1000
                reservation.is_for_restart = bool(row.for_restart)
                reservation.deadline = after(now.mono, remaining_s)
                self._by_id[reservation.id] = reservation
                self._set_alarm(reservation)
            mac = self._state.mac(submission.id, row.block, reservation.id, row.attempt, row.granted)
            part = Part(reservation, submission, work, row.granted, row.attempt, mac)
            part.mask = mask
            reservation.parts[part.key] = part
            work.parts.append(part)
            work.reserved |= mask
            submission.reserved_count += mask.bit_count()
            self._state.gates.taken(submission, mask.bit_count(), is_grant=False)


class _GivenBack:
    """Leased chunks that are free once the row of the lease has changed."""

    __slots__ = ("_mask", "_part", "_reservations")

    def __init__(self, reservations: Reservations, part: Part, mask: int) -> None:
        self._reservations = reservations
        self._part = part
        self._mask = mask

    def settle(self, now: Now) -> None:
        self._part.work.settling &= ~self._mask
        self._reservations.free(self._part.submission, self._part.work, self._mask)

    def cancel(self, now: Now) -> None:
        self._part.work.settling &= ~self._mask
        self._reservations.still_held(self._part, self._mask)
        self._reservations.free(self._part.submission, self._part.work, self._mask & ~self._part.mask)


class _TakenUp:
    """A lease made for a restart that its consumer has taken up again."""

    __slots__ = ("_reservation", "_reservations")

    def __init__(self, reservations: Reservations, reservation: Reservation) -> None:
        self._reservations = reservations
        self._reservation = reservation

    def settle(self, now: Now) -> None:
        if self._reservation.parts:
            self._reservations.hold_by_connection(self._reservation, now)

    def cancel(self, now: Now) -> None:
        """It is the lease that it was."""
        self._reservation.is_taken_up = False
        self._reservations.look_again(self._reservation, now)

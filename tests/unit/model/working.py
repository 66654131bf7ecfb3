"""The model's half that hands chunks out and judges what consumers report: by loops over plain objects, chunk by chunk.

A change that waits for its commit is an intent: it is noted on its chunk at once, and made, or undone, when its batch
has ended.
"""

from __future__ import annotations

from collections.abc import Iterable

from opsq.clock import Now
from opsq.wire import messages as m
from unit.model.rig import Ticket
from unit.model.things import SECOND, Chunk, Intents, Leased, Refusals, Reservation, Submission


class Working:
    """Chunks and who holds them."""

    def __init__(self) -> None:
        self.submissions: dict[int, Submission] = {}
        self.forming = Intents()
        self.flying: Intents | None = None
        self.coming: dict[int, Submission] = {}  # not committed
        self.leases: dict[tuple[int, Ticket], Leased] = {}  # as the file has them
        self.heard: dict[object, int] = {}  # by connection
        self.ended: list[Reservation] = []
        self.is_full = False
        self.missed_step_ms = (
            0  # of the wall clock, which the engine has still to see, as the batch that was to move instants is gone
        )
        self.hold_until = 0
        self.last_tick = 0
        self._orders = 0

    # --- looking ---

    def chunks(self) -> Iterable[Chunk]:
        for submission in self.submissions.values():
            yield from submission.chunks

    def free(self) -> list[Chunk]:
        """What may be handed out, the oldest first."""
        return [chunk for _, submission in sorted(self.submissions.items()) for chunk in submission.free()]

    def expected(self, strategy: str, count: int) -> list[Chunk]:
        """What a call gets, in order; of `Random` only how many."""
        free = self.free()
        if strategy == "NewestFirst":
            free.sort(key=lambda chunk: (-chunk.submission.id, chunk.index))
        elif strategy == "CustomPriority":
            free.sort(key=lambda chunk: (-chunk.submission.new.priority, chunk.submission.id, chunk.index))
        return free[:count]

    def reservations(self) -> dict[int, Reservation]:
        return {chunk.reservation.id: chunk.reservation for chunk in self.chunks() if chunk.reservation is not None}

    def held(self, ticket: Ticket, indexes: Iterable[int]) -> list[Chunk]:
        """The chunks that a ticket speaks of and still holds, if its reservation has not ended."""
        return [
            chunk
            for chunk in self.named(ticket, indexes)
            if chunk.ticket == ticket and chunk.reservation is not None and not chunk.reservation.is_ended
        ]

    def named(self, ticket: Ticket, indexes: Iterable[int]) -> list[Chunk]:
        submission = self.submissions.get(ticket.submission_id)
        return [submission.chunks[index] for index in indexes] if submission is not None else []

    def has_open(self) -> bool:
        """Whether anything may be handed out without a new submission."""
        return self.waiting.has_due() or any(one.state == "open" for one in self.submissions.values())

    # --- handing out ---

    def hand_out(
        self, chunks: dict[Ticket, list[Chunk]], reservation_id: int, peer: object, lease_s: float | None, now: Now
    ) -> Reservation:
        self._orders += 1
        found = [chunk for hit in chunks.values() for chunk in hit]
        length_s = lease_s if lease_s is not None else min(chunk.submission.new.reservation_s or 0 for chunk in found)
        reservation = self.reservations().get(reservation_id) or Reservation(
            reservation_id, peer, lease_s is not None, length_s, now.mono + int(length_s * SECOND), self._orders
        )
        for ticket, hit in chunks.items():
            reservation.add(ticket, hit, is_new=True)
        if lease_s is not None:

            def undo(now: Now) -> None:
                for chunk in self.chunks():
                    if chunk.reservation is reservation:
                        chunk.let_go()

            def settle(now: Now) -> None:
                if reservation.peer is not None and reservation.peer not in self.heard:  # nobody was told
                    self.release_all(reservation)

            self.forming.changes.append((settle, undo))
        return reservation

    # --- reports of consumers ---

    def complete(
        self, ticket: Ticket, indexes: list[int], *, is_genuine: bool, has_results: bool, now: Now
    ) -> Refusals | None:
        """Judge one completion; None: later."""
        chunks = self.named(ticket, indexes)
        if not is_genuine or not chunks:
            return self._lost(ticket, indexes)
        submission = chunks[0].submission
        if any(chunk.intent for chunk in chunks):
            return None
        finished = [chunk for chunk in chunks if chunk.state in {"done", "dead", "dropped"}]
        rest = [chunk for chunk in chunks if chunk not in finished]
        refusals = {
            (submission.id, chunk.index): "already_finished"
            for chunk in finished
            if chunk.state != "done" or chunk.done_by != ticket.reservation_id
        }
        if rest and (not submission.is_open or (finished and has_results)):
            return refusals | {(submission.id, chunk.index): "reservation_lost" for chunk in rest}
        for chunk in rest:
            self._intend(chunk, "done", ticket.reservation_id)
        if rest and not submission.unfinished():
            self.end(submission, "completed")
        return refusals

    def fail(
        self, ticket: Ticket, indexes: list[int], *, is_genuine: bool, delay_s: float | None, is_final: bool, now: Now
    ) -> Refusals:
        held = (
            [chunk for chunk in self.held(ticket, indexes) if not chunk.intent and chunk.submission.is_open]
            if is_genuine
            else []
        )
        self._count(held, delay_s=delay_s, is_final=is_final, is_loss=False, now=now)
        return self._lost(ticket, [index for index in indexes if index not in {chunk.index for chunk in held}])

    def lose(self, chunks: list[Chunk], now: Now) -> None:
        """Chunks of one ticket whose holder is gone, or late."""
        if chunks and chunks[0].submission.is_open:
            self._count(chunks, delay_s=0.0, is_final=False, is_loss=True, now=now)
        else:
            for chunk in chunks:
                if chunk.reservation is not None and chunk.reservation.is_lease:
                    chunk.reservation.is_ended = False
                    chunk.reservation.set_alarm(now.mono + SECOND)
                else:
                    chunk.let_go()

    def _count(self, chunks: list[Chunk], *, delay_s: float | None, is_final: bool, is_loss: bool, now: Now) -> None:
        deaths_count = 0
        for chunk in chunks:
            new = chunk.submission.new
            attempts, lost = chunk.attempts + (not is_loss), chunk.lost + is_loss
            if is_final or attempts >= (new.max_attempts or 0) or lost >= (new.max_lost or 0):
                self._intend(chunk, "dead")
                deaths_count += 1
            else:
                backoff = new.backoff or m.Backoff()
                wait_s = (
                    min(backoff.base_s * backoff.factor ** (attempts - 1), backoff.max_s)
                    if delay_s is None
                    else delay_s
                )
                self._intend_tried(chunk, attempts, lost, wait_s, now.wall)
        self.forming.tried_rows += (bool(chunks) if is_loss else len(chunks)) + 2 * deaths_count
        if deaths_count and not chunks[0].submission.new.keep_on_dead:
            self.end(chunks[0].submission, "failed")
        elif deaths_count and not chunks[0].submission.unfinished():
            self.end(chunks[0].submission, "completed")

    def release(self, ticket: Ticket, indexes: list[int], *, is_genuine: bool) -> Refusals:
        held = [chunk for chunk in self.held(ticket, indexes) if not chunk.intent] if is_genuine else []
        self._release(held)
        return self._lost(ticket, [index for index in indexes if index not in {chunk.index for chunk in held}])

    def release_all(self, reservation: Reservation) -> int:
        chunks = [chunk for chunk in self.chunks() if chunk.reservation is reservation and not chunk.intent]
        self._release(chunks)
        return len(chunks)

    def _release(self, chunks: list[Chunk]) -> None:
        for chunk in chunks:
            if chunk.reservation is not None and chunk.reservation.is_lease:
                self._intend(chunk, "released")
            else:
                chunk.let_go()

    def extend(
        self, ticket: Ticket, indexes: list[int], lease_s: float | None, *, is_genuine: bool, now: Now
    ) -> Refusals:
        held = self.held(ticket, indexes) if is_genuine else []
        if len(held) < len(indexes):
            return self._lost(ticket, indexes)
        reservation = held[0].reservation
        assert reservation is not None
        reservation.length_s = lease_s if lease_s is not None else reservation.length_s
        reservation.last_until(now.mono + int(reservation.length_s * SECOND))
        return {}

    def start(self, peer: object, ticket: Ticket, indexes: list[int]) -> None:
        for chunk in self.named(ticket, indexes):
            if chunk.reservation is not None and chunk.reservation.peer is peer and not chunk.is_started:
                chunk.is_started = True
                if chunk.reservation.is_for_restart:
                    self._may_not_have_started(chunk.reservation, chunk)

    def _may_not_have_started(self, reservation: Reservation, chunk: Chunk) -> None:
        """What was started of what is held over a restart is what the file says."""

        def undo(now: Now) -> None:
            if chunk.reservation is reservation and reservation.is_for_restart:
                chunk.is_started = False

        self.forming.changes.append((lambda now: None, undo))

    def start_all(self, reservation: Reservation) -> None:
        """What is still to be lost of a reservation that has ended will be after a restart, whether started or not."""
        for chunks in self._by_ticket(reservation):
            for chunk in chunks:
                chunk.is_started = True

    def must_wait(self, ticket: Ticket, indexes: list[int]) -> bool:
        return any(chunk.intent for chunk in self.named(ticket, indexes))

    def reclaim(
        self, peer: object, ticket: Ticket, indexes: list[int], lease_s: float | None, *, is_genuine: bool, now: Now
    ) -> Refusals:
        chunks = self.named(ticket, indexes)
        if peer not in self.heard or not is_genuine or not chunks or not chunks[0].submission.is_open:
            return self._lost(ticket, indexes)
        reservation = self.reservations().get(ticket.reservation_id)
        if reservation is not None and reservation.peer is not peer:
            reservation.peer, reservation.is_ended = peer, False
            if reservation.is_for_restart:
                self._take_up(reservation)
            elif not reservation.is_lease:
                self._hold_by_connection(reservation, now)
            elif reservation.deadline <= now.mono:
                reservation.last_until(now.mono + int(reservation.length_s * SECOND))
        taken = [chunk for chunk in chunks if chunk.state in {"free", "delayed"}]
        if taken and reservation is None:
            self._orders += 1
            length_s = lease_s or chunks[0].submission.new.reservation_s or 0
            reservation = Reservation(
                ticket.reservation_id,
                peer,
                lease_s is not None,
                length_s,
                now.mono + int(length_s * SECOND),
                self._orders,
            )
        if reservation is not None and taken:
            reservation.add(ticket, taken, is_new=not any(chunk.ticket == ticket for chunk in self.chunks()))
            if reservation.is_lease:
                self._may_be_given_up(reservation, taken)
        return self._lost(ticket, [chunk.index for chunk in chunks if chunk.ticket != ticket])

    def _may_be_given_up(self, reservation: Reservation, taken: list[Chunk]) -> None:
        """What a lease has taken up it holds only if that is committed."""

        def undo(now: Now) -> None:
            for chunk in taken:
                if chunk.reservation is reservation:
                    chunk.let_go()

        self.forming.changes.append((lambda now: None, undo))

    def _take_up(self, reservation: Reservation) -> None:
        """What was saved over a restart goes on under its consumer's new connection, once that is committed."""
        reservation.is_taken_up = True

        def settle(now: Now) -> None:
            if any(chunk.reservation is reservation for chunk in self.chunks()):
                self._hold_by_connection(reservation, now)

        def undo(now: Now) -> None:
            reservation.is_taken_up = False
            if reservation.is_ended:
                reservation.is_ended = False
                reservation.set_alarm(now.mono + SECOND)

        self.forming.changes.append((settle, undo))

    def _hold_by_connection(self, reservation: Reservation, now: Now) -> None:
        self._orders += 1
        lengths = [
            chunk.submission.new.reservation_s or 0 for chunk in self.chunks() if chunk.reservation is reservation
        ]
        reservation.is_lease = reservation.is_for_restart = reservation.is_taken_up = False
        reservation.order = self._orders
        reservation.length_s = max(lengths)
        reservation.last_until(now.mono + int(reservation.length_s * SECOND))
        if reservation.peer not in self.heard:
            self._leave(reservation, now)

    def disconnect(self, peer: object, now: Now) -> None:
        del self.heard[peer]
        mine = [
            reservation
            for reservation in self.reservations().values()
            if reservation.peer is peer and not reservation.is_lease
        ]
        for reservation in sorted(mine, key=lambda reservation: reservation.order):
            self._leave(reservation, now)

    def _leave(self, reservation: Reservation, now: Now) -> None:
        """The connection that held a reservation is gone: what was started will be lost, the rest is free."""
        reservation.peer = None
        self.release_waiting(reservation)
        self.end_reservation(reservation)
        self.lose_some(now)

    def release_waiting(self, reservation: Reservation) -> None:
        """What was not started is free."""
        for chunks in self._by_ticket(reservation):
            self._release([chunk for chunk in chunks if not chunk.is_started])

    def end_reservation(self, reservation: Reservation) -> None:
        """What it still holds will be lost."""
        if not reservation.is_ended:
            reservation.is_ended = True
            self.ended.append(reservation)

    def lose_some(self, now: Now) -> None:
        """What reservations held that have ended is lost, as much as the batch has room for."""
        while self.ended:
            is_ended = self.ended[0].is_ended  # one that cannot be lost now is so no more
            for chunks in self._by_ticket(self.ended[0]) if is_ended else ():
                if chunks and not self.forming.has_room:
                    return
                self.lose(chunks, now)
            del self.ended[0]

    def _by_ticket(self, reservation: Reservation) -> list[list[Chunk]]:
        """The chunks of a reservation about which nothing is being committed, by ticket."""
        found: dict[Ticket | None, list[Chunk]] = {ticket: [] for ticket in reservation.tickets}
        for chunk in self.chunks():
            if chunk.reservation is reservation and not chunk.intent:
                found[chunk.ticket].append(chunk)
        return list(found.values())

    # --- intents ---

    def _intend(self, chunk: Chunk, intent: str, done_by: int = 0) -> None:
        chunk.intent = intent

        def settle(now: Now) -> None:
            chunk.intent = ""
            if intent == "released":
                chunk.let_go()
            else:
                chunk.let_go()
                chunk.state, chunk.done_by = intent, done_by
                chunk.deaths += intent == "dead"

        self.forming.changes.append((settle, lambda now: self._undo(chunk)))

    def _intend_tried(self, chunk: Chunk, attempts: int, lost: int, delay_s: float, wall: int) -> None:
        chunk.intent = "tried"

        def settle(now: Now) -> None:
            chunk.intent = ""
            chunk.let_go()
            chunk.attempts, chunk.lost = attempts, lost
            chunk.delay_ms = int(delay_s * 1000)
            chunk.due_at = wall + chunk.delay_ms if delay_s else 0
            if delay_s and chunk.submission.is_open:
                chunk.state, chunk.due = "delayed", now.mono + int(delay_s * SECOND)

        self.forming.changes.append((settle, lambda now: self._undo(chunk)))

    def _undo(self, chunk: Chunk) -> None:
        chunk.intent = ""
        if chunk.reservation is not None and chunk.reservation.peer is None and not chunk.reservation.is_lease:
            chunk.let_go()
        elif chunk.reservation is not None:
            chunk.reservation.is_ended = False

    def _lost(self, ticket: Ticket, indexes: Iterable[int]) -> Refusals:
        return {(ticket.submission_id, index): "reservation_lost" for index in indexes}

"""What must come out of the engine, said as plainly as possible: one object a chunk, lists and loops, nothing clever.

The model never looks into the engine. A change that waits for its commit is an intent: it is noted on what it concerns at once, and made,
or undone, when the batch in which it travels has ended.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from opsq.clock import Now
from opsq.wire import messages as m
from unit.model.rig import Ticket

SECOND = 1_000_000_000
HEARTBEAT_S = 5.0
RESTART_LEASE_S = 30.0
FINAL = ("completed", "failed", "cancelled", "expired")


@dataclass(eq=False)
class Reservation:
    """What one reserve call got, or calls of one chunk that were answered together."""

    id: int
    peer: object | None
    is_lease: bool
    length_s: float
    deadline: int
    order: int
    is_for_restart: bool = False
    is_taken_up: bool = False  # a lease for a restart that will be its connection's once that is committed
    tickets: list[Ticket] = field(default_factory=list)  # in the order in which it got them

    def add(self, ticket: Ticket, chunks: list[Chunk], *, is_new: bool) -> None:
        """Hold chunks under a ticket."""
        if is_new:
            self.tickets = [*(other for other in self.tickets if other != ticket), ticket]
        for chunk in chunks:
            chunk.state, chunk.reservation, chunk.ticket = "reserved", self, ticket


@dataclass(eq=False)
class Chunk:
    """One chunk, and all there is to know of it."""

    submission: Submission
    index: int
    state: str = "free"  # free, reserved, delayed, done, dead, skipped
    reservation: Reservation | None = None
    ticket: Ticket | None = None
    is_started: bool = False
    attempts: int = 0
    lost: int = 0
    due: int = 0  # monotonic, while delayed
    due_at: int = 0  # the same as the file has it
    delay_ms: int = 0
    done_by: int = 0
    intent: str = ""  # done, dead, tried, released
    is_requeued: bool = False

    def __repr__(self) -> str:
        return f"<{self.submission.id}/{self.index} {self.state} {self.intent} {self.reservation and self.reservation.id}>"

    @property
    def is_free(self) -> bool:
        return self.state == "free" and not self.intent and self.submission.is_open

    def let_go(self) -> None:
        """Nobody holds the chunk any more."""
        self.reservation = self.ticket = None
        self.is_started = False
        if self.state == "reserved":
            self.state = "free"


@dataclass(eq=False)
class Submission:
    """One submission."""

    id: int
    new: m.NewSubmission
    state: str
    chunks: list[Chunk] = field(default_factory=list)
    is_closing: bool = False
    is_opening: bool = False
    is_reviving: bool = False
    not_before_at: int | None = None
    opens: int | None = None  # monotonic
    expires_at: int | None = None
    expires: int | None = None  # monotonic

    @property
    def is_open(self) -> bool:
        return self.state == "open" and not self.is_closing

    def unfinished(self) -> list[Chunk]:
        return [chunk for chunk in self.chunks if chunk.state not in {"done", "dead", "skipped"} and chunk.intent not in {"done", "dead"}]

    def count(self, *states: str) -> int:
        return sum(chunk.state in states for chunk in self.chunks)


@dataclass
class Intents:
    """What travels in one batch: how each change is made, and undone; and what is to be done right after."""

    changes: list[tuple[Callable[[Now], None], Callable[[Now], None]]] = field(default_factory=list)
    after: list[Callable[[Now], None]] = field(default_factory=list)
    following: list[Callable[[Now], None]] = field(default_factory=list)
    submitted: list[int] = field(default_factory=list)
    leases: dict[tuple[int, Ticket], frozenset[int]] = field(default_factory=dict)


Refusals = dict[tuple[int, int], str]


class Model:
    """Everything there is."""

    def __init__(self) -> None:
        self.submissions: dict[int, Submission] = {}
        self.forming = Intents()
        self.flying: Intents | None = None
        self.coming: dict[int, Submission] = {}  # not committed
        self.leases: dict[tuple[int, Ticket], frozenset[int]] = {}  # as the file has them
        self.heard: dict[object, int] = {}  # by connection
        self.is_full = False
        self.hold_until = 0
        self.last_tick = 0
        self._orders = 0

    # --- looking ------------------------------------------------------------------------------------------------------------------

    def chunks(self) -> Iterable[Chunk]:
        for submission in self.submissions.values():
            yield from submission.chunks

    def free(self) -> list[Chunk]:
        """What may be handed out, the oldest first."""
        return [chunk for _, submission in sorted(self.submissions.items()) for chunk in submission.chunks if chunk.is_free]

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
        """The chunks that a ticket speaks of and still holds."""
        return [chunk for chunk in self.named(ticket, indexes) if chunk.ticket == ticket]

    def named(self, ticket: Ticket, indexes: Iterable[int]) -> list[Chunk]:
        submission = self.submissions.get(ticket.submission_id)
        return [submission.chunks[index] for index in indexes] if submission is not None else []

    def has_open(self) -> bool:
        return any(submission.state == "open" for submission in self.submissions.values())

    # --- handing out --------------------------------------------------------------------------------------------------------------

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
                if peer not in self.heard:  # nobody was told
                    self.release_all(reservation)

            self.forming.changes.append((settle, undo))
        return reservation

    # --- reports of consumers -----------------------------------------------------------------------------------------------------

    def complete(self, ticket: Ticket, indexes: list[int], *, is_genuine: bool, has_results: bool, now: Now) -> Refusals | None:
        """Judge one completion; None: later."""
        chunks = self.named(ticket, indexes)
        if not is_genuine or not chunks:
            return self._lost(ticket, indexes)
        submission = chunks[0].submission
        if any(chunk.intent for chunk in chunks):
            return None
        finished = [chunk for chunk in chunks if chunk.state in {"done", "dead"}]
        rest = [chunk for chunk in chunks if chunk not in finished]
        refusals = {
            (submission.id, chunk.index): "already_finished"
            for chunk in finished
            if chunk.state == "dead" or chunk.done_by != ticket.reservation_id
        }
        if rest and (not submission.is_open or (finished and has_results)):
            return refusals | {(submission.id, chunk.index): "reservation_lost" for chunk in rest}
        for chunk in rest:
            self._intend(chunk, "done", ticket.reservation_id)
        if rest and not submission.unfinished():
            self.end(submission, "completed")
        return refusals

    def fail(self, ticket: Ticket, indexes: list[int], *, is_genuine: bool, delay_s: float | None, is_final: bool, now: Now) -> Refusals:
        held = [chunk for chunk in self.held(ticket, indexes) if not chunk.intent and chunk.submission.is_open] if is_genuine else []
        self._count(held, delay_s=delay_s, is_final=is_final, is_loss=False, now=now)
        return self._lost(ticket, [index for index in indexes if index not in {chunk.index for chunk in held}])

    def lose(self, chunks: list[Chunk], now: Now) -> None:
        """Chunks of one ticket whose holder is gone, or late."""
        if chunks and chunks[0].submission.is_open:
            self._count(chunks, delay_s=0.0, is_final=False, is_loss=True, now=now)
        else:
            for chunk in chunks:
                chunk.let_go()

    def _count(self, chunks: list[Chunk], *, delay_s: float | None, is_final: bool, is_loss: bool, now: Now) -> None:
        has_died = False
        for chunk in chunks:
            new = chunk.submission.new
            attempts, lost = chunk.attempts + (not is_loss), chunk.lost + is_loss
            if is_final or attempts >= (new.max_attempts or 0) or lost >= (new.max_lost or 0):
                self._intend(chunk, "dead")
                has_died = True
            else:
                backoff = new.backoff or m.Backoff()
                wait_s = min(backoff.base_s * backoff.factor ** (attempts - 1), backoff.max_s) if delay_s is None else delay_s
                self._intend_tried(chunk, attempts, lost, wait_s, now.wall)
        if has_died and not chunks[0].submission.new.keep_on_dead:
            self.end(chunks[0].submission, "failed")
        elif has_died and not chunks[0].submission.unfinished():
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

    def extend(self, ticket: Ticket, indexes: list[int], lease_s: float | None, *, is_genuine: bool, now: Now) -> Refusals:
        held = self.held(ticket, indexes) if is_genuine else []
        if len(held) < len(indexes):
            return self._lost(ticket, indexes)
        reservation = held[0].reservation
        assert reservation is not None
        reservation.length_s = lease_s if lease_s is not None else reservation.length_s
        reservation.deadline = now.mono + int(reservation.length_s * SECOND)
        return {}

    def start(self, peer: object, ticket: Ticket, indexes: list[int]) -> None:
        for chunk in self.named(ticket, indexes):
            if chunk.reservation is not None and chunk.reservation.peer is peer:
                chunk.is_started = True

    def must_wait(self, ticket: Ticket, indexes: list[int]) -> bool:
        return any(chunk.intent for chunk in self.named(ticket, indexes))

    def reassert(self, peer: object, ticket: Ticket, indexes: list[int], *, is_genuine: bool, now: Now) -> Refusals:
        chunks = self.named(ticket, indexes)
        if not is_genuine or not chunks or not chunks[0].submission.is_open:
            return self._lost(ticket, indexes)
        reservation = self.reservations().get(ticket.reservation_id)
        if reservation is not None and reservation.peer is not peer:
            reservation.peer = peer
            if reservation.is_for_restart:
                self._take_up(reservation)
            elif not reservation.is_lease:
                self._hold_by_connection(reservation, now)
        taken = [chunk for chunk in chunks if chunk.state in {"free", "delayed"}]
        if taken and reservation is None:
            self._orders += 1
            length_s = chunks[0].submission.new.reservation_s or 0
            reservation = Reservation(ticket.reservation_id, peer, False, length_s, now.mono + int(length_s * SECOND), self._orders)
        if reservation is not None and taken:
            reservation.add(ticket, taken, is_new=not any(chunk.ticket == ticket for chunk in self.chunks()))
        return self._lost(ticket, [chunk.index for chunk in chunks if chunk.ticket != ticket])

    def _take_up(self, reservation: Reservation) -> None:
        """What was saved over a restart goes on under its consumer's new connection, once that is committed."""
        reservation.is_taken_up = True

        def settle(now: Now) -> None:
            if any(chunk.reservation is reservation for chunk in self.chunks()):
                self._hold_by_connection(reservation, now)

        def undo(now: Now) -> None:
            reservation.is_taken_up = False

        self.forming.changes.append((settle, undo))

    def _hold_by_connection(self, reservation: Reservation, now: Now) -> None:
        self._orders += 1
        lengths = [chunk.submission.new.reservation_s or 0 for chunk in self.chunks() if chunk.reservation is reservation]
        reservation.is_lease = reservation.is_for_restart = reservation.is_taken_up = False
        reservation.order = self._orders
        reservation.length_s = max(lengths)
        reservation.deadline = now.mono + int(reservation.length_s * SECOND)
        if reservation.peer not in self.heard:
            self._lose_all(reservation, now)

    def disconnect(self, peer: object, now: Now) -> None:
        del self.heard[peer]
        mine = [reservation for reservation in self.reservations().values() if reservation.peer is peer and not reservation.is_lease]
        for reservation in sorted(mine, key=lambda reservation: reservation.order):
            reservation.peer = None
            self._lose_all(reservation, now)

    def _lose_all(self, reservation: Reservation, now: Now) -> None:
        """The connection that held a reservation is gone: what was started is lost, the rest is free."""
        for chunks in self._by_ticket(reservation):
            self.lose([chunk for chunk in chunks if chunk.is_started], now)
            for chunk in chunks:
                if not chunk.intent:
                    chunk.let_go()

    def _by_ticket(self, reservation: Reservation) -> list[list[Chunk]]:
        """The chunks of a reservation about which nothing is being committed, by ticket."""
        found: dict[Ticket | None, list[Chunk]] = {ticket: [] for ticket in reservation.tickets}
        for chunk in self.chunks():
            if chunk.reservation is reservation and not chunk.intent:
                found[chunk.ticket].append(chunk)
        return list(found.values())

    # --- submissions --------------------------------------------------------------------------------------------------------------

    def submit(self, new: m.NewSubmission, submission_id: int, now: Now) -> None:
        submission = Submission(submission_id, new, "open")
        submission.chunks = [Chunk(submission, index) for index in range(new.chunks_count)]
        submission.not_before_at = now.wall + int(new.delay_s * 1000) if new.delay_s is not None else new.not_before_at
        submission.expires_at = now.wall + int(new.expires_s * 1000) if new.expires_s is not None else new.expires_at
        if not new.chunks_count:
            submission.state = "completed"
        elif submission.not_before_at is not None and submission.not_before_at > now.wall:
            submission.state = "scheduled"
        self.coming[submission_id] = submission
        self.forming.submitted.append(submission_id)

        def settle(now: Now) -> None:
            self.submissions[submission_id] = submission
            self.coming.pop(submission_id, None)
            if new.delay_s is not None:
                submission.opens = now.mono + int(new.delay_s * SECOND)
            if new.expires_s is not None:
                submission.expires = now.mono + int(new.expires_s * SECOND)

        self.forming.changes.append((settle, lambda now: self._forget(submission_id)))

    def _forget(self, submission_id: int) -> None:
        del self.coming[submission_id]

    def end(self, submission: Submission, state: str) -> None:
        submission.is_closing = True

        def settle(now: Now) -> None:
            submission.state, submission.is_closing = state, False
            for chunk in submission.chunks:
                if chunk.state not in {"done", "dead"}:
                    chunk.let_go()
                    chunk.state = "skipped"

        def undo(now: Now) -> None:
            submission.is_closing = False
            if state == "expired" and submission.new.expires_s is not None:
                submission.expires = now.mono + SECOND

        self.forming.changes.append((settle, undo))

    def cancel(self, submission_id: int) -> int:
        submission = self.submissions[submission_id]
        if submission.state in FINAL or submission.is_closing:
            return 0
        self.end(submission, "cancelled")
        return 1

    def remove(self, submission_id: int) -> None:
        submission = self.submissions[submission_id]
        submission.is_closing = True

        def settle(now: Now) -> None:
            del self.submissions[submission_id]

        def undo(now: Now) -> None:
            submission.is_closing = False

        self.forming.changes.append((settle, undo))

    def requeue(self, submission_id: int, indexes: list[int] | None) -> int | str:
        """How many chunks are revived; or the code of the refusal."""
        submission = self.submissions.get(submission_id)
        if submission is None:
            return "not_found"
        if submission.is_closing:
            return "conflict"
        dead = [chunk for chunk in submission.chunks if chunk.state == "dead" and not chunk.is_requeued]
        if indexes is not None and set(indexes) - {chunk.index for chunk in dead}:
            return "conflict"
        again = [chunk for chunk in dead if indexes is None or chunk.index in indexes]
        skipped = [chunk for chunk in submission.chunks if chunk.state == "skipped"]
        if not again and not skipped:
            return 0
        is_final = submission.state in FINAL
        if is_final and submission.new.unique_key is not None and self.holder_of(submission.new.unique_key) is not None:
            return "conflict"
        submission.is_closing = submission.is_reviving = is_final
        for chunk in again:
            chunk.is_requeued = True

        def settle(now: Now) -> None:
            submission.is_reviving = False
            for chunk in again:
                chunk.is_requeued = False
                chunk.state, chunk.attempts, chunk.lost, chunk.due_at, chunk.delay_ms = "free", 0, 0, 0, 0
            if is_final:
                submission.state, submission.is_closing = "open", False
                submission.expires = submission.expires_at = None
                for chunk in skipped:
                    self._wake(chunk, now)

        def undo(now: Now) -> None:
            submission.is_closing = submission.is_reviving = False
            for chunk in again:
                chunk.is_requeued = False

        self.forming.changes.append((settle, undo))
        return len(again) + len(skipped)

    def holder_of(self, unique_key: str) -> int | None:
        """The unfinished submission with a unique key; also one whose end, or whose revival, is not committed yet."""
        for submission in [*self.submissions.values(), *self.coming.values()]:
            if submission.new.unique_key == unique_key and (submission.state not in FINAL or submission.is_reviving):
                return submission.id
        return None

    def known(self, new: m.NewSubmission) -> int | None:
        """The submission that this one would be a repetition of."""
        for submission in [*self.submissions.values(), *self.coming.values()]:
            if submission.new.request_key == new.request_key:
                return submission.id
        return self.holder_of(new.unique_key) if new.unique_key is not None else None

    # --- time ---------------------------------------------------------------------------------------------------------------------

    def tick(self, now: Now) -> None:
        if now.mono - self.last_tick > SECOND + HEARTBEAT_S / 2 * SECOND:
            self.hold_until = now.mono + int(HEARTBEAT_S * SECOND)
        self.last_tick = now.mono
        if not self.is_full:
            self._open_what_is_due(now)
            self._expire_submissions(now)
            if now.mono >= self.hold_until:
                self._expire_reservations(now)
        for chunk in self.chunks():
            if chunk.state == "delayed" and chunk.due <= now.mono:
                chunk.state = "free"

    def _open_what_is_due(self, now: Now) -> None:
        for submission in self.submissions.values():
            is_due = submission.opens <= now.mono if submission.opens is not None else (submission.not_before_at or 0) <= now.wall
            if submission.state == "scheduled" and is_due and not submission.is_opening:
                if submission.is_closing:
                    submission.opens = now.mono + SECOND if submission.opens is not None else None
                else:
                    self._open(submission)

    def _open(self, submission: Submission) -> None:
        submission.is_opening = True

        def settle(now: Now) -> None:
            submission.is_opening = False
            if submission.state == "scheduled":
                submission.state = "open"

        def undo(now: Now) -> None:
            submission.is_opening = False
            if submission.opens is not None:
                submission.opens = now.mono + SECOND

        self.forming.changes.append((settle, undo))

    def _expire_submissions(self, now: Now) -> None:
        for submission in self.submissions.values():
            if submission.state in FINAL or submission.expires_at is None:
                continue
            if submission.expires is not None:
                if submission.expires <= now.mono:
                    if submission.is_closing:
                        submission.expires = now.mono + SECOND
                    else:
                        self.end(submission, "expired")
            elif submission.expires_at <= now.wall and not submission.is_closing:
                self.end(submission, "expired")

    def _expire_reservations(self, now: Now) -> None:
        for reservation in sorted(self.reservations().values(), key=lambda reservation: (reservation.deadline, reservation.order)):
            if reservation.peer in self.heard and not reservation.is_lease:
                heard = self.heard[reservation.peer] + int(reservation.length_s * SECOND)
                reservation.deadline = max(reservation.deadline, heard)
            if reservation.deadline <= now.mono:
                reservation.peer = None
                for chunks in self._by_ticket(reservation):
                    self.lose(chunks, now)

    # --- batches --------------------------------------------------------------------------------------------------------------------

    def begin(self) -> None:
        self.flying, self.forming = self.forming, Intents()
        for chunk in self.chunks():
            is_leased = chunk.reservation is not None and chunk.reservation.is_lease and not chunk.reservation.is_taken_up
            if chunk.reservation is not None and is_leased and not chunk.intent and chunk.submission.is_open:
                assert chunk.ticket is not None
                place = (chunk.reservation.id, chunk.ticket)
                self.flying.leases[place] = self.flying.leases.get(place, frozenset()) | {chunk.index}

    def become_visible(self) -> None:
        """The COMMIT has ended, and the engine has not been told: walks see the new submissions already."""
        assert self.flying is not None
        for submission_id in self.flying.submitted:
            self.submissions[submission_id] = self.coming.pop(submission_id)

    def succeed(self, now: Now, *, had_rows: bool) -> list[Callable[[Now], None]]:
        """The batch is committed; what is to be done right after."""
        assert self.flying is not None
        flying, self.flying = self.flying, None
        if had_rows:
            self.leases = flying.leases
            self.is_full = False
        for settle, _ in flying.changes:
            settle(now)
        return flying.after + flying.following

    def fail_batch(self, now: Now) -> None:
        """The batch is gone, and with it all that came later."""
        assert self.flying is not None
        forming, self.forming = self.forming, Intents()
        flying, self.flying = self.flying, None
        for lost in (forming, flying):
            for _, undo in reversed(lost.changes):
                undo(now)
        self.is_full = True

    def restart(self, now: Now) -> None:
        """The process was killed: what is left is what was committed."""
        self.forming, self.flying, self.is_full = Intents(), None, False
        self.coming.clear()
        self.heard.clear()
        self.hold_until, self.last_tick = now.mono, now.mono
        for submission in self.submissions.values():
            submission.is_closing = submission.is_opening = submission.is_reviving = False
            if submission.new.delay_s is not None and submission.not_before_at is not None:
                submission.opens = now.mono + _rest(submission.not_before_at, submission.new.delay_s, now)
            if submission.new.expires_s is not None and submission.expires_at is not None:
                submission.expires = now.mono + _rest(submission.expires_at, submission.new.expires_s, now)
            for chunk in submission.chunks:
                chunk.intent, chunk.is_requeued = "", False
                chunk.let_go()
                if chunk.state in {"free", "delayed"}:
                    self._wake(chunk, now)

    def restore_lease(
        self, reservation_id: int, ticket: Ticket, indexes: frozenset[int], deadline_at: int, length_ms: int, now: Now, *, for_restart: bool
    ) -> None:
        """A lease that the file has goes on after a restart."""
        reservation = self.reservations().get(reservation_id)
        if reservation is None:
            self._orders += 1
            deadline = now.mono + min(max(deadline_at - now.wall, 0), length_ms) * 1_000_000
            reservation = Reservation(reservation_id, None, True, length_ms / 1000, deadline, self._orders, is_for_restart=for_restart)
        reservation.add(ticket, self.named(ticket, sorted(indexes)), is_new=True)

    def _wake(self, chunk: Chunk, now: Now) -> None:
        """A chunk is read from the file: its back-off goes on, for no longer than its full length."""
        rest_ms = min(max(chunk.due_at - now.wall, 0), chunk.delay_ms)
        chunk.state, chunk.due = ("delayed", now.mono + rest_ms * 1_000_000) if rest_ms else ("free", 0)

    # --- intents --------------------------------------------------------------------------------------------------------------------

    def _intend(self, chunk: Chunk, intent: str, done_by: int = 0) -> None:
        chunk.intent = intent

        def settle(now: Now) -> None:
            chunk.intent = ""
            if intent == "released":
                chunk.let_go()
            else:
                chunk.let_go()
                chunk.state, chunk.done_by = intent, done_by

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

    def _lost(self, ticket: Ticket, indexes: Iterable[int]) -> Refusals:
        return {(ticket.submission_id, index): "reservation_lost" for index in indexes}


def _rest(at: int, length_s: float, now: Now) -> int:
    """What remains of a duration after a restart, in nanoseconds: between nothing and all of it."""
    return min(max(at - now.wall, 0), int(length_s * 1000)) * 1_000_000

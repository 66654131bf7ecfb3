"""A batch: the intents of many requests that become facts together, in one transaction.

An entry is something that was validated and will be true once the commit has succeeded. Its rows are collected when it
is added; memory changes only in its `settle`, called after the commit, or its `cancel`, called when the whole batch is
gone.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple, Protocol

from msgspec import Raw

from opsq.clock import Now
from opsq.errors import OpsqError
from opsq.queue.live_submission import BlockWork, LiveSubmission, Part
from opsq.queue.peer import Peer
from opsq.store import backlog, events, history, lanes
from opsq.store.backlog import DeadRow, LeaseRow
from opsq.store.database import Database
from opsq.store.events import EventRow
from opsq.store.history import HistoryRow
from opsq.wire.messages import CompleteAndReserve, ErrorReply, Message, Reply


class Entry(Protocol):
    """A change of memory that waits for its commit."""

    def settle(self, now: Now) -> None:
        """The commit succeeded: the intent is a fact."""

    def cancel(self, now: Now) -> None:
        """The whole batch is gone: undo the intent."""


class Change(NamedTuple):
    """An entry made of two functions."""

    settle: Callable[[Now], None]
    cancel: Callable[[Now], None]


def nothing_to_undo(_: Now) -> None:
    """Cancel an entry that has changed nothing: it comes again, or its request is refused."""


class FoldSlice(Entry, Protocol):
    """Completions that this batch folds."""

    def apply(
        self, database: Database, count: Callable[[frozenset[int], tuple[int, int, int, int, int]], None]
    ) -> None:
        """Write the changed blocks, the frontiers and the counters."""


Again = tuple[Callable[[Peer, Any, Now], None], Peer, Any]
"""How a request is handled again after all that it had in a batch was cancelled: what handles it, whose it is, it."""


def acting(action: Callable[[Now], None]) -> Callable[[Peer, Any, Now], None]:
    """An action as what handles a request again."""
    return lambda _, __, now: action(now)


class Batch:
    """Intents in the order in which they came, and the rows that they will write."""

    def __init__(self) -> None:
        self.entries: list[Entry] = []
        self.history: list[HistoryRow] = []
        self.first_seq = 0
        """The seq of the first row of `written`, given when the batch begins."""
        self.written: list[HistoryRow] = []
        """All history that it has written, its own and what has arrived, in the order of their seqs."""
        self.events: list[EventRow] = []
        """What people are told; a statement may still change or take back one."""
        self.results: list[tuple[int, int, int, Raw]] = []
        self.dead: list[DeadRow] = []
        self.tried: dict[tuple[int, int], tuple[LiveSubmission, BlockWork]] = {}
        self.leased: dict[int, Part] = {}
        self.unleased: list[tuple[int, int, int, int]] = []
        self.lane_counts: dict[int, tuple[int, int, int, int, int]] = {}
        self.statements: list[Callable[[Database, Batch], None]] = []
        self.replies: list[tuple[Peer, Reply]] = []
        self.on_failed: list[Callable[[OpsqError], None]] = []
        self.again: list[Again] = []
        """The requests in it."""
        self.cause: Exception | None = None
        """What writing it has raised."""
        self.after: list[Callable[[Now], None]] = []
        self.following: list[tuple[Peer, CompleteAndReserve]] = []
        """Reserves to be answered after the commit."""
        self.accepted_count = 0
        """Chunks of the submissions in it."""
        self.started: dict[LiveSubmission, None] = {}
        """Submissions whose unique keys are free once this is committed."""
        self.fold: FoldSlice | None = None
        self.hidden_count = 0
        """Chunks that the counters of lanes get and nobody here works on; negative: those that somebody does now."""
        self.arrived: list[HistoryRow] = []
        """History of submissions that are moving here: that of their chunks is counted nowhere."""
        self.tried_rows = 0
        """How many rows it writes for chunks that have failed or are lost; those with long reasons count more."""
        self.told_count = 0
        """How many of those who wait for a submission it tells of its end."""
        self.spare_bytes = 0
        """On a full disk, roughly how much of what is spare its completions take."""
        self.forbids_fold = False
        """Set by an entry that writes `block` itself."""

    def add(
        self,
        settle: Callable[[Now], None],
        cancel: Callable[[Now], None],
        write: Callable[[Database, Batch], None] | None = None,
    ) -> None:
        """Add an entry, and the statement that writes its rows."""
        self.entries.append(Change(settle, cancel))
        if write is not None:
            self.statements.append(write)

    def __bool__(self) -> bool:
        return bool(
            self.entries
            or self.statements
            or self.history
            or self.events
            or self.replies
            or self.leased
            or self.unleased
            or self.after
            or self.lane_counts
        )

    @property
    def has_rows(self) -> bool:
        """Whether there is anything to write."""
        return bool(
            self.history
            or self.arrived
            or self.statements
            or self.leased
            or self.unleased
            or self.fold
            or self.lane_counts
            or self.events
        )

    def count(self, lane_ids: frozenset[int], delta: tuple[int, int, int, int, int]) -> None:
        """Add (submissions, total, completed, dead, skipped) to lane 0 and to these lanes."""
        for lane_id in (lanes.ALL, *lane_ids):
            s, t, c, d, k = self.lane_counts.get(lane_id, (0, 0, 0, 0, 0))
            self.lane_counts[lane_id] = (s + delta[0], t + delta[1], c + delta[2], d + delta[3], k + delta[4])

    def apply(self, database: Database, now: Now) -> None:
        """Write the rows; the caller has started the transaction and will commit it."""
        writer = database.writer
        for statement in self.statements:
            statement(database, self)
        self.written = [*self.history, *self.arrived]
        if self.written:
            history.append(writer, self.first_seq, self.written)
        if self.events:
            events.append(writer, self.events)
        if self.results:
            backlog.put_results(writer, self.results)
        if self.dead:
            backlog.put_dead(writer, self.dead)
        for (submission_id, block), (submission, work) in self.tried.items():
            submission.has_failed = True
            backlog.put_attempts(writer, submission_id, block, submission.attempts_of(database.reader, work))
        if self.leased:
            held = [(part, _leased_mask(part)) for part in self.leased.values()]
            backlog.delete_leases(writer, (part.row_key for part, mask in held if not mask))
            backlog.put_leases(writer, (_lease_row(part, mask, now) for part, mask in held if mask))
        if self.unleased:
            backlog.delete_leases(writer, self.unleased)
        if self.fold is not None:
            self.fold.apply(database, self.count)
        if self.lane_counts:
            lanes.add_counts(writer, ((*sums, lane_id) for lane_id, sums in self.lane_counts.items()))

    @property
    def next_seq(self) -> int:
        """What the first row of history gets that is written behind this batch."""
        return self.first_seq + len(self.written)

    @property
    def answers_count(self) -> int:
        """Grows with each request that this batch answers, or refuses if it fails."""
        return len(self.replies) + len(self.on_failed)

    def absorb(self, other: Batch) -> None:
        """Take over what another batch has written into the same transaction: both are committed, or neither."""
        self.entries += other.entries
        self.history += other.history
        self.arrived += other.arrived
        self.written += other.written
        self.hidden_count += other.hidden_count
        self.events += other.events
        self.statements += other.statements
        self.replies += other.replies
        self.on_failed += other.on_failed
        self.again += other.again
        self.after += other.after
        self.following += other.following
        self.accepted_count += other.accepted_count
        self.told_count, self.tried_rows = other.told_count, other.tried_rows
        for lane_id, sums in other.lane_counts.items():
            known = self.lane_counts.get(lane_id, (0, 0, 0, 0, 0))
            s, t, c, d, k = (mine + more for mine, more in zip(known, sums, strict=True))
            self.lane_counts[lane_id] = (s, t, c, d, k)

    def settle(self, now: Now) -> None:
        """The commit succeeded."""
        for entry in self.entries:
            entry.settle(now)
        if self.fold is not None:
            self.fold.settle(now)

    def cancel(self, error: OpsqError, now: Now) -> list[tuple[Peer, Reply]]:
        """The batch is gone; the replies that its requests get instead."""
        for entry in reversed(self.entries):
            entry.cancel(now)
        if self.fold is not None:
            self.fold.cancel(now)
        for refuse in self.on_failed:
            refuse(error)
        return [(peer, ErrorReply.of(request_id(reply), error)) for peer, reply in self.replies]


def request_id(message: Message) -> int:
    """The id that a reply repeats."""
    return int(getattr(message, "id", 0))


def _leased_mask(part: Part) -> int:
    """What of a part is under a lease once this batch is committed."""
    is_leased = part.reservation.is_lease and not part.reservation.is_taken_up
    return part.mask & ~part.work.settling if is_leased and part.submission.is_open else 0


def _lease_row(part: Part, mask: int, now: Now) -> LeaseRow:
    reservation = part.reservation
    return LeaseRow(
        reservation.id,
        part.submission.id,
        part.work.index,
        part.granted,
        mask,
        part.attempt,
        reservation.consumer,
        reservation.deadline_at(now),
        int(reservation.length_s * 1000),
        int(reservation.is_for_restart),
        part.started & mask,
    )

"""The work of one submission in memory: which of its chunks are free, and in what masks the others are busy.

Must not know strategies, connections or transactions. A block is in memory while anything about it is not plain: below
the cursor and free again, reserved, settling, finished but not folded, or waiting for a retry.
"""

from __future__ import annotations

import heapq
from typing import NamedTuple

import apsw
import msgspec

from opsq.clock import MonoNs, Now
from opsq.ids import SubmissionId, block_mask, blocks_of, from_sql
from opsq.queue.lane_set import LaneSet
from opsq.queue.peer import Peer
from opsq.store import backlog
from opsq.store.backlog import AttemptRow
from opsq.store.submissions import SubmissionRow
from opsq.wire.messages import Backoff

READ_BLOCKS = 64
"""Blocks read from the database at once while the cursor is below the frontier."""


_NOTHING: list[int] = []
"""Shared by all of which no block was read: a list of each would be one more for the collector to look at."""


class ChunkCounts(NamedTuple):
    """The chunks of a submission by what they are doing, as committed; together they are all of them."""

    waiting: int
    delayed: int
    reserved: int
    completed: int
    dead: int
    skipped: int


class BlockWork:
    """A block in memory.

    Masks: `pending` as stored (or implied by the frontier); `reserved` held by `parts`; `settling` in a commit that
    has not succeeded yet; `done` finished since the last fold; `delayed` waiting for a retry.
    """

    __slots__ = ("attempts", "delayed", "done", "index", "is_returned", "parts", "pending", "reserved", "settling")

    def __init__(self, index: int, pending: int) -> None:
        self.index = index
        self.pending = pending
        self.reserved = 0
        self.settling = 0
        self.done = 0
        self.delayed = 0
        self.is_returned = False
        """It is in the heap of its submission."""
        self.attempts: tuple[AttemptRow, ...] | None = ()
        self.parts: list[Part] = []

    @property
    def free(self) -> int:
        """What may be handed out."""
        return self.pending & ~(self.reserved | self.settling | self.done | self.delayed)

    def rest(self) -> None:
        """Give up what the file says, too, while nobody has or may have a chunk: a third of what a block takes.

        Attempts are read again when a retry is due.
        """
        if not (self.parts or self.settling or self.free):
            self.attempts = None
            self.parts = []  # an empty list that once had something keeps its room
            if self.delayed == self.pending:
                self.delayed = self.pending  # one number, not two that are equal

    @property
    def unfinished(self) -> int:
        """What is neither completed nor dead."""
        return self.pending & ~self.done


class Reservation(msgspec.Struct, eq=False):
    """What one call was handed out, or calls of one chunk that were answered together.

    Its deadline holds for all of it; a heartbeat of its peer moves it to the full length from then.
    """

    id: int
    consumer: str
    peer: Peer | None
    length_s: float
    granted_at: Now
    """Taken up again, or restored: since then; its wall instant is 0, since nobody knows when it was granted."""
    deadline: MonoNs
    is_lease: bool
    is_for_restart: bool = False
    """A lease only because the daemon was ending; who takes it up again holds it by connection."""
    is_taken_up: bool = False
    """That is being committed: its rows go."""
    alarm: MonoNs | None = None
    """When its deadline will be looked at; none is set once it has expired."""
    end_reason: str = ""
    """Why it has ended: what it still holds is being lost, unless it is reclaimed or completed before."""
    parts: dict[tuple[int, int, int], Part] = msgspec.field(default_factory=dict)

    def is_like(self, peer: Peer, length_s: float) -> bool:
        """Whether nobody has taken it over or extended it since `peer` was given it."""
        return self.peer is peer and self.length_s == length_s

    def deadline_at(self, now: Now) -> int:
        """The deadline as a wall instant; what is stored of a lease."""
        return now.wall + max(self.deadline - now.mono, 0) // 1_000_000


class Part(msgspec.Struct, eq=False):
    """What a reservation holds of one block, at one attempt: `granted` at first, `mask` still."""

    reservation: Reservation
    submission: LiveSubmission
    work: BlockWork
    granted: int
    mask: int
    attempt: int
    mac: int
    started: int = 0
    begun: tuple[tuple[MonoNs, int], ...] = ()
    """When its consumer said that it has started which chunks; some may have left the part since."""

    def __post_init__(self) -> None:
        self.reservation.parts[self.submission.id, self.work.index, self.granted] = self
        self.work.parts.append(self)

    @property
    def row_key(self) -> tuple[int, int, int, int]:
        """The primary key of its row, if it is leased."""
        return self.reservation.id, self.submission.id, self.work.index, self.granted


class LiveSubmission:
    """The work of one submission.

    Blocks below `cursor` have been offered: those of them with free chunks are in the heap `returned`, so chunks come
    in index order and no call passes twice over what is busy. From `cursor` on, blocks come from the database up to
    `frontier`, and are whole from there.
    """

    __slots__ = (
        "blocks",
        "blocks_count",
        "completed",
        "cursor",
        "dead",
        "delayed_count",
        "folded",
        "frontier",
        "has_failed",
        "id",
        "is_closing",
        "is_held",
        "lane_set",
        "loaded",
        "pins",
        "reserved_count",
        "returned",
        "row",
        "state",
        "total",
        "unfinished",
    )

    def __init__(self, row: SubmissionRow, lane_set: LaneSet | None = None) -> None:
        # One is made for each submission that a walk over 10⁵ of them meets: what can be left to `row` is left there.
        self.row = row
        self.lane_set = lane_set if lane_set is not None else LaneSet(row.lanes)
        self.id: SubmissionId = row.id
        self.state = row.state
        self.total = total = row.chunks_total
        self.blocks_count = blocks_of(total)
        self.completed = self.folded = row.chunks_completed
        self.dead = row.chunks_dead
        self.frontier = row.frontier
        self.has_failed = bool(row.has_failed)
        """The file may have attempts that have failed; else it is not asked for them."""
        self.unfinished = total - row.chunks_completed - row.chunks_dead - row.chunks_skipped
        self.reserved_count = 0
        self.delayed_count = 0
        self.is_closing = False
        self.is_held = False
        """It is to move to another daemon: nothing of it is handed out."""
        self.pins = 0
        """Changes under way that will be made to this very object: it stays in memory."""
        self.cursor = 0
        self.blocks: dict[int, BlockWork] = {}
        self.returned: list[int] = []
        self.loaded = _NOTHING
        if row.first_block is not None and row.state == "open":
            self._bring([(row.first_block, from_sql(row.first_pending or 0))], None if row.has_failed else {})

    @property
    def shuffle(self) -> int:
        """Its place in the deck."""
        return self.row.shuffle

    @property
    def priority(self) -> int:
        """Higher is more urgent."""
        return self.row.priority

    @property
    def lane_of(self) -> dict[str, tuple[int, int | str]]:
        """Key → (lane, value) of its metadata."""
        return self.lane_set.lane_of

    @property
    def lanes(self) -> frozenset[int]:
        """The lanes that it is in, besides the one for everything."""
        return frozenset(lane for lane, _ in self.lane_of.values())

    @property
    def metadata(self) -> dict[str, int | str]:
        """Its strategic metadata, which nobody may change: others share it."""
        return self.lane_set.metadata

    @property
    def backoff(self) -> Backoff:
        """How long its failed chunks wait."""
        return Backoff(self.row.backoff_base_s, self.row.backoff_factor, self.row.backoff_max_s)

    @property
    def counts(self) -> ChunkCounts:
        """What its chunks are doing: every view of them draws from here, so that all say the same."""
        busy = (self.delayed_count, self.reserved_count, self.completed, self.dead, self.row.chunks_skipped)
        return ChunkCounts(self.total - sum(busy), *busy)

    @property
    def is_open(self) -> bool:
        """Whether chunks of it may be worked on."""
        return self.state == "open" and not self.is_closing

    @property
    def is_offered(self) -> bool:
        """Whether chunks of it are handed out."""
        return self.state == "open" and not self.is_closing and not self.is_held

    @property
    def is_plain(self) -> bool:
        """Whether the file says all that is known of it, so that it may be forgotten and loaded again."""
        if self.is_closing or self.pins or self.reserved_count or self.delayed_count:
            return False
        frontier = self.frontier
        return not any(
            # From the frontier on the file is not asked for attempts either.
            work.parts or work.settling or work.done or work.delayed or (work.index >= frontier and work.attempts != ())
            for work in self.blocks.values()
        )

    @property
    def may_have_more(self) -> bool:
        """Whether it is worth control for another block; False for sure when the last chunk of all has just been taken.

        A submission of one chunk would else come up once more, only to be set aside by the gate that its own chunk has
        closed.
        """
        if self.cursor < self.blocks_count or len(self.returned) > 1:
            return True
        work = self.blocks.get(self.returned[0]) if self.returned else None
        return work is not None and bool(work.free)

    def block(self, reader: apsw.Connection, index: int) -> BlockWork:
        """The block `index` in memory, read or made if need be."""
        work = self.blocks.get(index)
        if work is None:
            pending = (
                backlog.pending(reader, self.id, index) if index < self.frontier else block_mask(self.total, index)
            )
            work = self.blocks[index] = BlockWork(index, pending)
            if index < self.frontier and self.has_failed:
                work.attempts = None
        return work

    def attempts_of(self, reader: apsw.Connection, work: BlockWork) -> tuple[AttemptRow, ...]:
        """What is known of failed attempts in a block."""
        if work.attempts is None:
            work.attempts = tuple(row for _, row in backlog.attempts(reader, self.id, work.index, work.index + 1))
        return work.attempts

    def give_back(self, work: BlockWork) -> bool:
        """Note that chunks of a block may have become free; True if any has."""
        if not work.free:
            return False
        if work.index < self.cursor:
            self._return(work)
        return True

    def _return(self, work: BlockWork) -> None:
        if not work.is_returned:
            work.is_returned = True
            heapq.heappush(self.returned, work.index)

    def next_block(self, reader: apsw.Connection) -> BlockWork | None:
        """The lowest block with free chunks; None when nothing is free."""
        returned = self.returned
        while returned:
            work = self.blocks.get(returned[0])
            if work is not None and work.free:
                return work
            heapq.heappop(returned)
            if work is not None:
                work.is_returned = False
        while self.cursor < self.blocks_count:
            if self.cursor < self.frontier:
                if not self.loaded and not self._read(reader):
                    continue
                index = self.loaded.pop()
                self.cursor = index + 1
                work = self.blocks.get(index)
                if work is None:
                    continue
            else:
                index = self.cursor
                self.cursor += 1
                work = self.blocks.get(index)
                if work is None:
                    work = self.blocks[index] = BlockWork(index, block_mask(self.total, index))
            if work.free:
                self._return(work)
                return work
        return None

    def _read(self, reader: apsw.Connection) -> bool:
        """Bring the next blocks below the frontier into memory.

        False when there are none, and the cursor stands at the frontier.

        They enter `blocks` at once, so that a fold between now and their turn is not missed.
        """
        rows = backlog.pending_blocks(reader, self.id, self.cursor, self.frontier, READ_BLOCKS)
        if not rows:
            self.cursor = self.frontier
            return False
        known: dict[int, list[AttemptRow]] = {}
        if self.has_failed:
            for index, attempt in backlog.attempts(reader, self.id, rows[0][0], rows[-1][0] + 1):
                known.setdefault(index, []).append(attempt)
        self._bring(rows, known)
        return True

    def _bring(self, rows: list[tuple[int, int]], known: dict[int, list[AttemptRow]] | None) -> None:
        """Take blocks in, with what is known of their attempts; None: the file is asked for that when it is needed."""
        for index, pending in rows:
            if index not in self.blocks:
                work = self.blocks[index] = BlockWork(index, pending)
                work.attempts = None if known is None else tuple(known.get(index, ()))
        self.loaded = [index for index, _ in reversed(rows)]

    def restore_delays(self, reader: apsw.Connection, now: Now) -> list[tuple[BlockWork, MonoNs, AttemptRow]]:
        """Hold back the chunks that the file says wait for a retry: at most their full delay remains.

        Cost: the rows of failed attempts, and a look-up for each block that holds such a chunk.

        Returns:
            The blocks, when their chunks are free again, and the attempts of those.
        """
        found = []
        for index, row in backlog.delayed(reader, self.id, now.wall):
            work = self.blocks.get(index)
            if work is None:
                work = self.block(reader, index)
                work.attempts = None
            mask = row.mask & work.free
            if mask and row.delay_ms:
                work.delayed |= mask
                self.delayed_count += mask.bit_count()
                due = now.mono + min(row.due_at - now.wall, row.delay_ms) * 1_000_000
                found.append((work, MonoNs(due), row._replace(mask=mask)))
        return found

    def forget_if_plain(self, work: BlockWork) -> None:
        """Drop a block from memory that is finished, or of a submission that is, once the file says so too."""
        if (not work.pending or self.state != "open") and not (work.parts or work.done or work.settling):
            self.blocks.pop(work.index, None)

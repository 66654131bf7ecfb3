"""Folding: moving the completions of `history` into `block`, many at a time.

Owns the list of events that are not folded yet, and the slices that fold them. A fold is part of a batch like anything
else: its rows go into the same transaction, and memory changes when that has succeeded. Nothing but a fold and a
requeue writes `block`, and nothing but a fold `frontier`, of live submissions.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from itertools import chain
from typing import NamedTuple

from opsq.clock import MonoNs, Now
from opsq.ids import block_mask
from opsq.queue.live_submission import BlockWork, LiveSubmission
from opsq.queue.state import EngineState
from opsq.store import backlog, history, meta, submissions
from opsq.store.database import Database

SLICE_EVENTS = 1024
"""Events folded in one transaction: a few milliseconds when each touches a block of its own."""
SLICE_PART = 8
"""Beyond eight slices, a slice is an eighth of what is unfolded: so that stays below eight times a batch."""
SLICE_GAPS = 4096
"""Blocks that one slice may pass over on the way of a frontier to a completion far ahead of it."""
LAZY_EVENTS = 4096
"""Up to this many events wait for `LAZY_NS`: completions of one block that come one by one are folded as one."""
LAZY_NS = 5_000_000_000
_CLEARS = frozenset({history.COMPLETED, history.DEAD})
_TOUCHES = _CLEARS | {history.FAILED, history.LOST}


class Event(NamedTuple):
    """One row of `history` as folding sees it."""

    seq: int
    kind: str
    submission_id: int
    block: int
    mask: int
    reservation_id: int


class Folding:
    """The events that are in `history` and not yet in `block`."""

    def __init__(self, state: EngineState) -> None:
        self._state = state
        self._events: deque[Event] = deque()
        self._oldest: MonoNs = state.now.mono
        self._hurry_seq = 0
        """Events up to this one have waited long enough."""
        self._flying: list[Event] = []
        self._waiting: list[tuple[int, Callable[[Now], None]]] = []
        self.folded_seq = meta.get_int(state.reader, "folded_seq")
        self.last_seq = max(self.folded_seq, history.last_seq(state.reader))
        self.is_urgent = False

    def __len__(self) -> int:
        return len(self._events)

    @property
    def is_ending(self) -> bool:
        """The process ends as soon as all is folded: what goes in slices stops between two of them."""
        return self._state.is_draining and self.is_urgent

    def restore(self) -> None:
        """Read the events that were not folded when the last process ended; submissions get them when they are loaded.

        Those of a submission being removed are ignored: nobody asks for it any more.
        """
        state = self._state
        is_there: dict[int, bool] = {}
        for row in history.unfolded(state.reader, self.folded_seq):
            event = Event(*row)
            self._events.append(event)
            if event.submission_id not in is_there:
                is_there[event.submission_id] = submissions.is_there(state.reader, event.submission_id)
            if not is_there[event.submission_id]:
                continue
            if event.kind in _TOUCHES:
                blocks = state.unfolded_done.setdefault(event.submission_id, {})
                blocks[event.block] = blocks.get(event.block, 0) | (event.mask if event.kind in _CLEARS else 0)
            if event.kind == history.COMPLETED:
                state.unfolded_completed[event.submission_id] = (
                    state.unfolded_completed.get(event.submission_id, 0) + event.mask.bit_count()
                )

    def committed(self, rows: list[history.HistoryRow], now: Now) -> None:
        """Events were committed, under the seqs that follow the last; they are to be folded."""
        if not self._events:
            self._oldest = now.mono
        for row in rows:
            self.last_seq += 1
            self._events.append(
                Event(self.last_seq, row.event, row.submission_id, row.block, row.mask, row.reservation_id)
            )

    def completed_under(self, submission_id: int, block: int, reservation_id: int) -> int:
        """The chunks of a block whose completion under this reservation is not folded yet.

        Cost: a scan of what is unfolded; rare.
        """
        found = 0
        for event in chain(self._events, self._flying):
            if (event.submission_id, event.block, event.reservation_id, event.kind) == (
                submission_id,
                block,
                reservation_id,
                history.COMPLETED,
            ):
                found |= event.mask
        return found

    def deaths(self) -> set[int]:
        """The submissions of which deaths are not folded yet, while no batch is under way.

        Cost: a scan of what is unfolded; rare.
        """
        return {event.submission_id for event in self._events if event.kind == history.DEAD}

    def after(self, seq: int, action: Callable[[Now], None]) -> None:
        """Call `action` as soon as everything up to `seq` is folded, and hurry."""
        self._waiting.append((seq, action))

    def is_due(self, now: Now) -> bool:
        """Whether the next batch should fold a slice."""
        if not self._events:
            return False
        is_old = self._events[0].seq <= self._hurry_seq or now.mono - self._oldest > LAZY_NS
        return is_old or bool(self._waiting) or self.is_urgent or len(self._events) > LAZY_EVENTS

    def run_waiting(self, now: Now) -> None:
        """Run what waited for a fold that has happened."""
        if not self._waiting:
            return
        ready = [action for seq, action in self._waiting if seq <= self.folded_seq or not self._events]
        self._waiting = [(seq, action) for seq, action in self._waiting if seq > self.folded_seq and self._events]
        for action in ready:
            action(now)

    def slice(self, now: Now) -> Fold:
        """Take the oldest events and work out what they change."""
        if now.mono - self._oldest > LAZY_NS:
            self._hurry_seq, self._oldest = self._events[-1].seq, now.mono
        fold = Fold(self._state, self)
        limit = self._state.slice_of(max(SLICE_EVENTS, len(self._events) // SLICE_PART))
        while self._events and len(fold.events) < limit:
            event = self._events[0]
            if not fold.add(event):
                break
            self._events.popleft()
        self._flying = fold.events
        return fold

    def put_back(self, events: list[Event]) -> None:
        """The fold of these events did not happen."""
        self._flying = []
        self._events.extendleft(reversed(events))

    def folded(self, seq: int) -> None:
        """Everything up to `seq` is in `block`."""
        self._flying = []
        self.folded_seq = max(self.folded_seq, seq)


class Fold:
    """One slice: what some events change in `block`, and in memory once that is committed."""

    def __init__(self, state: EngineState, folding: Folding) -> None:
        self._state = state
        self._folding = folding
        self.events: list[Event] = []
        self._masks: dict[tuple[int, int], int] = {}
        self._completed: dict[int, int] = {}
        self._frontiers: dict[int, int] = {}
        self._submissions: dict[int, LiveSubmission | None] = {}
        self._gaps = 0

    def add(self, event: Event) -> bool:
        """Take an event into the slice.

        False if its block is too far ahead: then only the frontier moves, by a bounded step.
        """
        if event.kind not in _TOUCHES:
            self.events.append(event)
            return True
        submission_id = event.submission_id
        if submission_id not in self._submissions:
            found = self._submissions[submission_id] = self._state.submission(submission_id)
            if found is not None:
                found.pins += 1
        submission = self._submissions[submission_id]
        if submission is None:
            self.events.append(event)
            return True
        frontier = self._frontiers.get(submission_id, submission.frontier)
        if event.block >= frontier:
            step = event.block + 1 - frontier
            if self._gaps + step > SLICE_GAPS:
                self._frontiers[submission_id] = frontier + SLICE_GAPS - self._gaps
                self._gaps = SLICE_GAPS
                return False
            self._gaps += step
            self._frontiers[submission_id] = event.block + 1
        place = (submission_id, event.block)
        self._masks[place] = self._masks.get(place, 0) | (event.mask if event.kind in _CLEARS else 0)
        if event.kind == history.COMPLETED:
            self._completed[submission_id] = self._completed.get(submission_id, 0) + event.mask.bit_count()
        self.events.append(event)
        return True

    def apply(
        self, database: Database, count: Callable[[frozenset[int], tuple[int, int, int, int, int]], None]
    ) -> None:
        """Write the changed blocks, the frontiers and the counters; `count` adds to the counters of lanes."""
        writer, state = database.writer, self._state
        put: list[tuple[int, int, int]] = []
        finished: list[tuple[int, int]] = []
        tried: list[tuple[int, int]] = []
        for (submission_id, index), mask in self._masks.items():
            submission = self._submissions[submission_id]
            if submission is None:
                continue
            work = submission.block(state.reader, index)
            remaining = work.pending & ~mask
            if remaining:
                put.append((submission_id, index, remaining))
                continue
            if index < submission.frontier:
                finished.append((submission_id, index))
            if work.attempts != ():
                tried.append((submission_id, index))
        for submission_id, frontier in self._frontiers.items():
            submission = self._submissions[submission_id]
            if submission is not None:
                put += [
                    (submission_id, index, self._pending(submission, index))
                    for index in range(submission.frontier, frontier)
                    if (submission_id, index) not in self._masks
                ]
        backlog.put_blocks(writer, put)
        if finished:
            backlog.delete_blocks(writer, finished)
        if tried:
            backlog.delete_attempts(writer, tried)
        counted = {submission_id for submission_id, submission in self._submissions.items() if submission is not None}
        backlog.put_frontiers(
            writer,
            (
                (
                    self._frontiers.get(submission_id, submission.frontier),
                    self._completed.get(submission_id, 0),
                    submission_id,
                )
                for submission_id, submission in self._submissions.items()
                if submission is not None
            ),
        )
        for submission_id in counted & self._completed.keys():
            submission = self._submissions[submission_id]
            if submission is not None:
                count(submission.lanes, (0, 0, self._completed[submission_id], 0, 0))
        if self.events:
            history.index(writer, self.events[0].seq, self.events[-1].seq)
            meta.put(writer, "folded_seq", self.events[-1].seq)

    def _pending(self, submission: LiveSubmission, index: int) -> int:
        work = submission.blocks.get(index)
        return work.pending if work is not None else block_mask(submission.total, index)

    def settle(self, now: Now) -> None:
        """The fold is committed: memory says the same as `block`."""
        for submission_id, frontier in self._frontiers.items():
            submission = self._submissions[submission_id]
            if submission is not None:
                submission.frontier = frontier
        for (submission_id, index), mask in self._masks.items():
            submission = self._submissions[submission_id]
            work: BlockWork | None = submission.blocks.get(index) if submission is not None else None
            if submission is None or work is None:
                continue
            work.pending &= ~mask
            work.done &= ~mask
            submission.forget_if_plain(work)
        for submission_id, submission in self._submissions.items():
            if submission is not None:
                submission.folded += self._completed.get(submission_id, 0)
        self._unpin()
        if self.events:
            self._folding.folded(self.events[-1].seq)

    def cancel(self, now: Now) -> None:
        """The batch is gone: the events are still to be folded."""
        self._unpin()
        self._folding.put_back(self.events)

    def _unpin(self) -> None:
        for submission in self._submissions.values():
            if submission is not None:
                submission.pins -= 1
                self._state.forget_if_over(submission)

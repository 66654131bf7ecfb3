"""A dry run: serves a strategy from the live queue as if for calls of one chunk each, and leaves nothing changed.

Owns the forked fronts, what the run has taken, and the stopwatch. Everything happens within one call of the engine, so
nobody sees what is taken. Must not reserve, spend a token, move a pass or turn a deck.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from time import perf_counter_ns  # measures only: nothing is decided by it
from typing import Any, NamedTuple, Self

import apsw

from opsq.ids import block_mask
from opsq.queue.chunks.attempts import split_by_attempt
from opsq.queue.dispatch.fair import FairFront
from opsq.queue.dispatch.front import Front
from opsq.queue.dispatch.gates import Blocker
from opsq.queue.dispatch.random_order import Deck
from opsq.queue.dispatch.rules import NO_LIMIT
from opsq.queue.lane_set import Stranger
from opsq.queue.live_submission import READ_BLOCKS, LiveSubmission
from opsq.queue.state import EngineState
from opsq.store import backlog
from opsq.strategy.arms import Arm, Gate

TRIAL_ROWS = 500
"""Rows that a run may visit: few, as it ends in the turn in which it began."""
PARTS = ("walk", "look_ups", "gates", "order", "supply")
"""Where a reserve spends its time: reading rows, loading submissions, gates, the order, finding free chunks."""


class Found(NamedTuple):
    """What comes next: the submission, the number of the arm that gives it, and how many chunks the gates allow."""

    submission: LiveSubmission
    arm: int
    room: int


class Peeked(NamedTuple):
    """The next free chunk of a submission, after `attempt` failures and losses."""

    chunk: int
    attempt: int


class DryArm:
    """One arm in a trial; `used_ns` by part. Its front is there as soon as it was asked, as with a real call."""

    def __init__(self, name: str, arm: Arm) -> None:
        self.name = name
        self.arm = arm
        self.front: Front | FairFront | None = None
        self.rows_visited = 0
        self.used_ns = dict.fromkeys(PARTS, 0)
        self.offered: dict[int, int] = {}
        self.has_work = False
        """A submission was found; it need not have been taken from."""

    @property
    def gives_single(self) -> bool:
        """Whether the order may turn to another submission after each chunk."""
        return isinstance(self.front, FairFront | Deck)


class DryRun:
    """Serves a strategy on trial; use it in a `with` block.

    Args:
        arms: the arms under their names, as a plan has them.
        rows: how many rows may be visited in all, and chunks taken.
        is_new: walk from the beginning, whatever the fronts in use have found.
        minds_rates: False: as if rates let everything through; from the beginning too.
    """

    def __init__(
        self,
        state: EngineState,
        arms: list[tuple[str, Arm]],
        rows: int,
        *,
        is_new: bool = False,
        minds_rates: bool = True,
    ) -> None:
        self._state = state
        self._is_new = is_new or not minds_rates
        self._watch = MeteredState(state, rows, minds_rates=minds_rates)
        self._taken: list[tuple[LiveSubmission, int]] = []
        self._free: dict[int, _Free] = {}
        self._rng_state = state.rng.getstate()
        state.wanted = NO_LIMIT  # it tells exactly what the gates allow
        self.arms = [DryArm(name, arm) for name, arm in arms]

    def __enter__(self) -> Self:
        self._state.gates.is_trial = True
        return self

    def __exit__(self, *exc: object) -> None:
        state = self._state
        for arm in self.arms:
            if arm.front is not None:
                state.fronts.unregister(arm.front)
        for submission, count in self._taken:
            submission.reserved_count -= count
            state.gates.take_back(submission, count)
        state.gates.is_trial = False
        state.rng.setstate(self._rng_state)

    @property
    def is_cut(self) -> bool:
        """Whether the trial has visited as many rows as it may."""
        return self._watch.rows_left <= 0

    @property
    def rows_left(self) -> int:
        """How many rows it may still visit."""
        return max(self._watch.rows_left, 0)

    def next(self) -> Found | None:
        """What the next call for one chunk would be given; None when all arms are dry, or the trial is cut."""
        for number, trial in enumerate(self.arms):
            found = self._next_of(number, trial)
            if found is not None or self.is_cut:
                return found
        return None

    def probe(self) -> None:
        """Ask each arm that has given nothing whether it has work."""
        for number, trial in enumerate(self.arms):
            if not trial.has_work and not self.is_cut:
                self._next_of(number, trial)

    def _next_of(self, number: int, trial: DryArm) -> Found | None:
        if trial.front is None:
            live = self._state.fronts.front_in_use(trial.name) if not self._is_new else None
            trial.front = live.fork() if live is not None else self._state.fronts.make(trial.arm)
        if trial.front is None:
            return None
        watch = self._watch
        watch.trial = trial
        start = perf_counter_ns()
        parts = sum(trial.used_ns.values())
        found = trial.front.next(watch)
        trial.used_ns["order"] += perf_counter_ns() - start - (sum(trial.used_ns.values()) - parts)
        if found is None:
            return None
        trial.has_work = True
        return Found(found[0], number, found[1])

    def chunk(self, found: Found) -> Peeked | None:
        """The chunk that comes next of a submission; None when it has none free."""
        start = perf_counter_ns()
        free = self._free.get(found.submission.id)
        if free is None:
            free = self._free[found.submission.id] = _Free(found.submission, self._state)
        peeked = free.next()
        self.arms[found.arm].used_ns["supply"] += perf_counter_ns() - start
        return peeked

    def has_more(self, submission: LiveSubmission) -> bool:
        """Whether a submission has another free chunk behind the last one that `chunk` gave."""
        free = self._free.get(submission.id)
        return free is not None and free.has_more()

    def take(self, found: Found, count: int, *, has_more: bool) -> None:
        """Take `count` chunks of what comes next; 0 with nothing more drops it."""
        self._watch.rows_left -= 1
        if count:
            found.submission.reserved_count += count
            self._state.gates.taken(found.submission, count)
            self._taken.append((found.submission, count))
        trial = self.arms[found.arm]
        if trial.front is not None:
            trial.offered[found.submission.id] = trial.offered.get(found.submission.id, 0) + count
            start = perf_counter_ns()
            trial.front.served(self._watch, count, has_more=has_more)
            trial.used_ns["order"] += perf_counter_ns() - start

    def set_aside(self, number: int) -> Iterator[tuple[tuple[Gate, ...], Blocker, int]]:
        """What an arm has set aside: the gates of the front, the closed gate, and how many submissions wait there."""
        front = self.arms[number].front
        for leaf in front.leaves() if front is not None else ():
            for blocker, keys in leaf.aside.items():
                yield leaf.arm.gates, blocker, len(keys)


def free_chunks(submission: LiveSubmission, reader: apsw.Connection) -> Iterator[tuple[int, int]]:
    """What may be handed out now, as (block, mask) in index order; changes nothing. Cost: as far as it is read."""
    behind = set(submission.returned)
    for index in sorted(behind):
        work = submission.blocks.get(index)
        if work is not None and work.free:
            yield index, work.free
    start = submission.cursor
    while start < submission.frontier:
        rows = backlog.pending_blocks(reader, submission.id, start, submission.frontier, READ_BLOCKS)
        for index, pending in rows:
            work = submission.blocks.get(index)
            mask = pending if work is None else work.free
            if mask and index not in behind:
                yield index, mask
        start = rows[-1][0] + 1 if rows else submission.frontier
    for index in range(max(submission.cursor, submission.frontier), submission.blocks_count):
        work = submission.blocks.get(index)
        mask = block_mask(submission.total, index) if work is None else work.free
        if mask:
            yield index, mask


class _Free:
    """The free chunks of a submission, one by one."""

    def __init__(self, submission: LiveSubmission, state: EngineState) -> None:
        self._submission = submission
        self._state = state
        self._blocks = free_chunks(submission, state.reader)
        self._block = 0
        self._mask = 0
        self._attempts: list[tuple[int, int]] = []

    def next(self) -> Peeked | None:
        """Take the next one."""
        if not self.has_more():
            return None
        low = self._mask & -self._mask
        self._mask ^= low
        attempt = next((attempt for attempt, mask in self._attempts if mask & low), 0)
        return Peeked(self._block * 64 + low.bit_length() - 1, attempt)

    def has_more(self) -> bool:
        """Whether there is another one."""
        if not self._mask:
            self._block, self._mask = next(self._blocks, (0, 0))
            self._attempts = self._tried() if self._mask else []
        return bool(self._mask)

    def _tried(self) -> list[tuple[int, int]]:
        submission = self._submission
        work = submission.blocks.get(self._block)
        if work is not None and work.attempts is not None:
            rows = work.attempts
        else:
            rows = tuple(
                row for _, row in backlog.attempts(self._state.reader, submission.id, self._block, self._block + 1)
            )
        return split_by_attempt(rows, self._mask)


class _Rows:
    """What a statement gave, as a cursor gives it."""

    def __init__(self, rows: list[Any]) -> None:
        self._rows = rows

    def fetchall(self) -> list[Any]:
        return self._rows

    def fetchone(self) -> Any:
        return self._rows[0] if self._rows else None


class MeteredState:
    """State, reader and gates as a front sees them: counts rows, measures each part, and has a budget of its own."""

    def __init__(self, state: EngineState, rows_left: int, *, minds_rates: bool) -> None:
        self._state = state
        self._gates = state.gates
        self.rows_left = rows_left
        self.wanted = 1
        self._minds_rates = minds_rates
        self.trial: DryArm
        self.reader = self.gates = self
        self.rules = state.rules
        self.fronts = self
        self.make = state.fronts.make
        self.unregister = state.fronts.unregister
        self.retire = state.fronts.unregister  # what a trial has served is of no account
        self.lanes_version = state.fronts.lanes_version
        self.is_closed = state.gates.is_closed
        self.remember = state.gates.remember
        self.forget = state.gates.forget

    def charge(self, rows_count: int) -> None:
        """A trial is bounded by what it visits alone, so that it tells as much as it can."""

    def execute(self, sql: str, bindings: tuple[Any, ...]) -> _Rows:
        """Run a statement of a walk: measured, its rows counted."""
        start = perf_counter_ns()
        rows = self._state.reader.execute(sql, bindings).fetchall()
        self.trial.used_ns["walk"] += perf_counter_ns() - start
        self.trial.rows_visited += len(rows)
        return _Rows(rows)

    def submission(self, submission_id: int, beside: Iterable[int] = ()) -> LiveSubmission | None:
        """Load a submission: measured."""
        start = perf_counter_ns()
        submission = self._state.submission(submission_id, beside)
        self.trial.used_ns["look_ups"] += perf_counter_ns() - start
        return submission

    def strangers(self, submission_ids: list[int]) -> dict[int, LiveSubmission | Stranger]:
        """Look at submissions without loading them: measured."""
        start = perf_counter_ns()
        found = self._state.strangers(submission_ids)
        self.trial.used_ns["look_ups"] += perf_counter_ns() - start
        return found

    def look(self, gates: tuple[Gate, ...], submission: LiveSubmission | Stranger) -> tuple[Blocker | None, int]:
        """Ask the gates: measured."""
        start = perf_counter_ns()
        found = self._gates.look(gates, submission)
        if not self._minds_rates and found[0] is not None and found[0].kind == "rate":
            found = None, NO_LIMIT
        self.trial.used_ns["gates"] += perf_counter_ns() - start
        return found

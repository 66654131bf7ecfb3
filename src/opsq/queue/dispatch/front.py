"""The front of an arm: which submission comes next, and how many of its chunks the gates allow.

A front merges two things: the SQL walk, which has got as far as the *read level*, and a heap of submissions at or below
that level that are known to have free work. What becomes free below the level goes into the heap, so the level never
moves back, no call walks again over what is reserved or finished, and a submission with nothing free is in neither.
Rows that the walk has read ahead wait in the same heap.

What a gate closes is *set aside* under that gate. When the gate opens only the best of it comes back, as its
representative; the next one follows when the representative leaves the heap and the gate is still open. So a gate with
10⁵ submissions behind it costs as little as one. What was set aside while the representative still waited may be better
than it: then that follows at the next opening, and represents the gate from then on.

This file knows orders, filters and gates; it must not know chunks, reservations or time.

Source: Temporal's task reader (read level, and a merge of what is written below it).
"""

from __future__ import annotations

import copy
import heapq
from collections.abc import Callable, Iterable, Iterator
from itertools import islice
from typing import Any, Protocol, Self

from opsq.queue.dispatch.filters import passes
from opsq.queue.dispatch.gates import Blocker
from opsq.queue.dispatch.walk import Walk
from opsq.queue.lane_set import Stranger
from opsq.queue.live_submission import LiveSubmission
from opsq.store.lanes import Reader
from opsq.strategy.arms import (
    OLDEST_FIRST,
    Arm,
    Gate,
    Key,
    Order,
    Sortable,
    walk_sql,
)

WALK_ROWS = 32
"""Rows read ahead at once when a front is new; each slice is twice as long as the one before, up to `WALK_GROWN` times.

A statement behind a commit costs as much as 3 to 10 more rows, so who goes on for long reads and loads much at once:
less than one call in a hundred does, and it takes 1 to 2 ms.
"""
LOADED_TOGETHER = 8
"""Submissions loaded by one statement when a front is new; it grows likewise, until a whole slice is loaded at once."""
WALK_GROWN = 8
LOADED_GROWN = 32
MANY_SHARE = 4
"""A call for many chunks meets new submissions all the time: a quarter is enough, and no call takes long."""

ASIDE_ROWS = 10
"""A submission that is set aside costs its turn as much as this many rows more if it was loaded just for that."""


class FrontGates(Protocol):
    """What a front needs of the gates."""

    def look(self, gates: tuple[Gate, ...], submission: LiveSubmission | Stranger) -> tuple[Blocker | None, int]:
        """The first closed gate before a submission, or None and how many chunks may be handed out."""

    def is_closed(self, gates: tuple[Gate, ...], blocker: Blocker) -> bool:
        """Whether a gate is surely still closed."""

    def remember(self, blocker: Blocker, front: Front) -> None:
        """The front has set something aside under a gate."""

    def forget(self, blocker: Blocker, front: Front) -> None:
        """The front has nothing aside under a gate any more."""


class FrontState(Protocol):
    """What a front needs of the engine's state."""

    rows_left: int

    @property
    def wanted(self) -> int:
        """How many chunks the present turn may give."""

    @property
    def reader(self) -> Reader:
        """Runs the statements of walks."""

    @property
    def gates(self) -> FrontGates:
        """What holds submissions back."""

    def submission(self, submission_id: int, beside: Iterable[int] = ()) -> LiveSubmission | None:
        """The submission in memory, loaded if need be, together with some that will be asked for soon."""

    def strangers(self, submission_ids: list[int]) -> dict[int, LiveSubmission | Stranger]:
        """What gates look at in these submissions; those that are not in memory are not loaded for that."""

    def charge(self, rows_count: int) -> None:
        """Take work that visits no rows from the turn."""


class Front:
    """A front in the order of submission ids, ascending (`OldestFirst`); base of the other orders."""

    order: Order = OLDEST_FIRST
    has_turns = False
    """Whether the next submission comes although the present one has more."""

    __slots__ = (
        "_ahead",
        "_grown",
        "_is_held",
        "_representatives",
        "_represents",
        "_strangers",
        "arm",
        "aside",
        "has_more",
        "heap",
        "is_stale",
        "level",
        "members",
        "on_news",
        "rows_visited",
        "set_aside_count",
        "walk",
        "walk_statement",
    )

    def __init__(self, arm: Arm, walk: Walk, on_news: Callable[[], None] | None = None) -> None:
        self.arm = arm
        self.walk = walk
        self.walk_statement = walk_sql(arm.order, len(walk.probes), len(walk.absent_keys))
        self.on_news = on_news
        self.heap: list[Key] = []
        self.members: set[int] = set()
        self.aside: dict[Blocker, list[Key]] = {}
        self.has_more = not walk.is_single
        self.is_stale = False
        """A lane that it walks or looks into is no more: it is to be made again."""
        self.rows_visited = 0
        self.set_aside_count = 0
        self.level: Key = self._start()
        self._ahead: list[int] = []
        """What the walk has read last."""
        self._grown = [1, 1]
        """How many times as much as at first is read, and loaded, at once."""
        self._is_held = False
        """What was looked at last is held by a gate."""
        self._strangers: dict[int, LiveSubmission | Stranger] = {}
        """Of what was read ahead, while much of it is held: to set it aside it need not be loaded."""
        self._represents: dict[int, Blocker] = {}
        self._representatives: dict[Blocker, Key] = {}

    # --- what others tell ---

    def offer(self, submission: LiveSubmission) -> None:
        """A submission may have free work from now on."""
        if submission.id in self.members:
            return
        filters = self.arm.filters
        if filters and not passes(filters, submission):
            return
        was_dry = self.is_dry
        key = self._key(submission)
        if self._is_above_level(key) and not self.walk.is_single:
            self.has_more = True
        else:
            self._push(key)
        if was_dry and self.on_news is not None:
            self.on_news()

    def readmit(self, gates: FrontGates, blocker: Blocker) -> bool:
        """A gate may have opened: bring back the best of what is set aside there, unless its representative is better.

        The representative that is not stays in the heap, and represents nothing any more.
        """
        keys = self.aside.get(blocker)
        if not keys:
            return False
        key, former = self._key_again(keys[0]), self._representatives.get(blocker)
        if (former is not None and former < key) or gates.is_closed(self.arm.gates, blocker):
            return False
        was_dry = self.is_dry
        heapq.heappop(keys)
        if not keys:
            del self.aside[blocker]
            gates.forget(blocker, self)
        heapq.heappush(self.heap, key)
        if former is not None:
            del self._represents[former[-1]]
        self._represents[key[-1]] = blocker
        self._representatives[blocker] = key
        if was_dry and self.on_news is not None:
            self.on_news()
        return True

    @property
    def is_dry(self) -> bool:
        """Whether nothing is known to be free; costs no query."""
        return not self.heap and not self.has_more

    # --- serving ---

    def next(self, state: FrontState) -> tuple[LiveSubmission, int] | None:
        """The submission that comes next and how many of its chunks the gates allow.

        None when the front is dry or the turn is over.

        Cost: O(log n) a submission; every row and every submission passed over is taken from `state.rows_left`.
        """
        while state.rows_left > 0:
            if self._wants_walk():
                before = self.rows_visited
                self.has_more = self._read(state)
                state.rows_left -= self.rows_visited - before
                if self._is_held:
                    self._meet(state)
                continue
            if not self.heap:
                return None
            submission_id = self.heap[0][-1]
            stranger = self._strangers.pop(submission_id, None) if self._strangers else None
            if stranger is not None:
                blocker, _ = state.gates.look(self.arm.gates, stranger)
                if blocker is not None:
                    state.rows_left -= 1
                    self._set_aside(state, blocker)
                    continue
            submission = state.submission(submission_id, self._beside(state))
            if submission is None or not submission.is_offered:
                state.rows_left -= 1
                self.drop(state)
                continue
            blocker, room = state.gates.look(self.arm.gates, submission)
            if blocker is None:
                self._is_held = False
                return submission, room
            state.rows_left -= 1
            state.charge(ASIDE_ROWS)
            self._set_aside(state, blocker)
            if not self._is_held:
                self._is_held = True
                self._meet(state)
        return None

    def _beside(self, state: FrontState) -> Iterator[int]:
        """What is to be loaded with the submission that comes next, if that must be: what comes after it."""
        grown = self._grown[1]
        self._grown[1] = min(2 * grown, LOADED_GROWN)
        if state.wanted > 1:
            grown = min(grown, LOADED_GROWN // MANY_SHARE)
        yield from islice(self._nearest(), 1, grown * LOADED_TOGETHER + 1)

    def _nearest(self) -> Iterator[int]:
        """What is known to be free, in order. Cost: O(log n) each, and nothing for what is not taken."""
        heap = self.heap
        waiting = [(heap[0], 0)]
        while waiting:
            key, place = heapq.heappop(waiting)
            yield key[-1]
            for child in (2 * place + 1, 2 * place + 2):
                if child < len(heap):
                    heapq.heappush(waiting, (heap[child], child))

    def _meet(self, state: FrontState) -> None:
        self._strangers = state.strangers([one for one in self._ahead if one in self.members])

    def served(self, state: FrontState, taken: int, *, has_more: bool) -> None:
        """The submission that comes next gave `taken` chunks; `has_more`: it may have free ones left."""
        if not has_more:
            self.drop(state)

    def drop(self, state: FrontState) -> None:
        """The submission that comes next has nothing free any more."""
        submission_id = heapq.heappop(self.heap)[-1]
        self.members.discard(submission_id)
        if self._represents:
            self._retire(state.gates, submission_id)

    def turn(self, count: int) -> int:
        """How many chunks one turn gives in a call for `count`."""
        return count

    def close(self, state: FrontState) -> None:
        """The front is not used any more."""
        for blocker in self.aside:
            state.gates.forget(blocker, self)
        self.aside.clear()

    def fork(self, on_news: Callable[[], None] | None = None) -> Self:
        """A copy of the front that goes on by itself for a dry run: it is notified of nothing, and must be closed.

        Cost: what is known to be free, and what is set aside.
        """
        twin = copy.copy(self)
        twin.on_news = on_news
        twin.heap = list(self.heap)
        twin.members = set(self.members)
        twin._grown, twin._strangers = list(self._grown), dict(self._strangers)
        twin.aside = {blocker: list(keys) for blocker, keys in self.aside.items()}
        twin._represents = dict(self._represents)
        twin._representatives = dict(self._representatives)
        return twin

    def leaves(self) -> Iterator[Front]:
        """The fronts that set submissions aside: this one."""
        yield self

    def _set_aside(self, state: FrontState, blocker: Blocker) -> None:
        """The gate holds the submission that comes next: it waits under the gate."""
        key = heapq.heappop(self.heap)
        keys = self.aside.get(blocker)
        if keys is None:
            keys = self.aside[blocker] = []
            state.gates.remember(blocker, self)
        heapq.heappush(keys, key)
        self.set_aside_count += 1
        if self._represents:
            self._retire(state.gates, key[-1], but=blocker)

    def _retire(self, gates: FrontGates, submission_id: int, but: Blocker | None = None) -> None:
        """A submission leaves the heap: whatever it represented gets the next representative, if its gate is open."""
        blocker = self._represents.pop(submission_id, None)
        if blocker is not None:
            del self._representatives[blocker]
            if blocker != but:
                self.readmit(gates, blocker)

    # --- orders ---

    def describe(self) -> dict[str, int | float | str | bool | None]:
        """Where the front stands, for people."""
        return {
            "read_level": ".".join(map(str, self.level)),
            "is_walked": not self.has_more,
            "known_free": len(self.heap),
            "set_aside": sum(len(keys) for keys in self.aside.values()),
            "rows_visited": self.rows_visited,
        }

    def _push(self, key: Key) -> None:
        heapq.heappush(self.heap, key)
        self.members.add(key[-1])

    def _wants_walk(self) -> bool:
        return not self.heap and self.has_more

    def _rows(self, state: FrontState, *bound: int) -> list[Any]:
        """The next rows above a bound; each ends with whether it passes the filters.

        A look into another lane costs a turn as much as the row itself.
        """
        walk, count = self.walk, self._slice(state)
        self._grown[0] = min(2 * self._grown[0], WALK_GROWN)
        rows: list[Any] = state.reader.execute(
            self.walk_statement, (walk.lane_id, count, *bound, *walk.probes, *walk.absent_keys)
        ).fetchall()
        self.rows_visited += len(rows)
        if walk.probes or walk.absent_keys:
            state.charge(len(rows) * (len(walk.probes) + len(walk.absent_keys)))
        self._ahead = [row[-2] for row in rows if row[-1]]
        return rows

    def _read(self, state: FrontState) -> bool:
        """Read the next rows above the level into the heap; False when the lane ends there."""
        count = self._slice(state)
        rows = self._rows(state, *self._bound())
        members = self.members
        for row in rows:
            *_, submission_id, passes = row
            if passes and submission_id not in members:
                self._push(self._key_of_row(row[:-1]))
        if rows:
            self.level = self._key_of_row(rows[-1][:-1])
        return len(rows) == count

    def _slice(self, state: FrontState) -> int:
        """How many rows are read next; few at the end of a turn, so that it is not much longer than its bound."""
        grown = self._grown[0] if state.wanted == 1 else min(self._grown[0], WALK_GROWN // MANY_SHARE)
        return max(WALK_ROWS, min(WALK_ROWS * grown, state.rows_left))

    def _start(self) -> Key:
        return (-1,)

    def _bound(self) -> Key:
        return self.level

    def _key(self, submission: Sortable) -> Key:
        return (submission.id,)

    def _key_of_row(self, row: tuple[int, ...]) -> Key:
        return row

    def _key_again(self, key: Key) -> Key:
        """The key of what comes back from behind a gate."""
        return key

    def _is_above_level(self, key: Key) -> bool:
        return key > self.level

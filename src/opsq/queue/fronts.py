"""The front of an arm: which submission comes next.

A front merges two things: the SQL walk, which has got as far as the *read level*, and a heap of submissions at or below that level that are
known to have free work. What becomes free below the level goes into the heap, so the level never moves back, no call walks again over what
is reserved or finished, and a submission with nothing free is in neither. Rows that the walk has read ahead wait in the same heap.

This file knows orders and lanes; it must not know chunks, reservations or time.

Source: Temporal's task reader (read level, and a merge of what is written below it).
"""

from __future__ import annotations

import heapq
import random
from typing import Any

import apsw

from opsq.strategy.arms import NEWEST_FIRST, OLDEST_FIRST, RANDOM, SHUFFLES, Key, Order, Sortable

WALK_ROWS = 32
"""Rows read ahead at once: enough to spread the cost of a statement, few enough to keep a single call in microseconds."""

_END = (1 << 63) - 1


class Front:
    """The front of a lane in the order of submission ids, ascending (`OldestFirst`)."""

    order: Order = OLDEST_FIRST

    def __init__(self, lane_id: int) -> None:
        self.lane_id = lane_id
        self.heap: list[Key] = []
        self.members: set[int] = set()
        self.has_more = True
        self.rows_visited = 0
        self.level: Key = (-1,)

    def offer(self, submission: Sortable) -> bool:
        """A submission of the lane may have free work from now on; False if it was known already."""
        if submission.id in self.members:
            return False
        key = self._key(submission)
        if self._is_above_level(key):
            known, self.has_more = self.has_more, True
            return not known
        self._push(key)
        return True

    def peek(self, reader: apsw.Connection) -> int | None:
        """The submission that comes next; None when the front is dry. Visits at most `WALK_ROWS` rows (a deck at its cut: twice that)."""
        if not self.heap and self.has_more:
            self.has_more = self._walk(reader)
        return self.heap[0][-1] if self.heap else None

    @property
    def is_dry(self) -> bool:
        """Whether nothing is known to be free; costs no query."""
        return not self.heap and not self.has_more

    def drop(self) -> None:
        """The submission that comes next has nothing free any more."""
        self.members.discard(heapq.heappop(self.heap)[-1])

    def end_turn(self) -> None:
        """The submission that comes next has been served and has more; in most orders it stays where it is."""

    def describe(self) -> dict[str, int | str | bool | None]:
        """Where the front stands, for people."""
        return {
            "read_level": ".".join(map(str, self.level)),
            "is_walked": not self.has_more,
            "known_free": len(self.heap),
            "rows_visited": self.rows_visited,
        }

    def _push(self, key: Key) -> None:
        heapq.heappush(self.heap, key)
        self.members.add(key[-1])

    def _walk(self, reader: apsw.Connection) -> bool:
        """Read the next rows above the level into the heap; False when the lane ends there."""
        rows = [row[0] for row in reader.execute(self.order.sql, (self.lane_id, *self._bound(), WALK_ROWS))]
        self.rows_visited += len(rows)
        for submission_id in rows:
            if submission_id not in self.members:
                self._push(self._key_of_id(submission_id))
        if rows:
            self.level = self._key_of_id(rows[-1])
        return len(rows) == WALK_ROWS

    def _bound(self) -> Key:
        return self.level[-1:]

    def _key(self, submission: Sortable) -> Key:
        return self._key_of_id(submission.id)

    def _key_of_id(self, submission_id: int) -> Key:
        return (submission_id,)

    def _is_above_level(self, key: Key) -> bool:
        return key > self.level


class NewestFront(Front):
    """The front of a lane in the order of submission ids, descending (`NewestFirst`)."""

    order = NEWEST_FIRST

    def __init__(self, lane_id: int) -> None:
        super().__init__(lane_id)
        self.level = (-_END, _END)

    def _key_of_id(self, submission_id: int) -> Key:
        return (-submission_id, submission_id)


class Deck(Front):
    """The front of a lane as a shuffled deck, cut at a random place (`Random`): keys are (lap, distance from the cut, id).

    The walk is the first lap: from the cut to the end of the deck, then from its beginning to the cut. Who still has work after its turn
    waits in the heap for the next lap; who comes new, or back, has its turn in this lap if its place is still ahead.
    """

    order = RANDOM

    def __init__(self, lane_id: int, rng: random.Random) -> None:
        super().__init__(lane_id)
        self._cut = rng.randrange(SHUFFLES)
        self._is_second_leg = False
        self._is_walked = False
        self._last_row: Key = (self._cut, -1)
        self._turn: Key = (0, -1, -1)
        self.level = (0, -1, -1)

    def peek(self, reader: apsw.Connection) -> int | None:
        """The submission whose turn is next; the walk, which is the first lap, ends before the second lap begins."""
        while self.has_more and (not self.heap or self.heap[0][0] > 0):
            self.has_more = self._walk(reader)
        return self.heap[0][-1] if self.heap else None

    def end_turn(self) -> None:
        """The submission has had its turn: it waits for the next lap."""
        lap, place, submission_id = self._turn = self.heap[0]
        heapq.heapreplace(self.heap, (lap + 1, place, submission_id))

    def drop(self) -> None:
        """The submission whose turn is next has nothing free any more."""
        self._turn = self.heap[0]
        super().drop()

    def _walk(self, reader: apsw.Connection) -> bool:
        end = self._cut if self._is_second_leg else SHUFFLES
        rows: list[Any] = reader.execute(self.order.sql, (self.lane_id, *self._last_row, end, WALK_ROWS)).fetchall()
        self.rows_visited += len(rows)
        for shuffle, submission_id in rows:
            key = self._place(0, shuffle, submission_id)
            if submission_id not in self.members:
                self._push(key)
            self.level = key
            self._last_row = (shuffle, submission_id)
        if len(rows) == WALK_ROWS:
            return True
        if not self._is_second_leg:
            self._is_second_leg = True
            self._last_row = (-1, -1)
            return True
        self._is_walked = True
        return False

    def _key(self, submission: Sortable) -> Key:
        key = self._place(self._turn[0], submission.shuffle, submission.id)
        return key if key > self._turn else (key[0] + 1, *key[1:])

    def _place(self, lap: int, shuffle: int, submission_id: int) -> Key:
        return (lap, (shuffle - self._cut) % SHUFFLES, submission_id)

    def _is_above_level(self, key: Key) -> bool:
        return not self._is_walked and key[0] == 0 and key > self.level


def make_front(order: Order, lane_id: int, rng: random.Random) -> Front:
    """The front for an order."""
    if order is RANDOM:
        return Deck(lane_id, rng)
    return NewestFront(lane_id) if order is NEWEST_FIRST else Front(lane_id)

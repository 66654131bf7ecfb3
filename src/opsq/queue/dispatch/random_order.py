"""The order of `Random`: a shuffled deck of submissions, cut at a random place, in which each has one turn a lap.

Must not know how many chunks a turn hands out in the end.
"""

from __future__ import annotations

import heapq
import random
from collections.abc import Callable

from opsq.queue.dispatch.front import Front, FrontState
from opsq.queue.dispatch.walk import Walk
from opsq.strategy.arms import RANDOM, SHUFFLES, Arm, Key, Sortable

DECK_TURNS = 16
"""A call is filled by about this many submissions."""


class Deck(Front):
    """A front as a shuffled deck, cut at a random place (`Random`): keys are (lap, distance from the cut, id).

    The walk is the first lap: from the cut to the end of the deck, then from its beginning to the cut. Who still has
    work after its turn waits in the heap for the next lap; who comes new, or back, has its turn in this lap if its
    place is still ahead. Who has missed a turn behind a gate has it as soon as the gate opens, and keeps that place in
    the deck: so nobody has two turns while another has none.
    """

    order = RANDOM
    has_turns = True
    __slots__ = ("_cut", "_is_second_leg", "_last_row", "_turn")

    def __init__(self, arm: Arm, walk: Walk, rng: random.Random, on_news: Callable[[], None] | None = None) -> None:
        super().__init__(arm, walk, on_news)
        self._cut = rng.randrange(SHUFFLES)
        self._is_second_leg = False
        self._last_row: Key = (self._cut, -1)
        self._turn: Key = (0, -1, -1)

    def served(self, state: FrontState, taken: int, *, has_more: bool) -> None:
        """The submission has had its turn: it waits for the next lap, if it has more."""
        key = self.heap[0]
        self._turn = max(self._turn, key)
        if not has_more:
            self.drop(state)
            return
        lap, place, submission_id = key
        heapq.heapreplace(self.heap, (lap + 1, place, submission_id))
        if self._represents:
            self._retire(state.gates, submission_id)

    def turn(self, count: int) -> int:
        """A sixteenth of the call, at least one chunk, and whole blocks where that is possible."""
        turn = max(1, count // DECK_TURNS)
        return -(-turn // 64) * 64 if turn >= 32 else turn

    def _wants_walk(self) -> bool:
        # The walk is the first lap: it ends before the second lap begins.
        return self.has_more and (not self.heap or self.heap[0][0] > 0)

    def _read(self, state: FrontState) -> bool:
        count = self._slice(state)
        rows = self._rows(state, *self._last_row, self._cut if self._is_second_leg else SHUFFLES)
        for shuffle, submission_id, passes in rows:
            self.level = self._place(0, shuffle, submission_id)
            self._last_row = (shuffle, submission_id)
            if passes and submission_id not in self.members:
                self._push(self.level)
        if len(rows) == count:
            return True
        if not self._is_second_leg:
            # What comes new between the last row and the end of the deck is below the level now.
            self._is_second_leg = True
            self._last_row = (-1, -1)
            self.level = (0, SHUFFLES - self._cut, -1)
            return True
        self.level = (1, -1, -1)
        return False

    def _start(self) -> Key:
        return (0, -1, -1)

    def _key(self, submission: Sortable) -> Key:
        key = self._place(self._turn[0], submission.shuffle, submission.id)
        return key if key > self._turn else (key[0] + 1, *key[1:])

    def _key_again(self, key: Key) -> Key:
        lap, place, _ = self._turn
        return key if key > self._turn else (lap, place + 1, key[-1])

    def _place(self, lap: int, shuffle: int, submission_id: int) -> Key:
        return (lap, (shuffle - self._cut) % SHUFFLES, submission_id)

    def _is_above_level(self, key: Key) -> bool:
        return key[0] == 0 and key > self.level

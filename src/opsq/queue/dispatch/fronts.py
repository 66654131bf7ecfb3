"""All fronts in use: made when a strategy needs them, notified of what becomes free, dropped when they are idle.

Must not decide which submission comes next: each front does that for its arm.
"""

from __future__ import annotations

import random
from collections import OrderedDict
from collections.abc import Callable, Iterable
from functools import partial
from typing import Protocol

import apsw

from opsq.errors import OpsqError
from opsq.queue.batch import Batch
from opsq.queue.dispatch.fair import FairFront, FairState
from opsq.queue.dispatch.front import Front
from opsq.queue.dispatch.gates import Gates
from opsq.queue.dispatch.ordered_fronts import NewestFront, PriorityFront
from opsq.queue.dispatch.random_order import Deck
from opsq.queue.dispatch.rules import Rules
from opsq.queue.dispatch.walk import choose_walk
from opsq.queue.live_submission import LiveSubmission
from opsq.store import lanes, rules
from opsq.store.database import Database
from opsq.store.lanes import GoneLane
from opsq.strategy.arms import FAIR, RANDOM, Arm, Filter

FRONTS_KEPT = 256
"""So many fronts are kept beside those of calls that wait, which are all asked in turn; a new call walks again."""
OFFERS_BETWEEN = 10_000
"""After so many offers fronts are looked at that have never come to what they know."""
PASSES_SAVED = 500
"""Passes of a fair front saved by one batch."""
_IN_ORDER: dict[str, type[Front]] = {front.order.name: front for front in (Front, NewestFront, PriorityFront)}


class FrontsState(FairState, Protocol):
    """What the table of fronts needs of the engine's state."""

    rng: random.Random
    awaited_arms_count: int
    batch: Batch
    states: dict[str, int]

    @property
    def reader(self) -> apsw.Connection:
        """Reads the file."""
        ...

    @property
    def gates(self) -> Gates:
        """What holds submissions back."""
        ...

    @property
    def rules(self) -> Rules:
        """What operators have set."""
        ...


class Fronts:
    """The fronts by the name of their arm, and by the lanes that they walk or look into."""

    def __init__(self, state: FrontsState) -> None:
        self._state = state
        self._by_name: OrderedDict[str, Front | FairFront] = OrderedDict()
        self._fair: dict[FairFront, None] = {}
        self._by_lane: dict[int, dict[Front | FairFront, None]] = {}
        self._by_probe: dict[int, dict[Front | FairFront, None]] = {}
        self.lanes_version = 0
        """Grows whenever a lane may have been made or forgotten."""
        self._offers_count = 0

    def front_of(self, name: str, arm: Arm) -> Front | FairFront | None:
        """The front of an arm, by a name that is the same for equal arms.

        Returns:
            None while no submission has ever been in one of its lanes.
        """
        front = self._by_name.get(name)
        if front is not None and not front.is_stale:
            self._by_name.move_to_end(name)
            return front
        if front is not None:
            self.retire(self._by_name.pop(name))
        front = self.make(arm)
        if front is not None:
            self._by_name[name] = front
            self._forget_unused()
        return front

    def front_in_use(self, name: str) -> Front | FairFront | None:
        """The front of an arm if there is one."""
        return self._by_name.get(name)

    def renew(self, names: Iterable[str]) -> None:
        """Have fronts made again when they are asked next: they may have missed something."""
        for name in names:
            front = self._by_name.get(name)
            if front is not None:
                front.is_stale = True

    def make(
        self,
        arm: Arm,
        on_news: Callable[[], None] | None = None,
        known: tuple[Filter, int] | None = None,
        scope: str = "",
    ) -> Front | FairFront | None:
        """Make a front for an arm; from now on it is offered what becomes free.

        Args:
            known: the lane of one of the filters, if it need not be looked for.
            scope: the fair front that it is part of.
        """
        state = self._state
        walk = choose_walk(state.reader, arm, known)
        if walk is None:
            return None
        if arm.gates:
            state.gates.watch(frozenset(gate.key for gate in arm.gates))
        front: Front | FairFront
        if arm.order is FAIR:
            front = FairFront(state, arm, walk, on_news, scope)
        elif arm.order is RANDOM:
            front = Deck(arm, walk, state.rng, on_news)
        else:
            front = _IN_ORDER[arm.order.name](arm, walk, on_news)
        self._by_lane.setdefault(walk.lane_id, {})[front] = None
        for lane_id in walk.probes:
            self._by_probe.setdefault(lane_id, {})[front] = None
        if isinstance(front, FairFront):
            self._fair[front] = None
        if walk.is_single:
            submission = state.submission(~walk.lane_id)
            if submission is not None and submission.is_offered:
                front.offer(submission)
        return front

    def unregister(self, front: Front | FairFront) -> None:
        """Drop a front that is not used any more."""
        _leave(self._by_lane, front.walk.lane_id, front)
        for lane_id in front.walk.probes:
            _leave(self._by_probe, lane_id, front)
        if isinstance(front, FairFront):
            self._fair.pop(front, None)
        front.close(self._state)

    def retire(self, front: Front | FairFront) -> None:
        """Drop a front that may be made again: its passes are saved."""
        if isinstance(front, FairFront):
            self._save_passes_of(front, len(front.changed))
        self.unregister(front)

    def offer(self, submission: LiveSubmission) -> None:
        """Offer an open submission with free chunks to every front that walks one of its lanes."""
        self._offers_count += 1
        by_lane = self._by_lane
        everywhere = by_lane.get(lanes.ALL, {})
        for front in list(everywhere):
            front.offer(submission)
        if len(by_lane) > bool(everywhere):
            for lane_id in (~submission.id, *(lane_id for lane_id, _ in submission.lane_of.values())):
                for front in list(by_lane.get(lane_id, ())):
                    front.offer(submission)

    def _forget_unused(self) -> None:
        """Forget the fronts that were not used for longest, if there are too many."""
        while len(self._by_name) > FRONTS_KEPT + self._state.awaited_arms_count:
            self.retire(self._by_name.popitem(last=False)[1])

    def tick(self) -> None:
        """Forget fronts that are not used, and those most of whose submissions have ended, as they are never met."""
        self._forget_unused()
        if self._offers_count < OFFERS_BETWEEN:
            return
        self._offers_count = 0
        most = 2 * self._state.states["open"] + OFFERS_BETWEEN
        for name, front in list(self._by_name.items()):
            if sum(len(leaf.members) for leaf in front.leaves()) > most:
                self.retire(self._by_name.pop(name))

    def note_new_lanes(self) -> None:
        """A submission was stored, perhaps with new lanes: fronts that lacked one may be made."""
        self.lanes_version += 1

    def forget_lanes(self, gone: list[GoneLane]) -> None:
        """Lanes are gone; if their pairs come again they have others. Fronts that use them are made again."""
        for lane in gone:
            self._state.rules.forget_lane(lane)
            for front in (*self._by_lane.get(lane.id, ()), *self._by_probe.get(lane.id, ())):
                front.is_stale = True
                self.lanes_version += 1

    def save_passes(self, *, everything: bool = False) -> None:
        """Have the batch save the passes that fair fronts have moved."""
        for front in self._fair:
            self._save_passes_of(front, len(front.changed) if everything else PASSES_SAVED)

    def _save_passes_of(self, front: FairFront, count: int) -> None:
        rows = dict(list(front.changed.items())[:count])
        if not rows:
            return
        for lane_id in rows:
            del front.changed[lane_id]
        self._state.batch.statements.append(partial(_save_passes, front.scope, rows))
        self._state.batch.on_failed.append(partial(_restore_passes, front, rows))


def _leave(table: dict[int, dict[Front | FairFront, None]], lane_id: int, front: Front | FairFront) -> None:
    fronts = table.get(lane_id)
    if fronts is not None:
        fronts.pop(front, None)
        if not fronts:
            del table[lane_id]


def _save_passes(scope: str, rows: dict[int, float | None], database: Database, _: Batch) -> None:
    rules.put_passes(database.writer, scope, rows.items())


def _restore_passes(front: FairFront, rows: dict[int, float | None], _: OpsqError) -> None:
    front.changed = rows | front.changed

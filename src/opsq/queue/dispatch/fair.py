"""`Fair`: start-time fair queueing over the values of a key.

Each value has a pass. The value with the lowest pass that has work is served by fronts of its own, and its pass moves
on by what it was given, divided by its weight. A value that gets work again starts at its own pass or at the pass last
served, whichever is higher: nobody saves up service by being idle, and a late tenant is served at once. For two values
that have work all the time the difference of service per weight stays within one turn of each.

Source: Goyal, Vin, Cheng, *Start-time Fair Queuing* (SIGCOMM 1996), applied when chunks are handed out.
"""

from __future__ import annotations

import copy
import heapq
from collections.abc import Callable, Iterator
from typing import Any, Protocol, Self

from opsq.queue.dispatch.filters import passes
from opsq.queue.dispatch.front import WALK_ROWS, Front, FrontState
from opsq.queue.dispatch.walk import Walk
from opsq.queue.live_submission import LiveSubmission
from opsq.store import lanes, rules
from opsq.strategy.arms import SUBMISSION_KEY, VALUES_SQL, Arm, Filter, values_sql
from opsq.strategy.tree import Value

TURN_CHUNKS = 8
"""Chunks a value is given in one turn, unless the call asks for many turns."""
SERVED = -1
"""Stands for the pass last served among the saved passes; no lane has this number."""
MAKE_ROWS = 20
"""Making a front costs a turn as much as this many rows."""
KEEP_ROWS = 1
"""The fronts of a value that has nothing left are kept if their walks went further than this.

Shorter ones start over.
"""
RESTING_KEPT = 10_000
"""This many values that have nothing left keep their fronts."""
SWEEP_MIN = 1_000
"""This many values without work are remembered in any case."""


class Weights(Protocol):
    """What a fair front needs of the rules."""

    def weight(self, key: str, value: Value | None) -> float:
        """The weight of a value."""


class FrontMaker(Protocol):
    """Makes and drops the fronts of a value."""

    @property
    def lanes_version(self) -> int:
        """Grows whenever a lane may have been made or forgotten."""

    def make(
        self, arm: Arm, on_news: Callable[[], None] | None, known: tuple[Filter, int] | None, scope: str
    ) -> Front | FairFront | None:
        """Make a front; None when no submission can pass."""

    def unregister(self, front: Front | FairFront) -> None:
        """Drop a front."""

    def retire(self, front: Front | FairFront) -> None:
        """Drop a front that may be made again."""


class FairState(FrontState, Protocol):
    """What a fair front needs of the engine's state."""

    @property
    def rules(self) -> Weights:
        """The weights."""

    @property
    def fronts(self) -> FrontMaker:
        """Makes the fronts of a value."""


class Share:
    """One value of the key: its pass, and its fronts while it has work."""

    __slots__ = ("fronts", "is_waiting", "lane_id", "lanes_version", "pass_", "value")

    def __init__(self, lane_id: int, value: Value | None, pass_: float) -> None:
        self.lane_id = lane_id
        self.value = value
        self.pass_ = pass_
        self.is_waiting = False
        self.fronts: list[Front | FairFront | None] | None = None
        """One for each inner arm; None for an arm that no submission has ever passed."""
        self.lanes_version = 0

    @property
    def is_dry(self) -> bool:
        """Whether none of its fronts knows anything free."""
        return all(front is None or front.is_dry for front in self.fronts or ())

    @property
    def place(self) -> tuple[float, int, int]:
        """Where it waits: by pass, then by age of the value."""
        return self.pass_, self.lane_id if self.lane_id >= 0 else ~self.lane_id, self.lane_id


class _Borrowed(dict[int, Share]):
    """The shares of a forked front: each is copied from the live one when it is first looked at."""

    def __init__(self, live: dict[int, Share], copied: Callable[[Share], Share]) -> None:
        super().__init__()
        self._live = live
        self._copied = copied

    def __missing__(self, lane_id: int) -> Share:
        share = self[lane_id] = self._copied(self._live[lane_id])
        return share

    def get(self, lane_id: int, default: Any = None) -> Any:
        """The share of a lane, copied first; `default` if there is none."""
        return self[lane_id] if lane_id in self or lane_id in self._live else default

    def all(self) -> Iterator[Share]:
        """Every share, without copying."""
        yield from self.values()
        yield from (share for lane_id, share in self._live.items() if lane_id not in self)


class FairFront:
    """The front of a `Fair` arm; it is used like any other front.

    Args:
        walk: the lane in which values are looked for; lane 0: all values of the key.
        scope: of the fair front that it is part of.
    """

    has_turns = True

    def __init__(
        self, state: FairState, arm: Arm, walk: Walk, on_news: Callable[[], None] | None = None, scope: str = ""
    ) -> None:
        self.arm = arm
        self._inner = [inner.within(arm.filters, arm.gates) for inner in arm.inner]
        self.walk = walk
        self._has_scope = walk.lane_id != lanes.ALL or bool(walk.absent_keys) or arm.fair_key == SUBMISSION_KEY
        self._on_news = on_news
        self._shares: dict[int, Share] = {}
        self._waiting: list[tuple[float, int, int]] = []
        self._level: float | Value = -1 if self._has_scope else float("-inf")
        self.has_more = not walk.is_single
        self.is_stale = False
        """The lane of its scope is no more: it is to be made again."""
        self.rows_visited = 0
        self.scope = f"{scope} > {arm.name}" if scope else arm.name
        """Names its passes in the file."""
        saved = rules.passes(state.reader, self.scope)
        self._served_pass = saved.pop(SERVED, 0.0)
        self._saved = {lane_id: pass_ for lane_id, pass_ in saved.items() if pass_ > self._served_pass}
        self.changed: dict[int, float | None] = dict.fromkeys(saved.keys() - self._saved.keys())
        """Passes that are not saved yet; None: of no account any more."""
        self._resting: dict[int, None] = {}
        self._sweep_at: float = SWEEP_MIN
        if not self._has_scope:
            self._wake(self._share(lanes.ALL, None))

    # --- what others tell ---

    def offer(self, submission: LiveSubmission) -> None:
        """A submission may have free work from now on: its value takes part."""
        if not passes(self.arm.filters, submission):
            return
        if self.arm.fair_key == SUBMISSION_KEY:
            share = self._share(~submission.id, submission.id)
        else:
            share = self._share(*submission.lane_of.get(self.arm.fair_key, (lanes.ALL, None)))
        was_dry = self.is_dry
        self._wake(share)
        if was_dry and self._on_news is not None:
            self._on_news()

    @property
    def is_dry(self) -> bool:
        """Whether no value is known to have work; costs no query."""
        return not self._waiting and not self.has_more

    def _share(self, lane_id: int, value: Value | None) -> Share:
        share = self._shares.get(lane_id)
        if share is None:
            if len(self._shares) >= self._sweep_at:
                self._sweep()
            share = self._shares[lane_id] = Share(lane_id, value, self._saved.pop(lane_id, 0.0))
        return share

    def _sweep(self) -> None:
        """Forget values without work: those that would start where a new one starts, then those least ahead of it.

        Nobody is wronged by that who has work; a value that is forgotten may have a turn too early.
        """
        idle = [share for share in self._shares.values() if not share.is_waiting and share.fronts is None]
        for share in sorted(idle, key=lambda share: share.pass_):
            if share.pass_ > self._served_pass and len(self._shares) <= SWEEP_MIN:
                break
            del self._shares[share.lane_id]
            self.changed[share.lane_id] = None
        self._sweep_at = 2 * max(len(self._shares), SWEEP_MIN)

    def _wake(self, share: Share) -> None:
        if not share.is_waiting:
            share.is_waiting = True
            self._resting.pop(share.lane_id, None)
            share.pass_ = max(share.pass_, self._served_pass)
            heapq.heappush(self._waiting, share.place)

    # --- serving ---

    def next(self, state: FairState) -> tuple[LiveSubmission, int] | None:
        """The next submission of the value with the lowest pass, and how many of its chunks may be given."""
        while self.has_more and state.rows_left > 0:
            self._find_values(state)
        while self._waiting and state.rows_left > 0:
            share = self._shares[self._waiting[0][-1]]
            for front in self._fronts(state, share):
                found = front.next(state) if front is not None else None
                if found is not None:
                    return found
                if state.rows_left <= 0:
                    return None
            state.rows_left -= 1
            self._rest(state, share)
        return None

    def served(self, state: FairState, taken: int, *, has_more: bool) -> None:
        """The submission that `next` gave has given `taken` chunks."""
        share = self._shares[self._waiting[0][-1]]
        front = next(front for front in share.fronts or () if front is not None and not front.is_dry)
        front.served(state, taken, has_more=has_more)
        if taken:
            self._served_pass = self.changed[SERVED] = max(self._served_pass, share.pass_)
            share.pass_ += taken / state.rules.weight(self.arm.fair_key, share.value)
            self.changed[share.lane_id] = share.pass_
        if share.is_dry:
            self._rest(state, share)
        else:
            heapq.heapreplace(self._waiting, share.place)

    def turn(self, count: int) -> int:
        """At most `TURN_CHUNKS`, or a sixteenth of a call that asks for many turns."""
        return max(TURN_CHUNKS, count // 16)

    def close(self, state: FairState) -> None:
        """The front is not used any more."""
        for share in self._shares.values():
            for front in share.fronts or ():
                if front is not None:
                    state.fronts.unregister(front)

    def fork(self, on_news: Callable[[], None] | None = None) -> Self:
        """A copy of the front that goes on by itself for a dry run: it is notified of nothing, and must be closed.

        Cost: the values with work, and for each value that is looked at what its fronts know.
        """
        twin = copy.copy(self)
        twin._on_news = on_news
        twin._shares = _Borrowed(self._shares, twin._fork_share)
        twin._waiting = list(self._waiting)
        twin._saved = dict(self._saved)
        twin.changed = {}
        twin._resting = {}
        twin._sweep_at = float("inf")
        return twin

    def _fork_share(self, live: Share) -> Share:
        share = Share(live.lane_id, live.value, live.pass_)
        share.is_waiting = live.is_waiting
        if live.fronts is not None:
            share.lanes_version = live.lanes_version
            share.fronts = [
                front.fork(lambda: self._news(share)) if front is not None else None for front in live.fronts
            ]
        return share

    def leaves(self) -> Iterator[Front]:
        """The fronts that set submissions aside: those of all values."""
        shares = self._shares.all() if isinstance(self._shares, _Borrowed) else self._shares.values()
        for share in shares:
            for front in share.fronts or ():
                yield from front.leaves() if front is not None else ()

    def describe(self) -> dict[str, int | float | str | bool | None]:
        """Where the front stands, for people."""
        return {
            "is_walked": not self.has_more,
            "values": len(self._shares),
            "values_with_work": len(self._waiting),
            "pass": self._served_pass,
            "rows_visited": self.rows_visited,
        }

    def _fronts(self, state: FairState, share: Share) -> list[Front | FairFront | None]:
        """The fronts of a value, made when it is first looked at, and again when a lane of theirs has come or gone."""
        fronts = share.fronts
        if fronts is None or share.lanes_version != state.fronts.lanes_version:
            share.lanes_version = state.fronts.lanes_version
            if fronts is None:
                fronts = share.fronts = [None] * len(self._inner)
            own = Filter(self.arm.fair_key, share.value)
            for number, inner in enumerate(self._inner):
                front = fronts[number]
                if front is None or front.is_stale:
                    if front is not None:
                        state.fronts.retire(front)
                    arm = inner if own in inner.filters else inner._replace(filters=(*inner.filters, own))
                    state.charge(MAKE_ROWS)
                    fronts[number] = state.fronts.make(arm, lambda: self._news(share), (own, share.lane_id), self.scope)
        return fronts

    def _news(self, share: Share) -> None:
        was_dry = self.is_dry
        self._wake(share)
        if was_dry and self._on_news is not None:
            self._on_news()

    def _rest(self, state: FairState, share: Share) -> None:
        """The value with the lowest pass has nothing now: its fronts are kept if making them again costs more."""
        heapq.heappop(self._waiting)
        share.is_waiting = False
        fronts = [front for front in share.fronts or () if front is not None]
        if any(isinstance(front, FairFront) or front.aside or front.rows_visited > KEEP_ROWS for front in fronts):
            self._resting[share.lane_id] = None
            if len(self._resting) <= RESTING_KEPT:
                return
            share = self._shares[next(iter(self._resting))]
            del self._resting[share.lane_id]
            fronts = [front for front in share.fronts or () if front is not None]
            if any(leaf.aside for front in fronts for leaf in front.leaves()):
                self._resting[share.lane_id] = None
                return
        for front in fronts:
            state.fronts.retire(front)
        share.fronts = None

    def _find_values(self, state: FairState) -> None:
        """Read some more values of the key: of all, or of the submissions in the lane of the scope."""
        if self._has_scope:
            walk = self.walk
            sql = values_sql(len(walk.probes), len(walk.absent_keys))
            bindings = (walk.lane_id, WALK_ROWS, self._level, *walk.probes, *walk.absent_keys, self.arm.fair_key)
            rows: list[Any] = state.reader.execute(sql, bindings).fetchall()
            for submission_id, is_inside, lane_id in rows:
                if not is_inside:
                    continue
                if self.arm.fair_key == SUBMISSION_KEY:
                    self._wake(self._share(~submission_id, submission_id))
                elif lane_id is None:
                    self._wake(self._share(lanes.ALL, None))
                else:
                    self._wake(self._shares.get(lane_id) or self._share(*lanes.pair_with_id(state.reader, lane_id)))
        else:
            rows = state.reader.execute(VALUES_SQL, (self.arm.fair_key, self._level, WALK_ROWS)).fetchall()
            values: list[Any] = rows
            for value, lane_id, has_open in values:
                if has_open:
                    self._wake(self._share(lane_id, value))
        if rows:
            self._level = rows[-1][0]
        self.rows_visited += len(rows)
        state.rows_left -= len(rows)
        self.has_more = len(rows) == WALK_ROWS

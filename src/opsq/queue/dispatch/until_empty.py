"""Whether a strategy may still get work without a new submission: what `--until-empty` asks, again and again.

Nothing may come when nobody is still to be told of an end, and no open submission passes the filters, but for those
that are paused and have nothing reserved or delayed. Of these there may be very many, so a search looks at each once, a
bounded number in a turn, and goes on from there the next time. Must not answer calls.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import Protocol

import apsw

from opsq.queue.dispatch.filters import takes
from opsq.queue.dispatch.rules import Rules
from opsq.queue.dispatch.walk import choose_walk
from opsq.queue.live_submission import LiveSubmission
from opsq.store import lanes
from opsq.strategy.arms import Arm

SEARCHES_KEPT = 256
"""So many searches are kept beside those of calls that wait, which are all asked in turn."""
SEARCH_ROWS = 64
LOOK_ROWS = 4
"""A submission that is looked at costs its turn as much as this many rows: most must be loaded for it."""


class SearchedState(Protocol):
    """What a search needs of the engine's state."""

    reader: apsw.Connection
    rules: Rules
    awaited_arms_count: int
    rows_left: int
    states: dict[str, int]
    has_untold: bool

    def submission(self, submission_id: int) -> LiveSubmission | None:
        """The submission in memory, loaded if need be."""

    def charge(self, rows_count: int) -> None:
        """Take work that visits no rows from the turn."""


class _Search:
    """How far an arm's submissions, by id, are known to have nothing that may come."""

    __slots__ = ("passed_id", "rules_version")

    def __init__(self, rules_version: int) -> None:
        self.passed_id = -1
        self.rules_version = rules_version


class UntilEmpty:
    """Knows of each arm that was asked for how far its submissions have nothing more."""

    def __init__(self, state: SearchedState) -> None:
        self._state = state
        self._searches: OrderedDict[str, _Search] = OrderedDict()

    def can_still_yield(self, arms: list[tuple[str, Arm]]) -> bool | None:
        """Whether anything may come for one of these arms, each with a name that is the same for equal ones.

        None: not known in this turn.

        Cost: the submissions that nobody has looked at since they may have changed; `rows_left` bounds those of a turn.
        """
        if self._state.has_untold:
            return True
        is_known = True
        for name, arm in arms:
            found = self._can_still_yield(name, arm)
            if found:
                return True
            is_known = is_known and found is not None
        return False if is_known else None

    def note_free(self, submission: LiveSubmission) -> None:
        """A submission has something to do that it may not have had when a search passed it."""
        for search in self._searches.values():
            if search.passed_id >= submission.id:
                search.passed_id = submission.id - 1

    def _can_still_yield(self, name: str, arm: Arm) -> bool | None:
        state = self._state
        if not arm.filters and not arm.inner and not state.rules.pauses:
            return state.states["open"] > 0
        walk = choose_walk(state.reader, arm)
        if walk is None:
            return False
        if walk.is_single:
            return self._has_work(arm, ~walk.lane_id)
        search = self._search(name)
        while True:
            submission_ids = lanes.open_ids(state.reader, walk.lane_id, search.passed_id, SEARCH_ROWS)
            for submission_id in submission_ids:
                if self._has_work(arm, submission_id):
                    return True
                search.passed_id = submission_id
                state.charge(LOOK_ROWS)
                if state.rows_left <= 0:
                    return None
            if len(submission_ids) < SEARCH_ROWS:
                return False

    def _has_work(self, arm: Arm, submission_id: int) -> bool:
        submission = self._state.submission(submission_id)
        if submission is None or submission.state != "open" or not takes(arm, submission):
            return False
        return bool(submission.reserved_count or submission.delayed_count or not self._state.rules.of(submission)[0])

    def _search(self, name: str) -> _Search:
        version = self._state.rules.version
        search = self._searches.get(name)
        if search is None or search.rules_version != version:
            search = self._searches[name] = _Search(version)
            while len(self._searches) > SEARCHES_KEPT + self._state.awaited_arms_count:
                self._searches.popitem(last=False)
        self._searches.move_to_end(name)
        return search

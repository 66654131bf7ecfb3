"""What holds work back: rules, dates, room, and consumers that take none of it; the one answer that all views give.

Reads only, words nothing, and looks at a bounded number of rows. It must not say what comes next (`explain_work` does).
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from typing import NamedTuple

from opsq.clock import Now
from opsq.queue.chunks.reserve import ReserveCalls
from opsq.queue.dispatch.filters import takes
from opsq.queue.dispatch.gates import Blocker
from opsq.queue.live_submission import LiveSubmission
from opsq.queue.state import EngineState
from opsq.queue.submissions.admission import Admission
from opsq.queue.views.watchdog import Watchdog
from opsq.store import dependencies, lanes, submissions
from opsq.store.dependencies import Edge
from opsq.store.rules import LimitRow, PauseRow
from opsq.strategy.arms import SUBMISSION_KEY, Arm, Filter
from opsq.strategy.tree import Value, format_value
from opsq.units import format_rate
from opsq.wire.messages import Detail, Finding

RULES_SHOWN = 10
STRATEGIES_SHOWN = 8
PAUSES_LOOKED_AT = 100
GATES_LOOKED_AT = 100
WAITS_SHOWN = 10
UNFINISHED_COUNTED = 10_000
LOOK_ROWS = 64
"""Submissions that are looked at for one rule."""
EVERYTHING = "Random"
"""A strategy that takes all."""


class Cause(NamedTuple):
    """One thing that keeps work from running: the verdict that it makes, what was found, and facts about that."""

    verdict: str
    finding: Finding
    facts: list[Finding]

    @property
    def findings(self) -> list[Finding]:
        """All of it, the main thing first."""
        return [self.finding, *self.facts]


class HeldBack:
    """Finds what holds a submission back, or what a strategy takes."""

    def __init__(
        self, state: EngineState, reserve_calls: ReserveCalls, admission: Admission, watchdog: Watchdog
    ) -> None:
        self._state = state
        self._reserve_calls = reserve_calls
        self._admission = admission
        self._watchdog = watchdog

    def of_submission(self, submission: LiveSubmission) -> list[Finding]:
        """What holds the waiting chunks of a submission back; empty: nothing, or none of them waits."""
        not_open = self.not_open(submission)
        if not_open is not None:
            return not_open.findings
        if not submission.is_offered or not submission.counts.waiting:
            return []
        causes = [*self.engine(), *self.rules(submission)]
        if not causes and not submission.reserved_count:
            causes = self._consumers(submission)
        return [found for cause in causes for found in cause.findings]

    def of_strategy(self, text: str, now: Now) -> list[Finding]:
        """What holds back the work that a strategy takes; of all work, and its consumers, if it is "".

        Raises:
            InvalidStrategy: it is none.

        Cost: a few look-ups for each pause, and for each limit at which somebody waits, up to a bound.
        """
        state = self._state
        arms = [arm for _, arm in self._reserve_calls.plan(text or EVERYTHING).arms]
        causes = self.engine()
        if state.states["open"]:
            causes += [_paused(row) for row in islice(self._pauses(arms), RULES_SHOWN)]
            causes += islice(self._limits(arms), RULES_SHOWN)
        unmatched = [each for each in self._watchdog.unmatched if text in {"", each}]
        causes += [Cause("unmatched", finding("unmatched_strategy", strategy=each), []) for each in unmatched]
        if state.states["scheduled"] and any(not arm.filters for arm in arms):
            due_at = submissions.next_due_at(state.reader) or now.wall
            count = state.states["scheduled"]
            causes.append(Cause("scheduled", finding("some_scheduled", submissions=count, due_at=due_at), []))
        if state.states["blocked"] and any(not arm.filters for arm in arms):
            found = finding("some_blocked", submissions=state.states["blocked"])
            causes.append(Cause("blocked", found, []))
        if not text and len(self._admission):
            causes.append(Cause("room", finding("room", submissions=len(self._admission)), []))
        return [found for cause in causes for found in cause.findings]

    # --- parts, also for `explain_work` ---

    def not_open(self, submission: LiveSubmission) -> Cause | None:
        """That it waits for its date, or for other submissions."""
        if submission.state == "scheduled":
            return Cause("scheduled", finding("scheduled", due_at=submission.row.not_before_at or 0), [])
        return self._blocked(submission) if submission.state == "blocked" else None

    def _blocked(self, submission: LiveSubmission) -> Cause:
        reader = self._state.reader
        count = dependencies.undecided_count(reader, submission.id)
        edges = dependencies.waits_of(reader, submission.id, min(count, WAITS_SHOWN))
        facts = [self._wait(edge) for edge in edges]
        if count > WAITS_SHOWN:
            facts.append(finding("more_waits", count=count - WAITS_SHOWN))
        return Cause("blocked", finding("blocked", conditions=count), facts)

    def _wait(self, edge: Edge) -> Finding:
        reader = self._state.reader
        if edge.target < 0:
            count = dependencies.unfinished_count(reader, ~edge.target, UNFINISHED_COUNTED + 1)
            pair = _pair(*dependencies.pair_of(reader, edge.target))
            if count > UNFINISHED_COUNTED:
                return finding("waits_many", pair=pair, unfinished=UNFINISHED_COUNTED)
            return finding("waits_pair", pair=pair, unfinished=count) if count else finding("waits_first", pair=pair)
        state = dependencies.state_of(reader, edge.target) or ""
        code = "waits_ended" if edge.needs == "ended" else "waits_completed"
        if state in submissions.FINAL_STATES:
            code = "waits_kept"
        return finding(code, submission_id=edge.target, state=state, waiting_id=edge.submission_id)

    def rules(self, submission: LiveSubmission) -> list[Cause]:
        """The pauses and the limits that hold a submission back."""
        pauses, limits = self._state.rules.of(submission)
        return [*map(_paused, pauses), *self._closed(submission, limits)]

    def engine(self) -> list[Cause]:
        """What holds everything back: a full disk, a daemon that is stopping."""
        state = self._state
        causes = [Cause("full", finding("full"), [])] if state.is_full else []
        if state.is_draining:
            causes.append(Cause("draining", finding("draining"), []))
        return causes

    def _closed(self, submission: LiveSubmission, limits: list[tuple[LimitRow, int]]) -> Iterator[Cause]:
        gates = self._state.gates
        for row, lane_id in limits:
            if row.concurrency is not None and (count := gates.reserved_under(row.key, submission)) >= row.concurrency:
                found = slots(row.key, submission, count, row.concurrency)
                fact = finding("limit", bounded=_bounded(row), concurrency=row.concurrency)
                yield Cause("limited", finding("limited", **found), [fact])
            if row.rate_per_s is not None and (wait_s := gates.next_token_s(row, lane_id)) > 0:
                fact = finding("rate", bounded=_bounded(row), rate=format_rate(row.rate_per_s, row.rate_span_s))
                yield Cause("limited", finding("rate_limited", wait_s=wait_s), [fact])

    def _consumers(self, submission: LiveSubmission) -> list[Cause]:
        """Whether nobody asks for a submission."""
        consumers = self._state.consumers
        if not consumers:
            return [no_consumer()]
        texts = set(consumers.values())
        if len(texts) > STRATEGIES_SHOWN or any(
            takes(arm, submission) for text in texts for _, arm in self._reserve_calls.plan(text).arms
        ):
            return []
        code = "unmatched" if len(consumers) == 1 else "unmatched_by_all"
        return [Cause("unmatched", finding(code, consumers=len(consumers)), [])]

    # --- of many submissions ---

    def _pauses(self, arms: list[Arm]) -> Iterator[PauseRow]:
        for row in islice(self._state.rules.pauses, PAUSES_LOOKED_AT):
            found, is_cut = self._example(arms, tuple(Filter(key, value) for key, value in row.pairs))
            if found is not None or is_cut:  # to say nothing would be worse than to name one pause too many
                yield row

    def _limits(self, arms: list[Arm]) -> Iterator[Cause]:
        """The limits at which fronts have set something aside, each with a submission that it holds."""
        state = self._state
        seen: list[Finding] = []
        for blocker in state.gates.closed(GATES_LOOKED_AT):
            pair = self._pair_of(blocker)
            submission, _ = self._example(arms, (pair,))
            if submission is None:
                continue
            for cause in self._closed(submission, state.rules.of(submission)[1]):
                if cause.facts[0] not in seen:
                    seen.append(cause.facts[0])
                    yield cause

    def _pair_of(self, blocker: Blocker) -> Filter:
        lane_id = blocker.lane_id if blocker.kind == "rate" else blocker.number
        if lane_id < 0:
            return Filter(SUBMISSION_KEY, ~lane_id)
        return Filter(*self._state.rules.pair_of_lane(lane_id))

    def _example(self, arms: list[Arm], pairs: tuple[Filter, ...]) -> tuple[LiveSubmission | None, bool]:
        """A submission with waiting chunks that has all pairs and that one of the arms takes, and whether to go on.

        None and True: none was found among as many as are looked at, but there are more.
        """
        is_cut = False
        for arm in (arm.within(pairs, ()) for arm in arms):
            submission_ids, has_more = self._candidates(arm)
            for submission_id in submission_ids:
                found = self._state.submission(submission_id)
                if found is not None and found.is_open and found.counts.waiting and takes(arm, found):
                    return found, False
            is_cut = is_cut or has_more
        return None, is_cut

    def _candidates(self, arm: Arm) -> tuple[list[int], bool]:
        """Open submissions that may pass the filters of an arm, and whether there may be more.

        They are among the first of the lane with the fewest. To load one only to see that it has not all pairs would
        take ten times as long.
        """
        reader = self._state.reader
        if arm.is_impossible:
            return [], False
        for entry in arm.filters:
            if entry.key == SUBMISSION_KEY:
                return [entry.value] if isinstance(entry.value, int) and entry.value >= 0 else [], False
        found = [lanes.find(reader, entry.key, entry.value) for entry in arm.filters if entry.value is not None]
        lane_ids = [lane_id for lane_id in found if lane_id is not None]
        if len(lane_ids) < len(found):
            return [], False
        if len(lane_ids) > 1:
            lane_ids.sort(key=lambda lane_id: lanes.open_count(reader, lane_id, LOOK_ROWS))
        return lanes.common_ids(reader, lane_ids or [lanes.ALL], LOOK_ROWS)


def no_consumer() -> Cause:
    """Nobody asks for anything."""
    return Cause("no_consumer", finding("no_consumer"), [finding("take")])


def slots(key: str, submission: LiveSubmission, count: int, bound: int) -> dict[str, Detail]:
    """How many chunks of a value (without a pair: of a submission) a limit or gate allows, and how many there are."""
    pair: dict[str, Detail] = {} if key == SUBMISSION_KEY else {"pair": _pair(key, submission.metadata[key])}
    return {**pair, "count": count, "bound": bound}


def _paused(row: PauseRow) -> Cause:
    pairs = " ".join(_pair(key, value) for key, value in row.pairs)
    code, fact = ("paused_by_operator", "resume_operator") if row.by_operator else ("paused", "resume")
    paused = finding(code, by=row.by_name or "", paused_at=row.paused_at, pairs=pairs)
    return Cause("paused", paused, [finding(fact, pairs=pairs)])


def finding(code: str, **details: Detail) -> Finding:
    """One thing that was found."""
    return Finding(code, details)


def _pair(key: str, value: Value) -> str:
    return f"{key}={format_value(value)}"


def _bounded(row: LimitRow) -> str:
    """What a limit is for: a pair, or a key, each value of which it bounds."""
    return row.key if row.value is None else _pair(row.key, row.value)

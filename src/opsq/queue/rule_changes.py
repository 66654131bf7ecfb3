"""Requests of operators about rules: pause, resume, limit, unlimit, weight, and the list of all.

A change is in force at once and stored with the batch; if that fails, what the file says holds again.
"""

from __future__ import annotations

from opsq.clock import Now
from opsq.errors import NotFound, NotPermitted, UsageError
from opsq.queue.peer import Peer
from opsq.queue.state import EngineState
from opsq.store import events, lanes, rules
from opsq.store.rules import LimitRow, PauseRow, Value
from opsq.strategy.arms import SUBMISSION_KEY
from opsq.wire.messages import (
    RATE_MAX_PER_S,
    RATE_MIN_PER_S,
    Changed,
    Limit,
    LimitState,
    Pause,
    PauseState,
    Resume,
    RulesState,
    ShowRules,
    Unlimit,
    Weight,
    WeightState,
)

WEIGHT_MIN, WEIGHT_MAX = 0.001, 1000.0


class RuleChanges:
    """Changes rules."""

    def __init__(self, state: EngineState) -> None:
        self._state = state
        self._rules = state.rules
        known = [*(row.id for row in self._rules.pauses), *(row.id for row in self._rules.limits)]
        self._next_id = max(known, default=0) + 1

    def pause(self, peer: Peer, request: Pause, now: Now) -> None:
        """Hold back every submission that has all the pairs.

        Pausing twice changes nothing, but an operator's pause stays one.
        """
        pairs = tuple(sorted(request.metadata.items()))
        known = next((row for row in self._rules.pauses if row.pairs == pairs), None)
        if known is not None and (known.by_operator or not request.by_operator):
            self._catch_up(request.revision, now)
            self._state.batch.replies.append((peer, Changed(request.id, 0)))
            return
        row = PauseRow(
            known.id if known is not None else self.new_id(), pairs, request.by_operator, request.by_name, now.wall
        )
        batch = self._state.batch
        batch.statements.append(lambda database, _: rules.put_pause(database.writer, row))
        batch.events.append(events.new(now.wall, "paused", metadata=request.metadata, by_name=request.by_name or ""))
        self.revise(request.revision, now)
        self.change([other for other in self._rules.pauses if other.pairs != pairs] + [row], self._rules.limits)
        self._state.batch.replies.append((peer, Changed(request.id, 1)))

    def resume(self, peer: Peer, request: Resume, now: Now) -> None:
        """End the pause with exactly these pairs.

        Raises:
            NotPermitted: an operator set it, and this is not an operator's request.
        """
        pairs = tuple(sorted(request.metadata.items()))
        known = next((row for row in self._rules.pauses if row.pairs == pairs), None)
        if known is None:
            self._catch_up(request.revision, now)
            self._state.batch.replies.append((peer, Changed(request.id, 0)))
            return
        if known.by_operator and not request.by_operator:
            raise NotPermitted(cause="operator_pause", by=known.by_name or "")
        batch = self._state.batch
        batch.statements.append(lambda database, _: rules.delete_pause(database.writer, known.id))
        batch.events.append(events.new(now.wall, "resumed", metadata=request.metadata))
        self.revise(request.revision, now)
        self.change([row for row in self._rules.pauses if row is not known], self._rules.limits)
        self._state.batch.replies.append((peer, Changed(request.id, 1)))

    def limit(self, peer: Peer, request: Limit, now: Now) -> None:
        """Bound a pair, or each value of a key; replaces the limit for the same."""
        check_limit(request)
        known = next(
            (row for row in self._rules.limits if row.key == request.key and _is_same(row.value, request.value)), None
        )
        row = LimitRow(
            known.id if known is not None else self.new_id(),
            request.key,
            request.value,
            request.concurrency,
            request.rate_per_s,
            request.burst,
            request.by_name,
            now.wall,
            request.rate_span_s,
        )
        self._state.batch.statements.append(lambda database, _: rules.put_limit(database.writer, row))
        self.revise(request.revision, now)
        self.change(self._rules.pauses, [other for other in self._rules.limits if other is not known] + [row])
        is_matched = request.key == SUBMISSION_KEY or lanes.is_in_use(self._state.reader, request.key, request.value)
        self._state.batch.replies.append((peer, Changed(request.id, 1, is_matched)))

    def unlimit(self, peer: Peer, request: Unlimit, now: Now) -> None:
        """Lift a limit; `NotFound` if there is none."""
        known = next(
            (row for row in self._rules.limits if row.key == request.key and _is_same(row.value, request.value)), None
        )
        if known is None:
            raise NotFound(cause="unknown_limit")
        self._state.batch.statements.append(lambda database, _: rules.delete_limit(database.writer, known.id))
        self.revise(request.revision, now)
        self.change(self._rules.pauses, [row for row in self._rules.limits if row is not known])
        self._state.batch.replies.append((peer, Changed(request.id, 1)))

    def set_weight(self, peer: Peer, request: Weight, now: Now) -> None:
        """Give a value of a key a weight in `Fair`; it holds from its next turn on."""
        self.put_weight(request.key, request.value, request.weight, by_submission=False)
        self.revise(request.revision, now)
        self._state.batch.replies.append((peer, Changed(request.id, 1)))

    def put_weight(self, key: str, value: Value, weight: float, *, by_submission: bool) -> None:
        """Set a weight with the batch."""
        check_weight(weight)
        rules_in_force, batch = self._rules, self._state.batch
        rules_in_force.set_weight(key, value, weight, by_submission=by_submission)
        batch.statements.append(
            lambda db, _: rules.put_weight(db.writer, key, value, weight, by_submission=by_submission)
        )
        batch.after.append(lambda _: rules_in_force.weight_stored(key, value))
        batch.on_failed.append(lambda _: rules_in_force.weight_stored(key, value))
        batch.on_failed.append(lambda _: self._reload())

    def show(self, peer: Peer, request: ShowRules) -> None:
        """Answer with all rules."""
        self._state.reply(
            peer,
            RulesState(
                request.id,
                [
                    PauseState(dict(row.pairs), row.by_operator, row.by_name, row.paused_at)
                    for row in self._rules.pauses
                ],
                [self._limit_state(row) for row in self._rules.limits],
                [
                    WeightState(key, value, weight, (key, value) in self._rules.weights_of_submissions)
                    for (key, value), weight in sorted(self._rules.weights.items(), key=str)
                    if weight != 1
                ],
                self._rules.revision,
            ),
        )

    def _limit_state(self, row: LimitRow) -> LimitState:
        reserved_count, busiest = self._state.gates.busiest(row) or (None, None)
        if row.rate_per_s is not None:  # an older file may have another
            row = row._replace(rate_per_s=min(max(row.rate_per_s, RATE_MIN_PER_S), RATE_MAX_PER_S))
        return LimitState(*row[1:-1], reserved_count, busiest, row.rate_span_s)

    def new_id(self) -> int:
        """An id for a rule."""
        self._next_id += 1
        return self._next_id - 1

    def revise(self, asked: int, now: Now) -> None:
        """Raise the revision with the batch: to what is asked for, so that shards agree, or else by the clock."""
        in_force, batch = self._rules, self._state.batch
        revision = asked if asked > in_force.revision else max(in_force.revision + 1, now.wall)
        in_force.revision = revision
        batch.statements.append(lambda database, _: rules.put_revision(database.writer, revision))
        batch.after.append(lambda _: in_force.revision_stored(revision))
        batch.on_failed.append(lambda _: self._reload())

    def _catch_up(self, asked: int, now: Now) -> None:
        """A request has changed nothing, but elsewhere it may have: the revisions are to be the same."""
        if asked > self._rules.revision:
            self.revise(asked, now)

    def change(self, pauses: list[PauseRow], limits: list[LimitRow]) -> None:
        """Rules hold at once: a pause that is being committed must not let another chunk through."""
        state = self._state
        self._rules.replace(pauses, limits)
        state.gates.watch(self._rules.limited_keys)
        state.gates.rules_changed()
        state.note_news()  # a pause may be the end of what a call waits for
        state.batch.on_failed.append(lambda _: self._reload())

    def _reload(self) -> None:
        """A change is gone: what the file says holds, and what others have written in a transaction that is open."""
        self._rules.reload(self._state.database.latest)
        self._state.gates.rules_changed()


def check_limit(limit: Limit | LimitState) -> None:
    """`UsageError` unless a limit is possible."""
    if limit.concurrency is None and limit.rate_per_s is None:
        raise UsageError(cause="empty_limit")
    if limit.burst is not None and limit.rate_per_s is None:
        raise UsageError(cause="burst_without_rate")
    if limit.key == SUBMISSION_KEY and limit.value is not None:
        raise UsageError(cause="limit_of_one_submission")


def check_weight(weight: float) -> None:
    """`UsageError` unless a weight is possible."""
    if not WEIGHT_MIN <= weight <= WEIGHT_MAX:
        raise UsageError(cause="weight_out_of_range", weight=weight, min=WEIGHT_MIN, max=WEIGHT_MAX)


def _is_same(left: Value | None, right: Value | None) -> bool:
    return type(left) is type(right) and left == right

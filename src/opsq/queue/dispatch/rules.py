"""Rules of operators: pauses, limits and weights. Owns them in memory and in the file; what they hold back is the gates' business."""

from __future__ import annotations

from typing import TYPE_CHECKING

from opsq.clock import Now
from opsq.errors import NotFound, NotPermitted, UsageError
from opsq.store import lanes, rules
from opsq.store.lanes import GoneLane
from opsq.store.rules import LimitRow, PauseRow, Value
from opsq.strategy.arms import SUBMISSION_KEY
from opsq.wire.messages import (
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

if TYPE_CHECKING:
    from opsq.queue.chunks.live_submission import LiveSubmission
    from opsq.queue.state import EngineState, Peer

NO_LIMIT = 1 << 62
"""More than can ever be reserved."""
METADATA_KEPT = 4_096
"""For so many different metadata it is remembered which limits they fall under; to work it out takes 10 µs."""
WEIGHT_MIN, WEIGHT_MAX = 0.001, 1000.0


class Rules:
    """Every rule that is in force."""

    def __init__(self, state: EngineState) -> None:
        self._state = state
        self.pauses = rules.pauses(state.reader)
        self.limits = rules.limits(state.reader)
        self._weights = rules.weights(state.reader)
        self._weighing: set[tuple[str, Value]] = set()
        """Pairs whose weights are being committed."""
        self._next_id = max([*(row.id for row in self.pauses), *(row.id for row in self.limits)], default=0) + 1
        self._keys_of_lanes: dict[int, tuple[str, Value]] = {}
        self.version = 1 if self.pauses or self.limits else 0
        """0: there is no pause and no limit; else it grows with every change."""

    @property
    def pauses(self) -> list[PauseRow]:
        """Every pause."""
        return self._pauses

    @pauses.setter
    def pauses(self, pauses: list[PauseRow]) -> None:
        self._pauses = pauses
        self.is_all_paused = any(not row.pairs for row in pauses)
        """Whether a pause holds everything: then nobody need look for what it does not hold."""

    @property
    def limited_keys(self) -> frozenset[str]:
        """The keys under which live reservations must be counted."""
        return frozenset(limit.key for limit in self.limits if limit.concurrency is not None)

    @property
    def limits(self) -> list[LimitRow]:
        """Every limit."""
        return self._limits

    @limits.setter
    def limits(self, limits: list[LimitRow]) -> None:
        self._limits = limits
        self.has_rates = any(limit.rate_per_s is not None for limit in limits)
        self._limit_of = {(row.key, row.value): (position, row) for position, row in enumerate(limits)}
        self._limits_under: dict[bytes, list[tuple[int, LimitRow, int]]] = {}

    def of(self, submission: LiveSubmission) -> tuple[list[PauseRow], list[tuple[LimitRow, int]]]:
        """The pauses and the limits (each with its lane) that a submission falls under; worked out once a change.

        Cost: the pauses, and the limits that it falls under, however many there are.
        """
        found: tuple[list[PauseRow], list[tuple[LimitRow, int]]] | None = (
            submission.rules if submission.rules_version == self.version else None
        )
        if found is None:
            pauses: list[PauseRow] = []
            if self._pauses:
                metadata = submission.metadata | {SUBMISSION_KEY: submission.id}
                pauses = [row for row in self._pauses if all(metadata.get(key) == value for key, value in row.pairs)]
            under = self._under(submission)
            own = self._limit_of.get((SUBMISSION_KEY, None))
            if own is not None:
                under = sorted(
                    [*under, (*own, ~submission.id)]
                )  # as the rules stand; positions differ, so that nothing else is compared
            limits = [(row, lane_id) for _, row, lane_id in under]
            found = submission.rules = (pauses, limits)
            submission.rates = [(row, lane_id) for row, lane_id in limits if row.rate_per_s is not None]
            submission.rules_version = self.version
            submission.taken_until = 0  # what was found under other rules does not hold any more
        return found

    def _under(self, submission: LiveSubmission) -> list[tuple[int, LimitRow, int]]:
        """The limits on the metadata of a submission, in order: (place, limit, lane). Worked out once for all with the same metadata."""
        found = self._limits_under.get(submission.row.lanes)
        if found is None:
            limit_of, found = self._limit_of, []
            for key, (lane_id, value) in submission.lane_of.items():
                pairs = ((key, None), (key, value))  # integers and text are never equal
                found += [(*limit_of[pair], lane_id) for pair in pairs if pair in limit_of]
            found.sort()
            if len(self._limits_under) >= METADATA_KEPT:
                self._limits_under.clear()
            self._limits_under[submission.row.lanes] = found
        return found

    def rates_of(self, submission: LiveSubmission) -> list[tuple[LimitRow, int]]:
        """Those of the limits that a submission falls under that have a rate."""
        if submission.rules_version != self.version:
            self.of(submission)
        return submission.rates

    def is_paused(self, pause_id: int) -> bool:
        """Whether a pause is in force."""
        return any(row.id == pause_id for row in self.pauses)

    def limits_of_key(self, key: str) -> list[LimitRow]:
        """The limits on values of a key."""
        return [row for row in self._limits if row.key == key]

    def key_of_lane(self, lane_id: int) -> str:
        """The key of a lane."""
        return self.pair_of_lane(lane_id)[0]

    def concurrency_of(self, lane_id: int) -> int:
        """The lowest concurrency limit on a lane."""
        if not self.limits:
            return NO_LIMIT
        key, value = self.pair_of_lane(lane_id)
        return min(
            (row.concurrency or NO_LIMIT for row in self.limits_of_key(key) if row.value in {None, value}),
            default=NO_LIMIT,
        )

    def pair_of_lane(self, lane_id: int) -> tuple[str, Value]:
        """Key and value of a lane."""
        pair = self._keys_of_lanes.get(lane_id)
        if pair is None:
            if len(self._keys_of_lanes) > 100_000:
                self._keys_of_lanes.clear()
            pair = self._keys_of_lanes[lane_id] = lanes.pair(self._state.reader, lane_id)
        return pair

    def forget_lane(self, lane: GoneLane) -> None:
        """A lane is no more, nor the weight that came with its submissions."""
        self._keys_of_lanes.pop(lane.id, None)
        pair = (lane.key, lane.value)
        if pair in self._weights and pair not in self._weighing and rules.weight(self._state.reader, *pair) is None:
            del self._weights[pair]

    def weight(self, key: str, value: Value | None) -> float:
        """The weight of a value in `Fair`; 1 unless it was set."""
        return self._weights.get((key, value), 1.0) if value is not None else 1.0

    # --- requests -----------------------------------------------------------------------------------------------------------------

    def pause(self, peer: Peer, request: Pause, now: Now) -> None:
        """Hold back every submission that has all the pairs; pausing twice changes nothing, but an operator's pause stays one."""
        pairs = tuple(sorted(request.metadata.items()))
        known = next((row for row in self.pauses if row.pairs == pairs), None)
        if known is not None and (known.by_operator or not request.by_operator):
            self._state.batch.replies.append((peer, Changed(request.id, 0)))
            return
        row = PauseRow(
            known.id if known is not None else self._new_id(), pairs, request.by_operator, request.by_name, now.wall
        )
        self._state.batch.statements.append(lambda database, _: rules.put_pause(database.writer, row))
        self._change([other for other in self.pauses if other.pairs != pairs] + [row], self.limits)
        self._state.batch.replies.append((peer, Changed(request.id, 1)))

    def resume(self, peer: Peer, request: Resume, now: Now) -> None:
        """End the pause with exactly these pairs.

        Raises:
            NotPermitted: an operator set it, and this is not an operator's request.
        """
        pairs = tuple(sorted(request.metadata.items()))
        known = next((row for row in self.pauses if row.pairs == pairs), None)
        if known is None:
            self._state.batch.replies.append((peer, Changed(request.id, 0)))
            return
        if known.by_operator and not request.by_operator:
            raise NotPermitted(cause="operator_pause", by=known.by_name or "")
        self._state.batch.statements.append(lambda database, _: rules.delete_pause(database.writer, known.id))
        self._change([row for row in self.pauses if row is not known], self.limits)
        self._state.batch.replies.append((peer, Changed(request.id, 1)))

    def limit(self, peer: Peer, request: Limit, now: Now) -> None:
        """Bound a pair, or each value of a key; replaces the limit for the same."""
        if request.concurrency is None and request.rate_per_s is None:
            raise UsageError(cause="empty_limit")
        if request.burst is not None and request.rate_per_s is None:
            raise UsageError(cause="burst_without_rate")
        if request.key == SUBMISSION_KEY and request.value is not None:
            raise UsageError(cause="limit_of_one_submission")
        known = next(
            (row for row in self.limits if row.key == request.key and _is_same(row.value, request.value)), None
        )
        row = LimitRow(
            known.id if known is not None else self._new_id(),
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
        self._change(self.pauses, [other for other in self.limits if other is not known] + [row])
        self._state.batch.replies.append((peer, Changed(request.id, 1)))

    def unlimit(self, peer: Peer, request: Unlimit, now: Now) -> None:
        """Lift a limit; `NotFound` if there is none."""
        known = next(
            (row for row in self.limits if row.key == request.key and _is_same(row.value, request.value)), None
        )
        if known is None:
            raise NotFound(cause="unknown_limit")
        self._state.batch.statements.append(lambda database, _: rules.delete_limit(database.writer, known.id))
        self._change(self.pauses, [row for row in self.limits if row is not known])
        self._state.batch.replies.append((peer, Changed(request.id, 1)))

    def set_weight(self, peer: Peer, request: Weight, now: Now) -> None:
        """Give a value of a key a weight in `Fair`; it holds from its next turn on."""
        self.put_weight(request.key, request.value, request.weight, by_submission=False)
        self._state.batch.replies.append((peer, Changed(request.id, 1)))

    def put_weight(self, key: str, value: Value, weight: float, *, by_submission: bool) -> None:
        """Set a weight with the batch."""
        check_weight(weight)
        self._weights[key, value] = weight
        self._weighing.add((key, value))
        self._state.batch.after.append(lambda _: self._weighing.discard((key, value)))
        batch = self._state.batch
        batch.statements.append(
            lambda db, _: rules.put_weight(db.writer, key, value, weight, by_submission=by_submission)
        )
        self._state.batch.on_failed.append(lambda _: self._weighing.discard((key, value)))
        self._state.batch.on_failed.append(lambda _: self._reload())

    def show(self, peer: Peer, request: ShowRules) -> None:
        """Answer with all rules."""
        self._state.reply(
            peer,
            RulesState(
                request.id,
                [PauseState(dict(row.pairs), row.by_operator, row.by_name, row.paused_at) for row in self.pauses],
                [self._limit_state(row) for row in self.limits],
                [
                    WeightState(key, value, weight)
                    for (key, value), weight in sorted(self._weights.items(), key=str)
                    if weight != 1
                ],
            ),
        )

    def _limit_state(self, row: LimitRow) -> LimitState:
        reserved_count, busiest = self._state.gates.busiest(row) or (None, None)
        return LimitState(*row[1:-1], reserved_count, busiest, row.rate_span_s)

    def _new_id(self) -> int:
        self._next_id += 1
        return self._next_id - 1

    def _change(self, pauses: list[PauseRow], limits: list[LimitRow]) -> None:
        """Rules hold at once: a pause that is being committed must not let another chunk through."""
        self.pauses, self.limits = pauses, limits
        self.version += 1
        self._state.gates.watch(self.limited_keys)
        self._state.gates.rules_changed()
        self._state.has_news = True  # a pause may be the end of what a call waits for
        self._state.batch.on_failed.append(lambda _: self._reload())

    def _reload(self) -> None:
        """The batch of a change is gone: what the file says holds."""
        reader = self._state.reader
        self.pauses, self.limits, self._weights = rules.pauses(reader), rules.limits(reader), rules.weights(reader)
        self.version += 1
        self._state.gates.rules_changed()


def check_weight(weight: float) -> None:
    """`UsageError` unless a weight is possible."""
    if not WEIGHT_MIN <= weight <= WEIGHT_MAX:
        raise UsageError(cause="weight_out_of_range", weight=weight, min=WEIGHT_MIN, max=WEIGHT_MAX)


def _is_same(left: Value | None, right: Value | None) -> bool:
    return type(left) is type(right) and left == right

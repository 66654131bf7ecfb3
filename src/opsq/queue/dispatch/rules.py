"""Rules of operators that are in force: pauses, limits and weights, and which of them hold for a submission.

Must not change them (`rule_changes` does) nor hold anything back (`gates` does).
"""

from __future__ import annotations

from collections.abc import Iterator

import apsw

from opsq.queue.lane_set import LaneSet
from opsq.queue.live_submission import LiveSubmission
from opsq.store import lanes, rules
from opsq.store.lanes import GoneLane
from opsq.store.rules import LimitRow, PauseRow, Value
from opsq.strategy.arms import SUBMISSION_KEY

NO_LIMIT = 1 << 62
"""More than can ever be reserved."""


class Rules:
    """Every rule that is in force."""

    def __init__(self, reader: apsw.Connection) -> None:
        self._reader = reader
        self.pauses = rules.pauses(reader)
        self.limits = rules.limits(reader)
        self.weights = rules.weights(reader)
        self.weights_of_submissions = rules.weights_of_submissions(reader)
        self.revision = self.committed_revision = rules.revision(reader)
        self._weighing: set[tuple[str, Value]] = set()
        """Pairs whose weights are being committed."""
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
        own = self._limit_of.get((SUBMISSION_KEY, None))
        self.own_limit = own[1] if own is not None else None
        """The limit on each submission."""
        self.own_most = own[1].concurrency or NO_LIMIT if own is not None else NO_LIMIT
        self.has_own_rate = own is not None and own[1].rate_per_s is not None

    def of(self, submission: LiveSubmission) -> tuple[list[PauseRow], list[tuple[LimitRow, int]]]:
        """The pauses and the limits (each with its lane) that a submission falls under, in order.

        Cost: those that it falls under, however many there are.
        """
        lane_set = self.brought(submission.lane_set)
        under = lane_set.limits
        own = self._limit_of.get((SUBMISSION_KEY, None))
        if own is not None:
            # As the rules stand; positions differ, so that nothing else is compared.
            under = tuple(sorted([*under, (*own, ~submission.id)]))
        pauses = [row for row, only in lane_set.pauses if only in {None, submission.id}]
        return pauses, [(row, lane_id) for _, row, lane_id in under]

    def brought(self, lane_set: LaneSet) -> LaneSet:
        """The same set; from now on it says what the rules in force say of it. Worked out once a change of the rules.

        What a limit on submissions says is left out, since it says it of each.
        """
        if lane_set.rules_version == self.version:
            return lane_set
        limit_of, under = self._limit_of, []
        caps: dict[int, int] = {}
        for key, (lane_id, value) in lane_set.lane_of.items() if limit_of else ():
            for pair in ((key, None), (key, value)):  # integers and text are never equal
                if pair in limit_of:
                    place, row = limit_of[pair]
                    under.append((place, row, lane_id))
                    if row.concurrency is not None:
                        caps[lane_id] = min(caps.get(lane_id, NO_LIMIT), row.concurrency)
        under.sort()
        lane_set.limits = tuple(under)
        lane_set.caps = tuple(caps.items())
        lane_set.rates = tuple((row, lane_id) for _, row, lane_id in under if row.rate_per_s is not None)
        lane_set.pauses = tuple(self._pauses_of(lane_set.metadata)) if self._pauses else ()
        lane_set.taken_until = 0  # what was found under other rules does not hold any more
        lane_set.rules_version = self.version
        return lane_set

    def _pauses_of(self, metadata: dict[str, Value]) -> Iterator[tuple[PauseRow, Value | None]]:
        """The pauses that hold submissions with these pairs, each with the id of the only one that it holds."""
        for row in self._pauses:
            pairs = dict(row.pairs)
            only = pairs.pop(SUBMISSION_KEY, None)
            if all(metadata.get(key) == value for key, value in pairs.items()):
                yield row, only

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
            pair = self._keys_of_lanes[lane_id] = lanes.pair(self._reader, lane_id)
        return pair

    def forget_lane(self, lane: GoneLane) -> None:
        """A lane is no more, nor the weight that came with its submissions."""
        self._keys_of_lanes.pop(lane.id, None)
        pair = (lane.key, lane.value)
        if pair in self.weights and pair not in self._weighing and rules.weight(self._reader, *pair) is None:
            del self.weights[pair]
            self.weights_of_submissions.discard(pair)

    def weight(self, key: str, value: Value | None) -> float:
        """The weight of a value in `Fair`; 1 unless it was set."""
        return self.weights.get((key, value), 1.0) if value is not None else 1.0

    # --- changes ---

    def replace(self, pauses: list[PauseRow], limits: list[LimitRow]) -> None:
        """Put other pauses and limits in force, at once."""
        self.pauses, self.limits = pauses, limits
        self.version += 1

    def set_weight(self, key: str, value: Value, weight: float, *, by_submission: bool) -> None:
        """Put a weight in force; `weight_stored` must follow when it is committed or lost."""
        self.weights[key, value] = weight
        if by_submission:
            self.weights_of_submissions.add((key, value))
        else:
            self.weights_of_submissions.discard((key, value))
        self._weighing.add((key, value))

    def weight_stored(self, key: str, value: Value) -> None:
        """The file is up to date with a weight."""
        self._weighing.discard((key, value))

    def revision_stored(self, revision: int) -> None:
        """The file has this revision."""
        self.committed_revision = revision

    def reload(self, connection: apsw.Connection) -> None:
        """Put in force what this connection sees of the file."""
        self.revision = rules.revision(connection)
        self.weights = rules.weights(connection)
        self.weights_of_submissions = rules.weights_of_submissions(connection)
        self.replace(rules.pauses(connection), rules.limits(connection))

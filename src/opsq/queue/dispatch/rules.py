"""Rules of operators that are in force: pauses, limits and weights, and which of them hold for a submission.

Must not change them (`rule_changes` does) nor hold anything back (`gates` does).
"""

from __future__ import annotations

import apsw

from opsq.queue.live_submission import LiveSubmission
from opsq.store import lanes, rules
from opsq.store.lanes import GoneLane
from opsq.store.rules import LimitRow, PauseRow, Value
from opsq.strategy.arms import SUBMISSION_KEY

NO_LIMIT = 1 << 62
"""More than can ever be reserved."""
METADATA_KEPT = 4_096
"""Different metadata for which the limits that apply are remembered; to work them out takes 10 µs."""


class Rules:
    """Every rule that is in force."""

    def __init__(self, reader: apsw.Connection) -> None:
        self._reader = reader
        self.pauses = rules.pauses(reader)
        self.limits = rules.limits(reader)
        self.weights = rules.weights(reader)
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
        """The limits on the metadata of a submission, in order: (place, limit, lane).

        Worked out once for all with the same metadata.
        """
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
            pair = self._keys_of_lanes[lane_id] = lanes.pair(self._reader, lane_id)
        return pair

    def forget_lane(self, lane: GoneLane) -> None:
        """A lane is no more, nor the weight that came with its submissions."""
        self._keys_of_lanes.pop(lane.id, None)
        pair = (lane.key, lane.value)
        if pair in self.weights and pair not in self._weighing and rules.weight(self._reader, *pair) is None:
            del self.weights[pair]

    def weight(self, key: str, value: Value | None) -> float:
        """The weight of a value in `Fair`; 1 unless it was set."""
        return self.weights.get((key, value), 1.0) if value is not None else 1.0

    # --- changes ---

    def replace(self, pauses: list[PauseRow], limits: list[LimitRow]) -> None:
        """Put other pauses and limits in force, at once."""
        self.pauses, self.limits = pauses, limits
        self.version += 1

    def set_weight(self, key: str, value: Value, weight: float) -> None:
        """Put a weight in force; `weight_stored` must follow when it is committed or lost."""
        self.weights[key, value] = weight
        self._weighing.add((key, value))

    def weight_stored(self, key: str, value: Value) -> None:
        """The file is up to date with a weight."""
        self._weighing.discard((key, value))

    def reload(self) -> None:
        """Put in force what the file says."""
        self.weights = rules.weights(self._reader)
        self.replace(rules.pauses(self._reader), rules.limits(self._reader))

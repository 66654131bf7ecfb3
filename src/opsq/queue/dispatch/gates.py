"""Gates: what holds a submission back although it has free chunks, and who is waiting behind it.

One mechanism for the gates of strategies (`PreferDistinct`, `MaxSimultaneous`), for the limits and for the pauses of
operators. Owns the counts of live reservations per metadata value, the token buckets, and for each closed gate the
fronts that have set something aside under it. It must not decide what comes next. Counts are kept only for keys that
some gate asks about.
"""

from __future__ import annotations

import heapq
import math
from collections import defaultdict
from collections.abc import Mapping
from itertools import islice
from typing import NamedTuple, Protocol

from opsq.clock import MonoNs, Now
from opsq.queue.dispatch.rate_limit import Bucket
from opsq.queue.dispatch.rules import NO_LIMIT, Rules
from opsq.queue.lane_set import LaneSet, Stranger
from opsq.queue.live_submission import LiveSubmission
from opsq.queue.peer import Peer
from opsq.store.rules import LimitRow
from opsq.strategy.arms import SUBMISSION_KEY, Gate
from opsq.strategy.tree import Max, Percent, Value

REFRESH_NS = 1_000_000_000
"""A percentage follows the count of consumers at most this often."""
TOKENS_A_TICK = 1_000
"""Tokens that wake somebody in one tick; if more have come, the next tick follows at once."""
BUCKETS_KEPT = 10_000
"""Token buckets in memory; beyond this number those that are full are forgotten, which changes nothing."""


class Blocker(NamedTuple):
    """What a submission waits for: a token, the end of a pause, or the count of a lane (`live`; `~id`: its own)."""

    kind: str
    number: int
    lane_id: int = 0


class Waiter(Protocol):
    """A front that has set submissions aside behind a gate."""

    def readmit(self, gates: Gates, blocker: Blocker) -> bool:
        """Bring back the best of what waits at a gate, if that may have opened; whether any came back."""


class GatedState(Protocol):
    """What the gates need of the engine's state."""

    @property
    def now(self) -> Now:
        """When the process started."""

    @property
    def wanted(self) -> int:
        """How many chunks the present turn may give."""

    @property
    def live(self) -> Mapping[int, LiveSubmission]:
        """The submissions in memory."""

    @property
    def consumers(self) -> Mapping[Peer, str]:
        """The connected consumers."""

    def note_news(self) -> None:
        """Have parked calls looked at."""


class Gates:
    """The gates of all strategies and rules."""

    def __init__(self, state: GatedState, rules: Rules) -> None:
        self._state = state
        self._rules = rules
        self._live: defaultdict[int, int] = defaultdict(int)
        self._taken_count = 0
        """Chunks reserved so far, by anyone."""
        self._keys: frozenset[str] = frozenset()
        self._waiting: dict[Blocker, dict[Waiter, None]] = {}
        self._buckets: dict[tuple[int, int], Bucket] = {}
        """By limit and lane; another table whenever one was dropped, so that lane sets look theirs up again."""
        self._buckets_room = BUCKETS_KEPT
        self._tokens: list[tuple[MonoNs, Blocker]] = []
        self._armed: set[Blocker] = set()
        """Rates whose next token is waited for, each once.

        To the nanosecond, or a burst of 1 would slow a high rate.
        """
        self.is_trial = False
        """What is looked at now waits for nothing, and the tokens that it takes are put back."""
        self._clock = state.now
        self._consumers_count = 1
        self._refreshed: MonoNs = state.now.mono

    # --- looking ---

    def watch(self, keys: frozenset[str]) -> None:
        """Count live reservations under these keys from now on."""
        added = keys - self._keys - {SUBMISSION_KEY}
        if not added:
            return
        self._keys |= added
        for submission in self._state.live.values():
            if submission.reserved_count:
                for key in added:
                    found = submission.lane_of.get(key)
                    if found is not None:
                        self._live[found[0]] = self._live.get(found[0], 0) + submission.reserved_count

    def look(self, gates: tuple[Gate, ...], submission: LiveSubmission | Stranger) -> tuple[Blocker | None, int]:
        """The first closed gate before a submission, or None and how many chunks may pass before one closes."""
        room = NO_LIMIT
        blocker: Blocker | None = None
        if not gates and not self._rules.version:
            return None, room
        for key, maximum in gates:
            number = self._number_of(key, submission)
            if number is None:
                continue
            left = self.max_of(maximum) - self._count(number, submission)
            if left < room:
                if left <= 0:
                    return Blocker("live", number), 0
                room = left
        rules = self._rules
        version = rules.version
        if not version:
            return None, room
        lane_set = submission.lane_set
        if lane_set.rules_version != version:
            rules.brought(lane_set)
        for pause, only in lane_set.pauses:
            if only is None or only == submission.id:
                return Blocker("pause", pause.id), 0
        # Counts rise and tokens fall by what is reserved and by nothing else: the room that was found holds until so
        # much was, for all with the same metadata.
        allowed = lane_set.taken_until - self._taken_count
        if allowed <= self._state.wanted:
            blocker, allowed = self._look_at_limits(lane_set)
            if blocker is not None:
                return blocker, 0
            lane_set.taken_until = self._taken_count + allowed
        left = rules.own_most - submission.reserved_count - submission.delayed_count
        if left < allowed:
            if left <= 0:
                return Blocker("live", ~submission.id), 0
            allowed = left
        if rules.own_limit is not None and rules.has_own_rate:
            blocker, allowed = self._look_at_rate(rules.own_limit, ~submission.id, allowed)
        return blocker, min(room, allowed)

    def _look_at_limits(self, lane_set: LaneSet) -> tuple[Blocker | None, int]:
        room, live = NO_LIMIT, self._live
        for lane_id, most in lane_set.caps:
            left = most - live.get(lane_id, 0)
            if left < room:
                if left <= 0:
                    return Blocker("live", lane_id), 0
                room = left
        for limit, lane_id in lane_set.rates:
            blocker, room = self._look_at_rate(limit, lane_id, room)
            if blocker is not None:
                return blocker, 0
        return None, room

    def _look_at_rate(self, limit: LimitRow, lane_id: int, room: int) -> tuple[Blocker | None, int]:
        """What a rate leaves of the room."""
        bucket = self._bucket(limit, lane_id)
        tokens = bucket.refill(self._clock.mono)
        if tokens < 1:
            blocker = Blocker("rate", limit.id, lane_id)
            self._arm(blocker, bucket)
            return blocker, 0
        return None, int(tokens) if tokens < room else room

    def is_closed(self, gates: tuple[Gate, ...], blocker: Blocker) -> bool:
        """Whether a gate is surely still closed for those who wait at it in a front with these gates."""
        if blocker.kind == "pause":
            return self._rules.is_paused(blocker.number)
        if blocker.kind == "rate":
            bucket = self._buckets.get((blocker.number, blocker.lane_id))
            if bucket is None or bucket.refill(self._clock.mono) >= 1:
                return False
            self._arm(blocker, bucket)
            return True
        if blocker.number < 0:
            submission = self._state.live.get(~blocker.number)
            count = submission.reserved_count + submission.delayed_count if submission is not None else 0
            return any(gate.key == SUBMISSION_KEY and count >= self.max_of(gate.max) for gate in gates) or count >= min(
                (limit.concurrency or NO_LIMIT for limit in self._rules.limits_of_key(SUBMISSION_KEY)), default=NO_LIMIT
            )
        key = self._rules.key_of_lane(blocker.number)
        count = self._live.get(blocker.number, 0)
        return any(
            gate.key == key and count >= self.max_of(gate.max) for gate in gates
        ) or count >= self._rules.concurrency_of(blocker.number)

    def closed(self, most: int) -> list[Blocker]:
        """Limits and rates that are closed and have somebody waiting, of the first `most` gates that have."""
        return [
            blocker
            for blocker in islice(self._waiting, most)
            if blocker.kind != "pause" and self.is_closed((), blocker)
        ]

    def reserved_under(self, key: str, submission: LiveSubmission) -> int:
        """How many chunks are reserved under the value that a submission has of a key some gate asks about."""
        number = self._number_of(key, submission)
        return self._count(number, submission) if number is not None else 0

    def count_at(self, blocker: Blocker) -> int:
        """How many chunks are counted at a gate that bounds them."""
        if blocker.number >= 0:
            return self._live.get(blocker.number, 0)
        submission = self._state.live.get(~blocker.number)
        return self._count(blocker.number, submission) if submission is not None else 0

    def next_token_s(self, limit: LimitRow, lane_id: int) -> float:
        """Seconds until a rate lets a chunk through; 0: now."""
        bucket = self._bucket(limit, lane_id)
        return 0.0 if bucket.refill(self._clock.mono) >= 1 else (bucket.next_token_at() - self._clock.mono) / 1e9

    def busiest(self, limit: LimitRow) -> tuple[int, Value | None] | None:
        """Most chunks reserved under one value of a concurrency limit, and which value that is.

        None if they are not counted.

        Cost: the values with chunks reserved.
        """
        if limit.concurrency is None:
            return None
        if limit.key == SUBMISSION_KEY:
            supplies = [
                submission
                for submission in self._state.live.values()
                if submission.reserved_count or submission.delayed_count
            ]
            return max(
                ((submission.reserved_count + submission.delayed_count, submission.id) for submission in supplies),
                default=(0, None),
            )
        found: tuple[int, Value | None] = (0, limit.value)
        for lane_id, count in self._live.items():
            key, value = self._rules.pair_of_lane(lane_id)
            if key == limit.key and (
                limit.value is None or (type(value) is type(limit.value) and value == limit.value)
            ):
                found = max(found, (count, value), key=lambda entry: entry[0])
        return found

    def max_of(self, maximum: Max) -> int:
        """A maximum as a count; a percentage is of the connected consumers, rounded up, at least 1."""
        if isinstance(maximum, Percent):
            return max(1, math.ceil(self._consumers_count * maximum.percent / 100))
        return maximum

    def _number_of(self, key: str, submission: LiveSubmission | Stranger) -> int | None:
        """The lane under which a key counts what a submission has reserved; None if it has none."""
        if key == SUBMISSION_KEY:
            return ~submission.id
        found = submission.lane_set.lane_of.get(key)
        return found[0] if found is not None else None

    def _count(self, number: int, submission: LiveSubmission | Stranger) -> int:
        if number >= 0:
            return self._live.get(number, 0)
        return submission.reserved_count + submission.delayed_count

    def _arm(self, blocker: Blocker, bucket: Bucket) -> None:
        """Have those who wait for a token of this rate woken when there is one."""
        if blocker not in self._armed and not self.is_trial:
            self._armed.add(blocker)
            heapq.heappush(self._tokens, (bucket.next_token_at(), blocker))

    def _bucket(self, limit: LimitRow, lane_id: int) -> Bucket:
        bucket = self._buckets.get((limit.id, lane_id))
        if bucket is None:
            if len(self._buckets) >= self._buckets_room:
                now = self._clock.mono
                self._buckets = {key: kept for key, kept in self._buckets.items() if kept.refill(now) < kept.burst}
                self._buckets_room = max(BUCKETS_KEPT, 2 * len(self._buckets))
            bucket = self._buckets[limit.id, lane_id] = Bucket(limit, self._clock.mono)
        return bucket

    def _find_buckets(self, lane_set: LaneSet) -> None:
        rates = self._rules.brought(lane_set).rates
        while True:
            table = self._buckets
            lane_set.buckets = tuple([self._bucket(limit, lane_id) for limit, lane_id in rates])
            lane_set.buckets_of = self._buckets
            if table is self._buckets:  # else a full one may have been dropped of those found before
                return

    # --- counting ---

    def taken(self, submission: LiveSubmission, count: int, *, is_grant: bool = True) -> None:
        """Chunks of a submission were reserved; what is only reclaimed after a reconnect spends no token."""
        self._taken_count += count
        if self._keys:
            live = self._live
            for lane_id in self._lanes_of(submission):
                live[lane_id] += count
        if is_grant and self._rules.has_rates:
            now, lane_set = self._clock.mono, submission.lane_set
            if lane_set.buckets_of is not self._buckets or lane_set.rules_version != self._rules.version:
                self._find_buckets(lane_set)
            for bucket in lane_set.buckets:
                if bucket.at != now:  # filled up first, for what is over the burst by now is lost
                    bucket.refill(now)
                bucket.tokens -= count
            if self._rules.own_limit is not None and self._rules.has_own_rate:
                bucket = self._bucket(self._rules.own_limit, ~submission.id)
                bucket.tokens = bucket.refill(now) - count

    def take_back(self, submission: LiveSubmission, count: int) -> None:
        """Undo `taken` of a trial: nothing opens, for nothing was given to anybody."""
        for lane_id in self._lanes_of(submission):
            left = self._live.get(lane_id, 0) - count
            if left > 0:
                self._live[lane_id] = left
            else:
                self._live.pop(lane_id, None)
        if self._rules.has_rates:
            for limit, lane_id in self._rules.of(submission)[1]:
                if limit.rate_per_s is not None:
                    self._bucket(limit, lane_id).tokens += count

    def given_back(self, submission: LiveSubmission, count: int) -> None:
        """Chunks of a submission are reserved no more: gates may open."""
        if self._keys:
            live = self._live
            for lane_id in self._lanes_of(submission):
                left = live.get(lane_id, 0) - count
                if left > 0:
                    live[lane_id] = left
                else:
                    live.pop(lane_id, None)
                if self._waiting:
                    self._open(Blocker("live", lane_id))
        self.slot_freed(submission)
        if self._rules.pauses and not submission.reserved_count:
            self._state.note_news()  # calls with --until-empty do not wait for paused work that nobody holds

    def slot_freed(self, submission: LiveSubmission) -> None:
        """A chunk of a submission is neither reserved nor waiting for its retry any more."""
        if self._waiting:
            self._open(Blocker("live", ~submission.id))

    def _lanes_of(self, submission: LiveSubmission) -> tuple[int, ...]:
        """The lanes of a submission that are counted; worked out when the keys change."""
        lane_set = submission.lane_set
        if lane_set.counted_keys is not self._keys:
            lane_of = lane_set.lane_of
            lane_set.counted_keys = self._keys
            lane_set.counted_lanes = tuple([lane_of[key][0] for key in self._keys if key in lane_of])
        return lane_set.counted_lanes

    # --- waiting behind a gate ---

    def remember(self, blocker: Blocker, front: Waiter) -> None:
        """A front has set something aside under this gate."""
        self._waiting.setdefault(blocker, {})[front] = None

    def forget(self, blocker: Blocker, front: Waiter) -> None:
        """A front has nothing aside under this gate any more."""
        fronts = self._waiting.get(blocker)
        if fronts is not None:
            fronts.pop(front, None)
            if not fronts:
                del self._waiting[blocker]

    def _open(self, blocker: Blocker) -> None:
        fronts = self._waiting.get(blocker)
        if fronts:
            for front in list(fronts):
                if front.readmit(self, blocker):
                    self._state.note_news()

    def rules_changed(self) -> None:
        """Rules were set or lifted: whatever they held may go on."""
        limits = {limit.id: limit for limit in self._rules.limits}
        self._buckets = {
            key: bucket for key, bucket in self._buckets.items() if key[0] in limits and bucket.is_of(limits[key[0]])
        }
        self._armed.clear()  # a token of another rate comes at another time; those still waiting are armed again
        self._tokens.clear()
        for blocker in list(self._waiting):
            self._open(blocker)

    def tick(self, now: Now) -> None:
        """Wake what waits for a token, and follow the count of consumers."""
        self._clock = now if now.mono >= self._clock.mono else Now(self._clock.mono, now.wall)
        for _ in range(TOKENS_A_TICK if self._tokens else 0):
            if not self._tokens or self._tokens[0][0] > now.mono:
                break
            blocker = heapq.heappop(self._tokens)[1]
            self._armed.discard(blocker)
            self._open(blocker)
        if now.mono - self._refreshed >= REFRESH_NS:
            self._refreshed = now.mono
            count = max(1, len(self._state.consumers))
            if count != self._consumers_count:
                self._consumers_count = count
                for blocker in [blocker for blocker in self._waiting if blocker.kind == "live"]:
                    self._open(blocker)

    def next_due(self) -> MonoNs | None:
        """When the next token comes."""
        return self._tokens[0][0] if self._tokens else None

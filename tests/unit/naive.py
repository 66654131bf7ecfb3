"""The naive definition of strategies: everything is a list, sorted anew for each chunk.

It is slow, and can be seen to be right.

It knows nothing of fronts, arms, masks or SQL; what it says is what the engine must do.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import NamedTuple

from opsq.strategy.arms import compile_arms
from opsq.strategy.tree import (
    CustomPriority,
    Fair,
    Max,
    MaxSimultaneous,
    NewestFirst,
    OldestFirst,
    OrElse,
    Percent,
    PreferDistinct,
    Random,
    SelectOnly,
    Strategy,
    Value,
)

Pair = tuple[str, Value | None]
Pairs = tuple[Pair, ...]
Maxima = tuple[tuple[str, Max], ...]
TURN_CHUNKS = 8


@dataclass
class Submission:
    """What strategies look at, and what has become of each chunk."""

    id: int
    metadata: dict[str, Value]
    priority: int
    free: set[int]
    reserved: set[int] = field(default_factory=set)
    delayed: dict[int, float] = field(default_factory=dict)

    def value(self, key: str) -> Value | None:
        """Its value of a key."""
        return self.id if key == "submission" else self.metadata.get(key)


@dataclass
class LimitRule:
    """What `opsq limit` set."""

    concurrency: int | None
    rate_per_s: float | None
    burst: int


@dataclass
class Shares:
    """One `Fair` in one scope: how far each value has been served."""

    passes: dict[Value | None, float] = field(default_factory=dict)
    served: float = 0.0
    working: set[Value | None] = field(default_factory=set)


class Pick(NamedTuple):
    """The submission that comes next, how many of its chunks may be given, how many a turn gives.

    And who is charged.
    """

    submission: Submission
    room: float
    turn: int
    charged: tuple[tuple[Shares, str, Value | None], ...] = ()


class Naive:
    """A queue in memory."""

    def __init__(self, now_s: float) -> None:
        self.submissions: dict[int, Submission] = {}
        self.pauses: dict[frozenset[tuple[str, Value]], bool] = {}
        self.limits: dict[Pair, LimitRule] = {}
        self.weights: dict[tuple[str, Value | None], float] = {}
        self.consumers: set[object] = set()
        self._shares: dict[object, Shares] = {}
        self._tokens: dict[tuple[Pair, Value], tuple[float, float]] = {}
        self._ages: dict[tuple[str, Value], int] = {}
        self._now = now_s
        self._consumers_count = 1
        self._counted_at = now_s

    # --- what happens -------------------------------------------------------------------------------------------------

    def submit(self, submission_id: int, chunks_count: int, metadata: dict[str, Value], priority: int) -> None:
        self.submissions[submission_id] = Submission(submission_id, metadata, priority, set(range(chunks_count)))
        for pair in metadata.items():
            self._ages.setdefault(pair, len(self._ages) + 1)

    def look_at_clock(self, now_s: float) -> None:
        """Any request, or a tick: consumers are counted at most once a second."""
        self._now = now_s
        if now_s - self._counted_at >= 1:
            self._counted_at, self._consumers_count = now_s, max(1, len(self.consumers))

    def tick(self) -> None:
        """Delays are over that are due."""
        for submission in self.submissions.values():
            for index in [index for index, due_s in submission.delayed.items() if due_s <= self._now]:
                del submission.delayed[index]
                submission.free.add(index)

    def take(self, submission_id: int, index: int) -> None:
        """A chunk is reserved."""
        submission = self.submissions[submission_id]
        submission.free.remove(index)
        submission.reserved.add(index)
        for pair, limit in self.limits.items():
            value = self._under(pair, submission)
            if value is not None and limit.rate_per_s is not None:
                self._tokens[pair, value] = (self._tokens_of(pair, limit, value) - 1, self._now)

    def complete(self, submission_id: int, index: int) -> None:
        submission = self.submissions[submission_id]
        submission.reserved.remove(index)
        if not (submission.free or submission.reserved or submission.delayed):
            del self.submissions[submission_id]

    def release(self, submission_id: int, index: int) -> None:
        self.submissions[submission_id].reserved.remove(index)
        self.submissions[submission_id].free.add(index)

    def fail(self, submission_id: int, index: int, delay_s: float) -> None:
        self.submissions[submission_id].reserved.remove(index)
        self.submissions[submission_id].delayed[index] = self._now + delay_s

    def cancel(self, submission_id: int) -> None:
        del self.submissions[submission_id]

    def limit(self, pair: Pair, concurrency: int | None, rate_per_s: float | None, burst: int | None) -> None:
        new = LimitRule(concurrency, rate_per_s, burst or math.ceil(rate_per_s or 0))
        old = self.limits.get(pair)
        if old is None or (old.rate_per_s, old.burst) != (new.rate_per_s, new.burst):
            self._forget_tokens(pair)
        self.limits[pair] = new

    def unlimit(self, pair: Pair) -> None:
        del self.limits[pair]
        self._forget_tokens(pair)

    def restart(self, now_s: float) -> None:
        """Passes, rules, delays and what is held are kept; tokens and connections are not."""
        self._tokens.clear()
        self.consumers.clear()
        self._now = self._counted_at = now_s
        self._consumers_count = 1
        for shares in self._shares.values():
            shares.working.clear()

    def _forget_tokens(self, pair: Pair) -> None:
        self._tokens = {key: tokens for key, tokens in self._tokens.items() if key[0] != pair}

    # --- what may be handed out ---------------------------------------------------------------------------------------

    def max_of(self, maximum: Max) -> int:
        """A maximum as a count."""
        return (
            max(1, math.ceil(self._consumers_count * maximum.percent / 100))
            if isinstance(maximum, Percent)
            else maximum
        )

    def used(self, key: str, value: Value) -> int:
        """How many chunks count under a value; for a submission also those that wait for their retry."""
        if key == "submission":
            return sum(len(one.reserved) + len(one.delayed) for one in self.submissions.values() if one.id == value)
        return sum(len(one.reserved) for one in self.submissions.values() if one.metadata.get(key) == value)

    def room(self, submission: Submission, gates: Maxima) -> float:
        """How many chunks of a submission gates, limits and pauses let through."""
        if any(pairs <= {*submission.metadata.items(), ("submission", submission.id)} for pairs in self.pauses):
            return 0
        rooms = [math.inf]
        for key, maximum in gates:
            value = submission.value(key)
            if value is not None:
                rooms.append(self.max_of(maximum) - self.used(key, value))
        for pair, limit in self.limits.items():
            value = self._under(pair, submission)
            if value is not None and limit.concurrency is not None:
                rooms.append(limit.concurrency - self.used(pair[0], value))
            if value is not None and limit.rate_per_s is not None:
                rooms.append(math.floor(self._tokens_of(pair, limit, value)))
        return max(min(rooms), 0)

    def _under(self, pair: Pair, submission: Submission) -> Value | None:
        """The value under which a submission falls under a limit."""
        value = submission.value(pair[0])
        return value if pair[1] is None or value == pair[1] else None

    def _tokens_of(self, pair: Pair, limit: LimitRule, value: Value) -> float:
        tokens, at_s = self._tokens.get((pair, value), (float(limit.burst), self._now))
        return min(limit.burst, tokens + (self._now - at_s) * (limit.rate_per_s or 0))

    # --- what comes next ----------------------------------------------------------------------------------------------

    def pick(
        self, node: Strategy, count: int, filters: Pairs = (), gates: Maxima = (), owner: object = None
    ) -> Pick | None:
        """What a strategy would give next in a call for `count`; None when it has nothing.

        `owner`: the share of a `Fair` served.
        """
        match node:
            case SelectOnly(key, value, inner):
                return self.pick(inner, count, (*filters, (key, value)), gates, owner)
            case MaxSimultaneous(key, maximum, inner):
                return self.pick(inner, count, filters, (*gates, (key, maximum)), owner)
            case PreferDistinct(key, maximum, inner):
                gated = self.pick(inner, count, filters, (*gates, (key, maximum)), owner)
                return gated or self.pick(inner, count, filters, gates, owner)
            case OrElse(first, second):
                return self.pick(first, count, filters, gates, owner) or self.pick(second, count, filters, gates, owner)
            case Fair(key, inner):
                return self._pick_fairly(key, inner, count, filters, gates, owner)
            case _:
                allowed = [one for one in self._matching(filters) if one.free and self.room(one, gates) > 0]
                if not allowed:
                    return None
                first_of_all = min(allowed, key=_ORDERS[type(node)])
                return Pick(first_of_all, self.room(first_of_all, gates), count)

    def _matching(self, filters: Pairs) -> list[Submission]:
        return [one for one in self.submissions.values() if all(one.value(key) == value for key, value in filters)]

    def _pick_fairly(
        self, key: str, inner: Strategy, count: int, filters: Pairs, gates: Maxima, owner: object
    ) -> Pick | None:
        name = (owner, key, tuple(compile_arms(inner)), tuple(dict.fromkeys(filters)), tuple(dict.fromkeys(gates)))
        shares = self._shares.setdefault(name, Shares())
        picks: dict[Value | None, Pick] = {}
        for value in {one.value(key) for one in self._matching(filters)}:
            found = self.pick(inner, count, (*filters, (key, value)), gates, (name, value))
            if found is not None:
                picks[value] = found
        for value in picks.keys() - shares.working:
            shares.passes[value] = max(shares.passes.get(value, 0.0), shares.served)
        shares.working = set(picks)
        if not picks:
            return None
        value = min(picks, key=lambda value: (shares.passes[value], self._age(key, value)))
        found = picks[value]
        return Pick(found.submission, found.room, max(TURN_CHUNKS, count // 16), (*found.charged, (shares, key, value)))

    def _age(self, key: str, value: Value | None) -> int:
        """Of values with equal passes the oldest comes first; none at all is older than any."""
        if value is None:
            return 0
        return value if key == "submission" and isinstance(value, int) else self._ages[key, value]

    def reserve(self, strategy: Strategy, count: int) -> list[tuple[int, int]]:
        """Take up to `count` chunks, and say which: (submission, index), in order."""
        given: list[tuple[int, int]] = []
        while len(given) < count and (picked := self.pick(strategy, count)) is not None:
            submission = picked.submission
            turn = _turn(submission.free, picked.turn, int(min(picked.room, count - len(given))))
            for index in turn:
                self.take(submission.id, index)
                given.append((submission.id, index))
            for shares, key, value in picked.charged:
                shares.served = max(shares.served, shares.passes[value])
                shares.passes[value] += len(turn) / self.weights.get((key, value), 1.0)
        return given

    def may_give(self, strategy: Strategy, submission_id: int) -> bool:
        """Whether any arm of a strategy may give one more chunk of a submission now."""
        submission = self.submissions[submission_id]
        return any(
            all(submission.value(key) == value for key, value in filters) and self.room(submission, gates) > 0
            for filters, gates in _scopes(strategy)
        )


def _turn(free: set[int], turn: int, most: int) -> list[int]:
    """The chunks that one turn gives, lowest first.

    A turn that leaves the call unfilled rather ends early than within a second block.
    """
    given: list[int] = []
    for block in sorted({index // 64 for index in free}):
        left = min(turn, most) - len(given)
        of_block = sorted(index for index in free if index // 64 == block)
        if left == 0 or (given and turn < most and len(of_block) > left):
            break
        given += of_block[:left]
    return given


def _scopes(node: Strategy, filters: Pairs = (), gates: Maxima = ()) -> list[tuple[Pairs, Maxima]]:
    """The filters and gates under which a strategy may give something."""
    match node:
        case SelectOnly(key, value, inner):
            return _scopes(inner, (*filters, (key, value)), gates)
        case MaxSimultaneous(key, maximum, inner):
            return _scopes(inner, filters, (*gates, (key, maximum)))
        case PreferDistinct(_, _, inner) | Fair(_, inner):
            return _scopes(inner, filters, gates)
        case OrElse(first, second):
            return _scopes(first, filters, gates) + _scopes(second, filters, gates)
        case _:
            return [(filters, gates)]


_ORDERS = {
    OldestFirst: lambda one: (one.id,),
    NewestFirst: lambda one: (-one.id,),
    CustomPriority: lambda one: (-one.priority, one.id),
    Random: lambda one: (one.id,),  # whatever: whoever asks compares no order
}

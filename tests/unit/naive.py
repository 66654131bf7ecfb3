"""The naive definition of strategies: everything is a list, sorted anew for each chunk.

It is slow, and can be seen to be right. It knows nothing of fronts, arms, masks or SQL; what it says is what the engine
must do. What comes next is a list of candidates, of which the engine may give any: for an order one, the first of all
that are allowed; for `Random` all that are allowed; for `Fair` those of the value that has been served least.
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
    keep_on_dead: bool = True
    reserved: set[int] = field(default_factory=set)
    delayed: dict[int, float] = field(default_factory=dict)
    due: dict[int, float] = field(default_factory=dict)
    """When the last back-off of a chunk is over: whoever takes it up again ends that, but in memory alone."""
    dead: set[int] = field(default_factory=set)
    starts_s: float = -math.inf
    ends_s: float = math.inf
    is_ending: bool = False
    """Its end is being committed: nothing of it is given any more, and what is reserved still counts."""

    @property
    def unfinished(self) -> set[int]:
        """What is neither completed nor dead."""
        return self.free | self.reserved | self.delayed.keys()

    def end_delays(self, now_s: float) -> None:
        """Chunks are free whose back-off is over."""
        over = {index for index, due_s in self.delayed.items() if due_s <= now_s}
        self.delayed = {index: due_s for index, due_s in self.delayed.items() if index not in over}
        self.free |= over

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
        """The open ones."""
        self.scheduled: dict[int, Submission] = {}
        self.ended: dict[int, Submission] = {}
        """Those that a requeue may open again: what is free or delayed in them is skipped."""
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

    def submit(
        self,
        submission_id: int,
        chunks_count: int,
        metadata: dict[str, Value],
        priority: int,
        *,
        keep_on_dead: bool = True,
        delay_s: float | None = None,
        expires_s: float | None = None,
    ) -> None:
        new = Submission(submission_id, metadata, priority, set(range(chunks_count)), keep_on_dead)
        if expires_s is not None:
            new.ends_s = self._now + expires_s
        if delay_s is None:
            self.submissions[submission_id] = new
        else:
            new.starts_s = self._now + delay_s
            self.scheduled[submission_id] = new
        for pair in metadata.items():
            self._ages.setdefault(pair, len(self._ages) + 1)

    def look_at_clock(self, now_s: float) -> None:
        """Any request, or a tick: consumers are counted at most once a second."""
        self._now = now_s
        if now_s - self._counted_at >= 1:
            self._counted_at, self._consumers_count = now_s, max(1, len(self.consumers))

    def tick(self) -> None:
        """Delays are over that are due; submissions begin to end."""
        for submission in self.submissions.values():
            submission.is_ending = submission.ends_s <= self._now
            submission.end_delays(self._now)

    def commit(self) -> None:
        """What a tick has begun is committed: submissions open and expire."""
        for one in [one for one in self.scheduled.values() if min(one.starts_s, one.ends_s) <= self._now]:
            self.submissions[one.id] = self.scheduled.pop(one.id)
            if one.ends_s <= self._now:
                self._end(one)
        for one in [one for one in self.submissions.values() if one.is_ending]:
            self._end(one)

    def take(self, submission_id: int, index: int) -> None:
        """A chunk is given."""
        submission = self.submissions[submission_id]
        submission.free.remove(index)
        submission.reserved.add(index)
        for pair, limit in self.limits.items():
            value = self._under(pair, submission)
            if value is not None and limit.rate_per_s is not None:
                self._tokens[pair, value] = (self._tokens_of(pair, limit, value) - 1, self._now)

    def take_up(self, submission_id: int, index: int) -> bool:
        """Whoever held a chunk once, and has never reported it, has it again, unless somebody else has; costs no token.

        Returns:
            Whether it was still there.
        """
        submission = self.submissions.get(submission_id)
        if submission is None or index not in submission.free | submission.delayed.keys():
            return False
        submission.free.discard(index)
        submission.delayed.pop(index, None)
        submission.reserved.add(index)
        return True

    def complete(self, submission_id: int, index: int) -> None:
        submission = self.submissions[submission_id]
        submission.reserved.remove(index)
        self._end_if_done(submission)

    def bury(self, submission_id: int, index: int) -> None:
        """A chunk fails for good."""
        submission = self.submissions[submission_id]
        submission.reserved.remove(index)
        submission.dead.add(index)
        if submission.keep_on_dead:
            self._end_if_done(submission)
        else:
            self._end(submission)

    def release(self, submission_id: int, index: int) -> None:
        self.submissions[submission_id].reserved.remove(index)
        self.submissions[submission_id].free.add(index)

    def fail(self, submission_id: int, index: int, delay_s: float) -> None:
        """Its consumer reports it, or its lease has expired."""
        submission = self.submissions[submission_id]
        submission.reserved.remove(index)
        submission.delayed[index] = submission.due[index] = self._now + delay_s
        if not delay_s:
            submission.end_delays(self._now)

    def cancel(self, submission_id: int) -> None:
        if submission_id in self.scheduled:
            self.submissions[submission_id] = self.scheduled.pop(submission_id)
        self._end(self.submissions[submission_id])

    def requeue(self, submission_id: int) -> None:
        """All that is dead, and all that was skipped at its end, is to be done again."""
        if submission_id in self.ended:
            self.submissions[submission_id] = self.ended.pop(submission_id)
        submission = self.submissions[submission_id]
        submission.free |= submission.dead
        submission.due = {index: due_s for index, due_s in submission.due.items() if index not in submission.dead}
        submission.dead.clear()
        submission.end_delays(self._now)

    def _end_if_done(self, submission: Submission) -> None:
        if not submission.unfinished:
            self._end(submission)

    def _end(self, submission: Submission) -> None:
        del self.submissions[submission.id]
        submission.free |= submission.reserved
        submission.reserved.clear()
        submission.ends_s, submission.is_ending = math.inf, False
        if submission.unfinished or submission.dead:
            self.ended[submission.id] = submission

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
        for submission in self.submissions.values():
            late = {index: submission.due[index] for index in submission.free & submission.due.keys()}
            submission.free -= late.keys()
            submission.delayed |= late
            submission.end_delays(now_s)
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
        if submission.is_ending or any(
            pairs <= {*submission.metadata.items(), ("submission", submission.id)} for pairs in self.pauses
        ):
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

    def picks(
        self, node: Strategy, count: int, filters: Pairs = (), gates: Maxima = (), owner: object = None
    ) -> list[Pick]:
        """What a strategy may give next in a call for `count`: any of these.

        `owner`: the share of a `Fair` served.
        """
        match node:
            case SelectOnly(key, value, inner):
                return self.picks(inner, count, (*filters, (key, value)), gates, owner)
            case MaxSimultaneous(key, maximum, inner):
                return self.picks(inner, count, filters, (*gates, (key, maximum)), owner)
            case PreferDistinct(key, maximum, inner):
                gated = self.picks(inner, count, filters, (*gates, (key, maximum)), owner)
                return gated or self.picks(inner, count, filters, gates, owner)
            case OrElse(first, second):
                return self.picks(first, count, filters, gates, owner) or self.picks(
                    second, count, filters, gates, owner
                )
            case Fair(key, inner):
                return self._picks_fairly(key, inner, count, filters, gates, owner)
            case _:
                allowed = [one for one in self._matching(filters) if one.free and self.room(one, gates) > 0]
                if isinstance(node, Random):
                    return [Pick(one, self.room(one, gates), _deck_turn(count)) for one in allowed]
                first_of_all = sorted(allowed, key=_ORDERS[type(node)])[:1]
                return [Pick(one, self.room(one, gates), count) for one in first_of_all]

    def _matching(self, filters: Pairs) -> list[Submission]:
        return [one for one in self.submissions.values() if all(one.value(key) == value for key, value in filters)]

    def _picks_fairly(
        self, key: str, inner: Strategy, count: int, filters: Pairs, gates: Maxima, owner: object
    ) -> list[Pick]:
        name = (owner, key, tuple(compile_arms(inner)), tuple(dict.fromkeys(filters)), tuple(dict.fromkeys(gates)))
        shares = self._shares.setdefault(name, Shares())
        picks: dict[Value | None, list[Pick]] = {}
        for value in {one.value(key) for one in self._matching(filters)}:
            found = self.picks(inner, count, (*filters, (key, value)), gates, (name, value))
            if found:
                picks[value] = found
        for value in picks.keys() - shares.working:
            shares.passes[value] = max(shares.passes.get(value, 0.0), shares.served)
        shares.working = set(picks)
        if not picks:
            return []
        value = min(picks, key=lambda value: (shares.passes[value], self._age(key, value)))
        turn, charge = max(TURN_CHUNKS, count // 16), (shares, key, value)
        return [Pick(one.submission, one.room, turn, (*one.charged, charge)) for one in picks[value]]

    def _age(self, key: str, value: Value | None) -> int:
        """Of values with equal passes the oldest comes first; none at all is older than any."""
        if value is None:
            return 0
        return value if key == "submission" and isinstance(value, int) else self._ages[key, value]

    def give(self, strategy: Strategy, count: int, given: list[tuple[int, int]]) -> None:
        """The engine has answered a call for `count` with these chunks: (submission, index), in order.

        Each turn of it must have been given from one of the candidates of that moment, and the call be filled.
        """
        wanted, left = count, list(given)
        while wanted and (picks := self.picks(strategy, count)):
            chosen = [one for one in picks if left and one.submission.id == left[0][0]]
            assert chosen, f"{strategy} gives {left[:1] or 'nothing'}, not {[one.submission.id for one in picks]}"
            submission = chosen[0].submission
            turn = _turn(submission.free, chosen[0].turn, int(min(chosen[0].room, wanted)))
            assert sorted(left[: len(turn)]) == [(submission.id, index) for index in sorted(turn)]
            del left[: len(turn)]
            wanted -= len(turn)
            for index in turn:
                self.take(submission.id, index)
            for shares, key, value in chosen[0].charged:
                shares.served = max(shares.served, shares.passes[value])
                shares.passes[value] += len(turn) / self.weights.get((key, value), 1.0)
        assert not left, f"{strategy} gives {left}, which nothing allows"


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


def _deck_turn(count: int) -> int:
    """How many chunks `Random` gives of one submission in a call for `count`."""
    turn = max(1, count // 16)
    return -(-turn // 64) * 64 if turn >= 32 else turn


_ORDERS = {
    OldestFirst: lambda one: (one.id,),
    NewestFirst: lambda one: (-one.id,),
    CustomPriority: lambda one: (-one.priority, one.id),
}

"""Compiling a strategy to arms: an order, filters and gates; the walk of an arm is one SQL statement that streams.

The statements of the walks are here and nowhere else; `explain` prints them as they are run. A walk reads one lane by
an index that is its order; whether a row is in the other lanes too is a look-up by primary key, so a row costs less
than a microsecond and no statement visits more rows than its limit.
"""

from __future__ import annotations

from functools import cache
from typing import NamedTuple, Protocol, TypeVar

from opsq.strategy.tree import (
    CustomPriority,
    Fair,
    Max,
    MaxSimultaneous,
    NewestFirst,
    OldestFirst,
    OrElse,
    PreferDistinct,
    Random,
    SelectOnly,
    Strategy,
    Value,
    format_value,
)

T = TypeVar("T")

SHUFFLES = 1 << 32
"""Shuffle values lie in [0, 2**32)."""

SUBMISSION_KEY = "submission"
"""The built-in key: every submission is a value of its own."""

Key = tuple[int, ...]
"""Where a submission stands in an order: smaller is sooner; the last element is the submission id."""


class Sortable(Protocol):
    """What orders look at in a submission."""

    @property
    def id(self) -> int:
        """Ascending with age."""
        ...

    @property
    def shuffle(self) -> int:
        """0…2**32 - 1."""
        ...

    @property
    def priority(self) -> int:
        """Higher is more urgent."""
        ...


class Order(NamedTuple):
    """How an arm orders submissions: what a walk selects, from where it goes on, and by which index it streams."""

    name: str
    columns: str
    bound: str
    sort: str
    why: str


OLDEST_FIRST = Order(
    "OldestFirst",
    "w.submission_id",
    "w.submission_id > ?3",
    "w.submission_id",
    "ids grow with time, so the primary key is the order",
)
NEWEST_FIRST = Order(
    "NewestFirst",
    "w.submission_id",
    "w.submission_id < ?3",
    "w.submission_id DESC",
    "the primary key, read backwards",
)
CUSTOM_PRIORITY = Order(
    "CustomPriority",
    "w.rank, w.submission_id",
    "(w.rank, w.submission_id) > (?3, ?4)",
    "w.rank, w.submission_id",
    "the index by rank, which is minus the priority, then age",
)
RANDOM = Order(
    "Random",
    "w.shuffle, w.submission_id",
    "(w.shuffle, w.submission_id) > (?3, ?4) AND w.shuffle < ?5",
    "w.shuffle, w.submission_id",
    "the deck is stored shuffled in this index; it is cut, not sorted",
)
FAIR = Order("Fair", "", "", "", "the value with the lowest pass is served; each value has fronts of its own")

VALUES_SQL = (
    "SELECT l.value, l.id, EXISTS (SELECT 1 FROM lane_submission w WHERE w.lane_id = l.id) "
    "FROM lane l WHERE l.key = ?1 AND l.value > ?2 ORDER BY l.value LIMIT ?3"
)
"""How `Fair` finds the values of its key when its scope is everything."""


class Filter(NamedTuple):
    """A metadata pair that a submission must have; `value` None: it must not have the key at all."""

    key: str
    value: Value | None

    def matches(self, submission_id: int, metadata: dict[str, Value]) -> bool:
        """Whether a submission passes. Integers and text are never equal in Python either."""
        if self.key == SUBMISSION_KEY:
            return submission_id == self.value
        return metadata.get(self.key) == self.value

    def __str__(self) -> str:
        return f"no {self.key}" if self.value is None else f"{self.key}={format_value(self.value)}"


class Gate(NamedTuple):
    """A bound on the chunks reserved at once under one value of a key."""

    key: str
    max: Max

    def __str__(self) -> str:
        return f"{self.key} ≤ {self.max}"


class Arm(NamedTuple):
    """One order under filters and gates.

    `Fair` has arms inside, which are served within the lane of one value of `fair_key`.
    """

    order: Order
    filters: tuple[Filter, ...] = ()
    gates: tuple[Gate, ...] = ()
    fair_key: str = ""
    inner: tuple[Arm, ...] = ()

    def within(self, filters: tuple[Filter, ...], gates: tuple[Gate, ...]) -> Arm:
        """The same arm inside of more filters and gates; each once."""
        return self._replace(filters=_united(filters, self.filters), gates=_united(gates, self.gates))

    @property
    def name(self) -> str:
        """The same for equal arms, and for no others."""
        inner = "".join(f" [{arm.name}]" for arm in self.inner)
        filters, gates = (" & ".join(map(str, entries)) for entries in (self.filters, self.gates))
        return f"{self.order.name} {self.fair_key};{filters};{gates}{inner}"

    @property
    def is_impossible(self) -> bool:
        """Whether two filters contradict each other."""
        return len({entry.key for entry in self.filters}) < len(self.filters)


def _united(outer: tuple[T, ...], inner: tuple[T, ...]) -> tuple[T, ...]:
    return tuple(dict.fromkeys(outer + inner))


_ORDERS: dict[type[Strategy], Order] = {
    Random: RANDOM,
    OldestFirst: OLDEST_FIRST,
    NewestFirst: NEWEST_FIRST,
    CustomPriority: CUSTOM_PRIORITY,
}


def compile_arms(strategy: Strategy) -> list[Arm]:
    """The arms of a strategy, in the order in which a call tries them.

    At least one, and none twice: the second would be as dry.
    """
    match strategy:
        case SelectOnly(key, value, inner):
            return [arm.within((Filter(key, value),), ()) for arm in compile_arms(inner)]
        case MaxSimultaneous(key, maximum, inner):
            return [arm.within((), (Gate(key, maximum),)) for arm in compile_arms(inner)]
        case PreferDistinct(key, maximum, inner):
            arms = compile_arms(inner)
            return list(dict.fromkeys([arm.within((), (Gate(key, maximum),)) for arm in arms] + arms))
        case OrElse(first, second):
            return list(dict.fromkeys(compile_arms(first) + compile_arms(second)))
        case Fair(key, inner):
            return [Arm(FAIR, fair_key=key, inner=tuple(compile_arms(inner)))]
        case _:
            return [Arm(_ORDERS[type(strategy)])]


@cache
def walk_sql(order: Order, probes: int, absent: int = 0) -> str:
    """The walk of a lane in an order.

    Its parameters are the lane, the limit, the bound of the order (one to three values), one lane for each of `probes`,
    and one key for each of `absent`, that a submission must not have. Each row ends with whether it passes.
    """
    first = 3 + len({sign for sign in ("?3", "?4", "?5") if sign in order.bound})
    return (
        f"SELECT {order.columns}, {_tests(first, probes, absent)} FROM lane_submission w "
        f"WHERE w.lane_id = ?1 AND {order.bound} ORDER BY {order.sort} LIMIT ?2"
    )


@cache
def values_sql(probes: int, absent: int) -> str:
    """How `Fair` finds the values of its key inside a lane: id, whether it passes, the lane of its value (or NULL).

    The parameters are those of a walk of `OldestFirst`, and then the key.
    """
    return (
        f"SELECT w.submission_id, {_tests(4, probes, absent)}, "
        "(SELECT s.lane_id FROM submission_lane s JOIN lane l ON l.id = s.lane_id "
        f"WHERE s.submission_id = w.submission_id AND l.key = ?{4 + probes + absent}) "
        f"FROM lane_submission w WHERE w.lane_id = ?1 AND {OLDEST_FIRST.bound} ORDER BY {OLDEST_FIRST.sort} LIMIT ?2"
    )


def _tests(first: int, probes: int, absent: int) -> str:
    """What a row must pass, as one SQL expression; parameters are numbered from `first`."""
    tests = [
        f"EXISTS (SELECT 1 FROM lane_submission p WHERE p.lane_id = ?{number} AND p.submission_id = w.submission_id)"
        for number in range(first, first + probes)
    ]
    tests += [
        "NOT EXISTS (SELECT 1 FROM submission_lane s JOIN lane l ON l.id = s.lane_id "
        f"WHERE s.submission_id = w.submission_id AND l.key = ?{number})"
        for number in range(first + probes, first + probes + absent)
    ]
    return " AND ".join(tests) or "1"


def shuffle_of(submission_id: int) -> int:
    """The place of a submission in the deck: 0…2**32 - 1.

    The low bits of an id are mostly zero and its high bits nearly the same all day, so all 63 bits are mixed.

    Source: the finalizer of MurmurHash3 (fmix64), upper half.
    """
    mixed = submission_id
    for factor in (0xFF51AFD7ED558CCD, 0xC4CEB9FE1A85EC53):
        mixed = (mixed ^ mixed >> 33) * factor & 0xFFFF_FFFF_FFFF_FFFF
    return (mixed ^ mixed >> 33) >> 32

"""Compiling a strategy to arms: each arm is one lane and one order, and its walk is one SQL statement that streams from a bound.

The statements of the walks stand here and nowhere else; `explain` prints them as they are run.
"""

from __future__ import annotations

from typing import NamedTuple, Protocol

from opsq.strategy.tree import NewestFirst, OldestFirst, Random, Strategy

SHUFFLES = 1 << 32
"""Shuffle values lie in [0, 2**32)."""

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
    """How an arm orders submissions. `sql` takes the lane as ?1, the level as the next parameters, and the limit as the last."""

    name: str
    sql: str
    index_name: str
    why: str


OLDEST_FIRST = Order(
    "OldestFirst",
    "SELECT submission_id FROM lane_submission WHERE lane_id = ?1 AND submission_id > ?2 ORDER BY submission_id LIMIT ?3",
    "PRIMARY KEY",
    "ids grow with time, so the primary key is the order",
)
NEWEST_FIRST = Order(
    "NewestFirst",
    "SELECT submission_id FROM lane_submission WHERE lane_id = ?1 AND submission_id < ?2 ORDER BY submission_id DESC LIMIT ?3",
    "PRIMARY KEY",
    "the primary key read backwards",
)
RANDOM = Order(
    "Random",
    "SELECT shuffle, submission_id FROM lane_submission "
    "WHERE lane_id = ?1 AND (shuffle, submission_id) > (?2, ?3) AND shuffle < ?4 ORDER BY shuffle, submission_id LIMIT ?5",
    "lane_submission_shuffle",
    "the deck lies shuffled in this index; it is cut, not sorted",
)


class Arm(NamedTuple):
    """One lane, walked in one order. `lane` None is everything."""

    order: Order
    lane: tuple[str, int | str] | None = None


_ORDERS: dict[type[Strategy], Order] = {Random: RANDOM, OldestFirst: OLDEST_FIRST, NewestFirst: NEWEST_FIRST}


def compile_arms(strategy: Strategy) -> list[Arm]:
    """The arms of a strategy, in the order in which a call tries them; at least one."""
    return [Arm(_ORDERS[type(strategy)])]


def shuffle_of(submission_id: int) -> int:
    """The place of a submission in the deck: 0…2**32 - 1.

    The low bits of an id are mostly zero and its high bits nearly the same all day, so all 63 bits are mixed.

    Source: the finalizer of MurmurHash3 (fmix64), upper half.
    """
    mixed = submission_id
    for factor in (0xFF51AFD7ED558CCD, 0xC4CEB9FE1A85EC53):
        mixed = (mixed ^ mixed >> 33) * factor & 0xFFFF_FFFF_FFFF_FFFF
    return (mixed ^ mixed >> 33) >> 32

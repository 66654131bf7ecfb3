"""What SQLite says about the statements of an arm, and what a user should know about a strategy.

Reads plans, never rows.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import TYPE_CHECKING, NamedTuple

from opsq.strategy.arms import FAIR, SUBMISSION_KEY, VALUES_SQL, Arm, values_sql, walk_sql
from opsq.strategy.tree import (
    CustomPriority,
    Fair,
    MaxSimultaneous,
    NewestFirst,
    OldestFirst,
    OrElse,
    Percent,
    PreferDistinct,
    Random,
    SelectOnly,
    Strategy,
    format_value,
)
from opsq.units import counted

if TYPE_CHECKING:
    import apsw

ALWAYS = (
    "Order affects only what is handed out next; nothing is pre-empted.",
    "Delivery is at least once: a chunk may be handed out again after its consumer was lost.",
)

_VERDICTS = (
    (r"SEARCH w USING PRIMARY KEY .*submission_id[<>]", "streams in order of age, from the read level on"),
    (
        r"SEARCH w USING COVERING INDEX lane_submission_shuffle \(lane_id=\? AND",
        "streams the shuffled deck, from the read level on",
    ),
    (
        r"SEARCH w USING COVERING INDEX lane_submission_rank \(lane_id=\? AND",
        "streams by priority, from the read level on",
    ),
    (r"SEARCH p USING PRIMARY KEY", "one look-up a row: is it in the other lane too?"),
    (r"SEARCH s USING PRIMARY KEY", "the few metadata pairs of the submission"),
    (r"SEARCH l USING INTEGER PRIMARY KEY", "one look-up: the key of the pair"),
    (r"SEARCH l USING COVERING INDEX", "streams the values of the key in their order"),
    (r"SEARCH w USING COVERING INDEX", "one look-up: is anything open in the lane?"),
    (r"SEARCH block USING PRIMARY KEY", "streams the blocks of the chosen submission"),
    (r"CORRELATED SCALAR SUBQUERY", "for each row that the walk visits, at most its limit"),
    (r"^SCAN|TEMP B-TREE|MATERIALIZE", "reads or sorts more than it gives: this must not be"),
)


class Step(NamedTuple):
    """One step of a query plan: its depth, what SQLite says, and what that means (empty: nothing to add)."""

    depth: int
    detail: str
    verdict: str


def statements(arm: Arm) -> list[tuple[str, str]]:
    """The statements that an arm finds submissions with: purpose and SQL.

    Which lane is walked, which are looked up, its front decides.
    """
    absent = sum(1 for entry in arm.filters if entry.value is None)
    lanes = sum(1 for entry in arm.filters if entry.value is not None and entry.key != SUBMISSION_KEY)
    probes = max(lanes - 1, 0)
    if arm.order is not FAIR:
        return [("walk", walk_sql(arm.order, probes, absent))]
    if lanes or absent or arm.fair_key == SUBMISSION_KEY:
        return [("values", values_sql(probes, absent))]
    return [("values", VALUES_SQL)]


def plan(connection: apsw.Connection, sql: str) -> list[Step]:
    """The query plan of a statement, step by step."""
    depth = {0: -1}
    steps = []
    bindings = (0,) * max(int(number) for number in re.findall(r"\?([0-9]+)", sql))
    for step, parent, _, detail in connection.execute(f"EXPLAIN QUERY PLAN {sql}", bindings):
        depth[step] = depth[parent] + 1
        verdict = next((meaning for pattern, meaning in _VERDICTS if re.search(pattern, detail)), "")
        steps.append(Step(depth[step], detail, verdict))
    return steps


def outline(strategy: Strategy, depth: int = 0) -> Iterator[tuple[int, str, str]]:
    """The tree of a strategy from the root down: depth of each node, the node without its inside, and its rule."""
    match strategy:
        case Fair(key):
            own = f"Fair({key})", f"each {key} has its share by weight; inside one:"
        case SelectOnly(key, value):
            own = f"SelectOnly({key}={format_value(value)})", f"only submissions with {key}={format_value(value)}:"
        case PreferDistinct(key, maximum):
            few = "nothing" if maximum == 1 else f"fewer than {counted(maximum, 'chunk')}"
            own = f"PreferDistinct({key}, {maximum})", f"first each {key} with {few} reserved, then all:"
        case MaxSimultaneous(key, maximum):
            own = (
                f"MaxSimultaneous({key}, {maximum})",
                f"at most {maximum} {'chunk' if maximum == 1 else 'chunks'} of each {key} reserved at once:",
            )
        case OrElse():
            own = "OrElse", "what the first has; the second only while the first has nothing:"
        case _:
            own = str(strategy), _RULES[type(strategy)]
    yield depth, *own
    for child in strategy.children():
        yield from outline(child, depth + 1)


_RULES: dict[type[Strategy], str] = {
    Random: "a shuffled deck; each submission has one turn a lap",
    OldestFirst: "all of the oldest submission, then of the next",
    NewestFirst: "all of the newest submission, then of the one before",
    CustomPriority: "the highest priority; among equals the oldest",
}


def notes(strategy: Strategy) -> list[str]:
    """What the strategy can do to work that waits, and what it does to submissions without its keys, in sentences."""
    return [*dict.fromkeys(_notes(strategy)), *ALWAYS]


def _notes(strategy: Strategy) -> Iterator[str]:
    cure = "Fair or OrElse around it is the cure."
    match strategy:
        case NewestFirst():
            yield f"NewestFirst: while newer submissions keep coming, older ones starve; {cure}"
        case CustomPriority():
            yield f"CustomPriority: while higher priorities keep coming, lower ones starve; {cure}"
        case OrElse(first):
            both = "two consumers, one each way round, serve both."
            yield f"OrElse: while {first} has work, the second is not served; {both}"
        case SelectOnly(key):
            yield f"SelectOnly({key}=…): submissions without {key} are never handed out."
        case Fair(key):
            yield f"Fair({key}): submissions without {key} share as one value of their own."
        case PreferDistinct(key, maximum) | MaxSimultaneous(key, maximum):
            if key != SUBMISSION_KEY:
                yield f"{type(strategy).__name__}({key}, …): submissions without {key} are never blocked."
            if isinstance(maximum, Percent):
                yield (
                    f"{maximum} is of the consumers connected now, rounded up, at least 1, looked at once a second; "
                    "nothing is recalled when consumers leave."
                )
    for child in strategy.children():
        yield from _notes(child)

"""What SQLite says about the statements of an arm, and what a user should know about a strategy. Reads plans, never rows."""

from __future__ import annotations

import apsw

from opsq.strategy.tree import NewestFirst, Strategy

_NOTES: dict[type[Strategy], str] = {
    NewestFirst: "While newer submissions keep coming, older ones starve.",
}

ALWAYS = (
    "Order affects only what is handed out next; nothing is pre-empted.",
    "Delivery is at least once: a chunk may be handed out again after its consumer was lost.",
)


def plan(connection: apsw.Connection, sql: str) -> list[str]:
    """The query plan of a statement, a line a step, indented by depth."""
    depth = {0: -1}
    lines = []
    bindings = (0,) * sql.count("?")
    for step, parent, _, detail in connection.execute(f"EXPLAIN QUERY PLAN {sql}", bindings[: _parameters(sql)]):
        depth[step] = depth[parent] + 1
        lines.append("  " * depth[step] + detail)
    return lines


def _parameters(sql: str) -> int:
    return max((int(part[0]) for part in sql.split("?")[1:] if part[:1].isdigit()), default=sql.count("?"))


def notes(strategy: Strategy) -> list[str]:
    """What the strategy can do to work that waits, in sentences."""
    found = _NOTES.get(type(strategy))
    return [*([found] if found else []), *ALWAYS]

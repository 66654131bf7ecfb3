"""Which submissions can move only together: those that wait for others, with what they wait for.

Reads only. If one of them was elsewhere, nobody would tell the others of its end.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any

import apsw

from opsq.store import dependencies
from opsq.store.submissions import FINAL_STATES, UNFINISHED_STATES

UNIT_LIMIT = 1_000
"""Submissions that move together at most: all of them in one commit."""
SCAN_ROWS = 1_000

_NEIGHBOURS = (
    # What it waits for, and who waits for it.
    "SELECT target FROM dependency WHERE submission_id = ?1 AND outcome IS NULL",
    "SELECT submission_id FROM dependency WHERE target = ?1 AND outcome IS NULL",
    # The pairs of it that are waited for.
    (
        "SELECT ~lane_id FROM submission_lane WHERE submission_id = ?1 "
        "AND EXISTS (SELECT 1 FROM dependency WHERE target = ~lane_id AND outcome IS NULL)"
    ),
)
_NEIGHBOURS_OF_PAIR = (
    "SELECT submission_id FROM dependency WHERE target = ?1 AND outcome IS NULL LIMIT ?2",
    "SELECT submission_id FROM lane_submission WHERE lane_id = ~?1 LIMIT ?2",
    "SELECT submission_id FROM lane_coming WHERE lane_id = ~?1 LIMIT ?2",
)


def candidates(
    connection: apsw.Connection, after: int, *, with_final: bool
) -> tuple[list[tuple[int, str]], int | None]:
    """Submissions behind an id, oldest first, with their states, and where to go on; None: there are no more.

    Cost: `SCAN_ROWS` rows.
    """
    rows: list[Any] = connection.execute(
        "SELECT id, state FROM submission WHERE id > ? ORDER BY id LIMIT ?", (after, SCAN_ROWS)
    ).fetchall()
    wanted = {*UNFINISHED_STATES, *(FINAL_STATES if with_final else ())}
    return [row for row in rows if row[1] in wanted], rows[-1][0] if len(rows) == SCAN_ROWS else None


def unit_of(connection: apsw.Connection, submission_id: int) -> list[int] | None:
    """A submission with all that must move with it, ascending; None: they are too many."""
    if not dependencies.is_used(connection):
        return [submission_id]
    seen: set[int] = set()
    waiting = [submission_id]
    while waiting:
        node = waiting.pop()
        if node in seen:
            continue
        seen.add(node)
        if len(seen) > UNIT_LIMIT:
            return None
        if node >= 0:
            found = [row[0] for sql in _NEIGHBOURS for row in connection.execute(sql, (node,))]
        else:
            found = [row[0] for sql in _NEIGHBOURS_OF_PAIR for row in connection.execute(sql, (node, UNIT_LIMIT + 1))]
        waiting += found
    return sorted(node for node in seen if node >= 0 and dependencies.state_of(connection, node) is not None)


def outsider(connection: apsw.Connection, submission_ids: Iterable[int]) -> int | None:
    """One that waits for some of these, or for a pair of theirs, and is none of them."""
    sql = (
        "SELECT submission_id FROM dependency JOIN json_each(?1) ON target = value WHERE outcome IS NULL "
        "AND submission_id NOT IN (SELECT value FROM json_each(?1)) "
        "UNION ALL SELECT d.submission_id FROM json_each(?1) JOIN submission_lane l ON l.submission_id = value "
        "JOIN dependency d ON d.target = ~l.lane_id WHERE outcome IS NULL "
        "AND d.submission_id NOT IN (SELECT value FROM json_each(?1)) LIMIT 1"
    )
    row = connection.execute(sql, (json.dumps(list(submission_ids)),)).fetchone()
    return None if row is None else int(row[0])


def leave(writer: apsw.Connection, submission_id: int) -> None:
    """It waits for nothing here any more, and nobody is told of that."""
    writer.execute(
        f"UPDATE dependency SET outcome = '{dependencies.VOID}' WHERE submission_id = ? AND outcome IS NULL",
        (submission_id,),
    )

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
"""Submissions, and pairs that they wait for, that move together at most: all of them in one commit."""
WAITS_LIMIT = 10_000
"""What they wait for, all together, at most."""
KNOWN_LIMIT = 100_000
"""Of how many it is remembered that they are in a unit that is too large."""
SCAN_ROWS = 1_000
_STATEMENT_ROWS = 10
"""What one more statement takes as long as."""

# What it waits for, who waits for it, and the pairs of it that are waited for.
_NEIGHBOURS = (
    "SELECT target FROM dependency WHERE submission_id = ?1 AND outcome IS NULL "
    "UNION ALL SELECT submission_id FROM dependency WHERE target = ?1 AND outcome IS NULL "
    "UNION ALL SELECT ~lane_id FROM submission_lane WHERE submission_id = ?1 "
    "AND EXISTS (SELECT 1 FROM dependency WHERE target = ~lane_id AND outcome IS NULL) LIMIT ?2"
)
_NEIGHBOURS_OF_PAIR = (
    "SELECT submission_id FROM dependency WHERE target = ?1 AND outcome IS NULL "
    "UNION ALL SELECT submission_id FROM lane_submission WHERE lane_id = ~?1 "
    "UNION ALL SELECT submission_id FROM lane_coming WHERE lane_id = ~?1 LIMIT ?2"
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


class Units:
    """Finds what must move together, and remembers what does not move for now.

    Attributes:
        rows_count: rows that were read so far; a statement counts as ten.
    """

    def __init__(self, connection: apsw.Connection) -> None:
        self._connection = connection
        self._too_large: set[int] = set()
        self._staying: set[int] = set()
        self.rows_count = 0

    def forget(self) -> None:
        """What was too large may have become smaller, and the target may take what it has refused."""
        self._too_large.clear()
        self._staying.clear()

    def stay(self, submission_ids: Iterable[int]) -> None:
        """Remember a unit that the target has refused, so that it is not tried again for each member."""
        self._staying.update(submission_ids)

    def stays(self, submission_id: int) -> bool:
        """Whether it is in a unit that the target has refused."""
        return submission_id in self._staying

    def unit_of(self, submission_id: int) -> list[int] | None:
        """A submission with all that must move with it, ascending; None: that is too much.

        Cost: up to `UNIT_LIMIT` statements and 2 · `WAITS_LIMIT` rows, some 20 ms in the worst case; a statement or two
        if it belongs to what is known to be too large.
        """
        if not dependencies.is_used(self._connection):
            return [submission_id]
        seen, waiting, rows_count = {submission_id}, [submission_id], 0
        is_too_large = submission_id in self._too_large
        while waiting and not is_too_large:
            found = self._neighbours(waiting.pop())
            rows_count += len(found)
            fresh = [node for node in found if node not in seen]
            seen.update(fresh)
            waiting += fresh
            is_too_large = (
                len(seen) > UNIT_LIMIT or rows_count > 2 * WAITS_LIMIT or not self._too_large.isdisjoint(fresh)
            )
        if is_too_large:
            if len(self._too_large) > KNOWN_LIMIT:
                self.forget()
            self._too_large |= seen
            return None
        there = "SELECT s.id FROM json_each(?) JOIN submission s ON s.id = value WHERE state != 'removed' ORDER BY s.id"
        return [row[0] for row in self._connection.execute(there, (json.dumps(sorted(seen)),))]

    def _neighbours(self, node: int) -> list[int]:
        """Submissions and ~lanes that one must move with; if there are too many, some of them, but too many as well."""
        sql = _NEIGHBOURS if node >= 0 else _NEIGHBOURS_OF_PAIR
        found = [row[0] for row in self._connection.execute(sql, (node, UNIT_LIMIT + 1))]
        self.rows_count += _STATEMENT_ROWS + len(found)
        return found


_PAIRS_AWAITED = (
    "(SELECT DISTINCT target AS pair FROM json_each(?1) JOIN dependency ON submission_id = value "
    "WHERE outcome IS NULL AND target < 0)"
)
_OUTSIDERS = (
    "SELECT submission_id FROM dependency JOIN json_each(?1) ON target = value WHERE outcome IS NULL",
    (
        "SELECT submission_id FROM "
        "(SELECT DISTINCT ~lane_id AS pair FROM json_each(?1) JOIN submission_lane ON submission_id = value) "
        "JOIN dependency ON target = pair WHERE outcome IS NULL"
    ),
    f"SELECT submission_id FROM {_PAIRS_AWAITED} CROSS JOIN lane_submission ON lane_id = ~pair WHERE TRUE",
    f"SELECT submission_id FROM {_PAIRS_AWAITED} CROSS JOIN lane_coming ON lane_id = ~pair WHERE TRUE",
)


def outsider(connection: apsw.Connection, submission_ids: Iterable[int]) -> int | None:
    """One that must move with some of these, and is none of them.

    It waits for one of these or for a pair of theirs, or has a pair that they wait for.
    """
    ids = json.dumps(list(submission_ids))
    for sql in _OUTSIDERS:
        is_none = "AND submission_id NOT IN (SELECT value FROM json_each(?1)) LIMIT 1"
        row = connection.execute(f"{sql} {is_none}", (ids,)).fetchone()
        if row is not None:
            return int(row[0])
    return None


def open_waits_count(connection: apsw.Connection, submission_ids: Iterable[int]) -> int:
    """How much these wait for that has not ended: while that stays as it is, no end has changed one of them."""
    sql = (
        "SELECT count(*) FROM json_each(?) JOIN dependency w ON w.submission_id = value WHERE outcome IS NULL "
        "AND NOT EXISTS (SELECT 1 FROM dependency_due d WHERE d.target = w.target)"
    )
    return int(connection.execute(sql, (json.dumps(list(submission_ids)),)).get)


def leave(writer: apsw.Connection, submission_id: int) -> None:
    """It waits for nothing here any more, and nobody is told of that."""
    writer.execute(
        f"UPDATE dependency SET outcome = '{dependencies.VOID}' WHERE submission_id = ? AND outcome IS NULL",
        (submission_id,),
    )

"""Rows of `dependency`: which submissions wait for what, and what the end of something makes of those.

All is decided inside the transaction, by what the file says there, so that two ends of one batch, or an end and a new
submission, see each other. It must not change the counters of lanes, nor the history.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import NamedTuple

import apsw

from opsq.store import lanes
from opsq.store.lanes import Value
from opsq.store.submissions import UNFINISHED_STATES

CIRCLE_ROWS = 10_000
"""What is looked at, on each side, to find out whether a new submission would wait for itself: a few milliseconds."""
_STEP_ROWS = 10
"""What one more statement takes as long as."""
VOID = "void"
"""The outcome of what a submission waited for that has ended by itself."""
REMOVED = "removed"

Wait = tuple[int, str]
"""A submission, or ~lane: all that have its pair; and how it must end, `completed` or `ended`."""


class Decided(NamedTuple):
    """A submission that waits no more: its new state, with what the counters and the history need if that is final."""

    submission_id: int
    state: str
    chunks_total: int
    lanes: tuple[int, ...]
    reason: str = ""


class Edge(NamedTuple):
    """Who waits for what, and how that ended for it; None: it is not decided."""

    submission_id: int
    target: int
    needs: str
    on_failed: str
    outcome: str | None


def add(
    writer: apsw.Connection, submission_id: int, waits: Iterable[Wait], on_failed: str
) -> tuple[str | None, tuple[int, str]]:
    """Store what a new submission waits for; what has ended already counts at once.

    Returns:
        Its state, `blocked` or `cancelled` (None: it waits for nothing), and what has failed, and how.
    """
    edges: list[Edge] = []
    failed: tuple[int, str] | None = None
    for target, needs in waits:
        outcome = _outcome(writer, target)
        if outcome is not None and not _is_met(needs, on_failed, outcome):
            if on_failed == "keep" and outcome != REMOVED:
                outcome = None
            else:
                failed = failed or (target, outcome)
        edges.append(Edge(submission_id, target, needs, on_failed, outcome))
    is_blocked = any(edge.outcome is None for edge in edges)
    writer.executemany(
        f"INSERT INTO dependency ({', '.join(Edge._fields)}) VALUES (?, ?, ?, ?, ?)",
        (edge._replace(outcome=VOID) if failed and edge.outcome is None else edge for edge in edges),
    )
    if failed is not None:
        return "cancelled", failed
    return ("blocked" if is_blocked else None), (0, "")


def _is_met(needs: str, on_failed: str, outcome: str) -> bool:
    return needs == "ended" or outcome == "completed" or on_failed == "run"


def _outcome(connection: apsw.Connection, target: int) -> str | None:
    """How a submission, or all with a pair, ended; None: not yet, or none was there."""
    if target >= 0:
        state = state_of(connection, target)
        return None if state in UNFINISHED_STATES else state or REMOVED
    was_there = (
        "EXISTS (SELECT 1 FROM submission_lane JOIN submission ON id = submission_id "
        "WHERE lane_id = ?1 AND state != 'removed')"
    )
    sql = f"SELECT {_ALL_ENDED} AND {was_there}"
    return "ended" if connection.execute(sql, (~target,)).get else None


_ALL_ENDED = (
    "NOT EXISTS (SELECT 1 FROM lane_submission WHERE lane_id = ?1) "
    "AND NOT EXISTS (SELECT 1 FROM lane_coming WHERE lane_id = ?1)"
)


def closes_circle(connection: apsw.Connection, submission_id: int, lane_ids: Iterable[int]) -> bool | None:
    """Whether a submission that has just been added waits for one that waits for a pair of its own.

    Only by its pairs can others wait for it already. None: on both sides there are too many to know.
    Cost: nothing unless one of its pairs is waited for; then up to `CIRCLE_ROWS` rows on each side of it.
    """
    awaited = [~lane_id for lane_id in lane_ids if is_awaited(connection, ~lane_id)]
    if not awaited:
        return False
    sql = "SELECT target FROM dependency WHERE submission_id = ? AND outcome IS NULL"
    targets = [target for (target,) in connection.execute(sql, (submission_id,))]
    found = _reaches(connection, _WHAT_IS_AWAITED, targets, awaited)
    return _reaches(connection, _WHO_WAITS, awaited, targets) if found is None else found


# Steps from submissions and ~lanes to what they wait for and who is behind them; and to who waits for them.
_WHAT_IS_AWAITED = (
    "SELECT target FROM json_each(?1) JOIN dependency ON submission_id = value WHERE outcome IS NULL "
    "UNION ALL SELECT submission_id FROM json_each(?1) JOIN lane_coming ON lane_id = ~value LIMIT ?2"
)
_WHO_WAITS = (
    "SELECT submission_id FROM json_each(?1) JOIN dependency ON target = value WHERE outcome IS NULL "
    "UNION ALL SELECT ~lane_id FROM json_each(?1) JOIN submission_lane ON submission_id = value LIMIT ?2"
)


def _reaches(connection: apsw.Connection, step: str, starts: list[int], goals: list[int]) -> bool | None:
    """Whether steps lead from one to the other; None: that was not found out within `CIRCLE_ROWS` rows."""
    seen: set[int] = set()
    left, found = CIRCLE_ROWS, starts
    while found := [node for node in dict.fromkeys(found) if node not in seen]:
        seen.update(found)
        if not seen.isdisjoint(goals):
            return True
        left -= _STEP_ROWS
        found = [node for (node,) in connection.execute(step, (json.dumps(found), left))] if left > 0 else []
        left -= len(found)
        if left <= 0:
            return None
    return False


def is_used(connection: apsw.Connection) -> bool:
    """Whether there is any submission that waits, or has waited, for another."""
    return connection.execute("SELECT 1 FROM dependency LIMIT 1").fetchone() is not None


def is_awaited(connection: apsw.Connection, target: int) -> bool:
    """Whether a submission waits for this one (or ~lane) still."""
    return first_waiting(connection, target) is not None


def first_waiting(connection: apsw.Connection, target: int) -> int | None:
    """The oldest submission that waits for this one (or ~lane) still."""
    sql = "SELECT submission_id FROM dependency WHERE target = ? AND outcome IS NULL LIMIT 1"
    row = connection.execute(sql, (target,)).fetchone()
    return None if row is None else int(row[0])


# --- ends ---


def note_end(writer: apsw.Connection, submission_id: int, state: str, lane_ids: Iterable[int]) -> None:
    """A submission has left all lanes for a final state: note who must be told, as far as anybody waits."""
    writer.execute(
        f"UPDATE dependency SET outcome = '{VOID}' WHERE submission_id = ? AND outcome IS NULL", (submission_id,)
    )
    due = "INSERT OR REPLACE INTO dependency_due (target, outcome, after_id) "
    waited = "EXISTS (SELECT 1 FROM dependency WHERE target = {} AND outcome IS NULL)"
    writer.execute(f"{due}SELECT ?1, ?2, 0 WHERE {waited.format('?1')}", (submission_id, state))
    writer.executemany(
        f"{due}SELECT ~?1, 'ended', 0 WHERE {waited.format('~?1')} AND {_ALL_ENDED}",
        ((lane_id,) for lane_id in lane_ids),
    )


def note_arrived(writer: apsw.Connection, submission_ids: Iterable[int]) -> None:
    """Submissions have come from another file: note who must be told, or be told themselves, of what has ended.

    What they wait for may have ended here, or was never here, unless it is still on its way; and if they have ended,
    others may wait for them, or for a pair of theirs that has.
    """
    targets = (
        "SELECT target FROM json_each(?1) JOIN dependency ON submission_id = value WHERE outcome IS NULL "
        "AND target NOT IN (SELECT submission_id FROM arriving WHERE NOT is_given_up) "
        "UNION SELECT target FROM json_each(?1) JOIN dependency ON target = value WHERE outcome IS NULL "
        "UNION SELECT ~lane_id FROM json_each(?1) JOIN submission_lane m ON m.submission_id = value "
        "WHERE EXISTS (SELECT 1 FROM dependency WHERE target = ~m.lane_id AND outcome IS NULL)"
    )
    ids = json.dumps(list(submission_ids))
    for target in [int(row[0]) for row in writer.execute(targets, (ids,))]:
        outcome = _outcome(writer, target)
        if outcome is not None:
            writer.execute("INSERT OR REPLACE INTO dependency_due VALUES (?, ?, 0)", (target, outcome))


def has_due(connection: apsw.Connection) -> bool:
    """Whether somebody must be told of an end."""
    return connection.execute("SELECT 1 FROM dependency_due LIMIT 1").fetchone() is not None


def tell(writer: apsw.Connection, limit: int, wall: int) -> tuple[list[Decided], int]:
    """Tell up to `limit` of those who wait of ends, also of ends that come of that.

    Returns:
        What waits no more, in the order in which that came, and how many were told.
    """
    decided: list[Decided] = []
    left = limit
    while left > 0:
        due = writer.execute("SELECT target, outcome, after_id FROM dependency_due LIMIT 1").fetchone()
        if due is None:
            break
        target, outcome, after_id = due
        rows = writer.execute(
            f"SELECT {', '.join(Edge._fields)} FROM dependency "
            "WHERE target = ? AND outcome IS NULL AND submission_id > ? ORDER BY submission_id LIMIT ?",
            (target, after_id, left),
        ).fetchall()
        if len(rows) < left:
            writer.execute("DELETE FROM dependency_due WHERE target = ?", (target,))
        else:
            writer.execute("UPDATE dependency_due SET after_id = ? WHERE target = ?", (rows[-1][0], target))
        left -= max(len(rows), 1)
        for row in rows:
            found = _decide(writer, Edge._make(row)._replace(outcome=outcome), wall)
            if found is not None:
                decided.append(found)
    return decided, limit - left


def _decide(writer: apsw.Connection, edge: Edge, wall: int) -> Decided | None:
    is_met = _is_met(edge.needs, edge.on_failed, edge.outcome or "")
    if not is_met and edge.on_failed == "keep" and edge.outcome != REMOVED:
        return None
    writer.execute(
        "UPDATE dependency SET outcome = ? WHERE submission_id = ? AND target = ?",
        (edge.outcome, edge.submission_id, edge.target),
    )
    if not is_met:
        return _cancel(writer, edge.submission_id, reason_of(edge.target, edge.outcome or ""), wall)
    sql = "SELECT 1 FROM dependency WHERE submission_id = ? AND outcome IS NULL LIMIT 1"
    if writer.execute(sql, (edge.submission_id,)).fetchone() is not None:
        return None
    return _release(writer, edge.submission_id, wall)


def _release(writer: apsw.Connection, submission_id: int, wall: int) -> Decided | None:
    row = writer.execute(
        "SELECT chunks_total, not_before_at, shuffle, priority, lanes FROM submission "
        "WHERE id = ? AND state = 'blocked'",
        (submission_id,),
    ).fetchone()
    if row is None:
        return None
    total, not_before_at, shuffle, priority, stored = row
    lane_ids = tuple(lane_id for lane_id, _ in lanes.decode(stored).values())
    state = first_state(total, not_before_at, wall)
    writer.execute(
        "UPDATE submission SET state = ?, finished_at = ? WHERE id = ?",
        (state, wall if state == "completed" else None, submission_id),
    )
    if state != "scheduled":
        lanes.leave(writer, submission_id, lane_ids)
    if state == "open":
        lanes.enter(writer, submission_id, shuffle, priority, lane_ids)
    elif state == "completed":
        note_end(writer, submission_id, state, lane_ids)
    return Decided(submission_id, state, total, lane_ids)


def _cancel(writer: apsw.Connection, submission_id: int, reason: str, wall: int) -> Decided | None:
    row = writer.execute(
        "UPDATE submission SET state = 'cancelled', finished_at = ?, chunks_skipped = chunks_total, reason = ? "
        "WHERE id = ? AND state = 'blocked' RETURNING chunks_total, lanes",
        (wall, reason, submission_id),
    ).get
    if row is None:
        return None
    total, stored = row
    lane_ids = tuple(lane_id for lane_id, _ in lanes.decode(stored).values())
    lanes.leave(writer, submission_id, lane_ids)
    note_end(writer, submission_id, "cancelled", lane_ids)
    return Decided(submission_id, "cancelled", total, lane_ids, reason)


def first_state(chunks_total: int, not_before_at: int | None, wall: int) -> str:
    """The state of a submission that waits for no other."""
    if not chunks_total:
        return "completed"
    return "scheduled" if not_before_at is not None and not_before_at > wall else "open"


def reason_of(target: int, outcome: str) -> str:
    """Why a submission is cancelled that waited for another."""
    how = outcome if outcome in {"failed", "expired"} else f"was {outcome}"
    return f"Submission {target}, which it waited for, {how}."


# --- views ---


def waits_of(connection: apsw.Connection, submission_id: int, limit: int) -> list[Edge]:
    """What a submission waits for, and has waited for; what is not decided first."""
    rows = connection.execute(
        f"SELECT {', '.join(Edge._fields)} FROM dependency WHERE submission_id = ? "
        "ORDER BY outcome IS NOT NULL, target LIMIT ?",
        (submission_id, limit),
    )
    return [Edge._make(row) for row in rows]


def waiting_for(connection: apsw.Connection, target: int, limit: int) -> list[Edge]:
    """Who waits, and has waited, for a submission (or ~lane); those who still do first, the oldest first."""
    rows = connection.execute(
        f"SELECT {', '.join(Edge._fields)} FROM dependency WHERE target = ? ORDER BY outcome, submission_id LIMIT ?",
        (target, limit),
    )
    return [Edge._make(row) for row in rows]


def undecided_count(connection: apsw.Connection, submission_id: int) -> int:
    """How much a submission still waits for."""
    sql = "SELECT count(*) FROM dependency WHERE submission_id = ? AND outcome IS NULL"
    return int(connection.execute(sql, (submission_id,)).get)


def state_of(connection: apsw.Connection, submission_id: int) -> str | None:
    """The state of a submission; None: it is gone."""
    row = connection.execute("SELECT state FROM submission WHERE id = ?", (submission_id,)).fetchone()
    return None if row is None or row[0] == "removed" else str(row[0])


def unfinished_count(connection: apsw.Connection, lane_id: int, limit: int) -> int:
    """How many submissions with a pair are unfinished, counted no further than `limit`."""
    sql = (
        "SELECT count(*) FROM (SELECT 1 FROM lane_submission WHERE lane_id = ?1 "
        "UNION ALL SELECT 1 FROM lane_coming WHERE lane_id = ?1 LIMIT ?2)"
    )
    return int(connection.execute(sql, (lane_id, limit)).get)


def pair_of(connection: apsw.Connection, target: int) -> tuple[str, Value]:
    """The pair that ~lane stands for."""
    return lanes.pair(connection, ~target)

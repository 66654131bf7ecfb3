"""Whether the file is sound: SQLite's own check of the pages, then the invariants between rows.

Reads only, on a connection of its own and in one read transaction, so it may run in a thread while work goes on.
Repairs nothing.
"""

from __future__ import annotations

import apsw

from opsq.ids import block_mask, blocks_of, from_sql
from opsq.store import history, meta
from opsq.store.database import Database
from opsq.store.submissions import FINAL_STATES
from opsq.units import counted

SHOWN = 100
"""Problems reported; a file with more is damaged all over."""

_COUNTED = "l.id, l.submissions_count, l.chunks_total, l.chunks_completed, l.chunks_dead, l.chunks_skipped"
_SUMMED = "count(s.id), total(s.chunks_total), total(s.chunks_completed), total(s.chunks_dead), total(s.chunks_skipped)"
_SUMS_OF_ALL = f"SELECT {_COUNTED}, {_SUMMED} FROM lane l LEFT JOIN submission s WHERE l.id = 0 GROUP BY l.id"
_SUMS_OF_PAIRS = (
    f"SELECT {_COUNTED}, {_SUMMED} FROM lane l LEFT JOIN submission_lane m ON m.lane_id = l.id "
    "LEFT JOIN submission s ON s.id = m.submission_id WHERE l.id != 0 GROUP BY l.id"
)
_NOT_DUE = "NOT EXISTS (SELECT 1 FROM dependency_due u WHERE u.target = d.target AND u.after_id < d.submission_id)"
_CLEARS = frozenset({history.COMPLETED, history.DEAD})


def problems(database: Database) -> list[str]:
    """What is wrong with the file, one sentence each, at most `SHOWN`; empty when it is sound.

    Cost: reads the whole file; the log cannot start over until then.
    """
    with database.snapshot() as connection:
        damage = [str(text) for (text,) in connection.execute(f"PRAGMA integrity_check({SHOWN})") if text != "ok"]
        return damage or broken_rules(connection)[:SHOWN]


def broken_rules(connection: apsw.Connection) -> list[str]:
    """What does not hold between the rows; the pages are taken as sound.

    Args:
        connection: sees one state of the file all the time.
    """
    overlay, completed = _unfolded(connection)
    found: list[str] = []
    pending = _pending(connection, overlay, found)
    found += _submission_problems(connection, pending, overlay, completed)
    found += _lane_problems(connection)
    found += _lease_problems(connection, overlay)
    found += _dependency_problems(connection)
    found += _move_problems(connection)
    return found


def _unfolded(connection: apsw.Connection) -> tuple[dict[int, dict[int, int]], dict[int, int]]:
    """What the events that are not folded take out of `block`: submission → block → mask.

    And how many completions they are.
    """
    overlay: dict[int, dict[int, int]] = {}
    completed: dict[int, int] = {}
    for _, event, submission_id, block, mask, _ in history.unfolded(connection, meta.get_int(connection, "folded_seq")):
        blocks = overlay.setdefault(submission_id, {})
        if event in _CLEARS:
            blocks[block] = blocks.get(block, 0) | mask
        elif event == history.REQUEUED:
            blocks[block] = blocks.get(block, 0) & ~mask
        if event == history.COMPLETED:
            completed[submission_id] = completed.get(submission_id, 0) + mask.bit_count()
    return overlay, completed


def _pending(connection: apsw.Connection, overlay: dict[int, dict[int, int]], found: list[str]) -> dict[int, int]:
    """Submission → chunks that `block` says are pending below its frontier, less the overlay.

    Blocks that cannot be are `found`.
    """
    pending: dict[int, int] = {}
    rows = connection.execute(
        "SELECT b.submission_id, b.block, b.pending, s.frontier, s.chunks_total, s.state "
        "FROM block b LEFT JOIN submission s ON s.id = b.submission_id ORDER BY b.submission_id, b.block"
    )
    for submission_id, block, stored, frontier, total, state in rows:
        mask = from_sql(stored)
        if state is None:
            found.append(f"Block {submission_id}/{block} belongs to no submission.")
        elif block >= frontier:
            found.append(f"Block {submission_id}/{block} has a row, but the frontier is {frontier}.")
        elif mask & ~block_mask(total, block):
            found.append(f"Block {submission_id}/{block} has chunks beyond the {total} of its submission.")
        else:
            left = mask & ~overlay.get(submission_id, {}).get(block, 0)
            pending[submission_id] = pending.get(submission_id, 0) + left.bit_count()
    return pending


def _submission_problems(
    connection: apsw.Connection, below: dict[int, int], overlay: dict[int, dict[int, int]], completed: dict[int, int]
) -> list[str]:
    found = []
    given_up: dict[int, int] = {}
    for submission_id, mask in connection.execute("SELECT submission_id, mask FROM dropped"):
        given_up[submission_id] = given_up.get(submission_id, 0) + from_sql(mask).bit_count()
    rows = connection.execute(
        "SELECT id, state, chunks_total, chunks_completed, chunks_dead, chunks_skipped, chunks_dropped, frontier, "
        "(SELECT count(*) FROM dead WHERE submission_id = id), "
        "(SELECT count(*) FROM lane_submission WHERE submission_id = id), "
        "(SELECT count(*) FROM submission_lane WHERE submission_id = id), "
        "(SELECT count(*) FROM submission_lane m JOIN lane_coming USING (lane_id, submission_id) "
        "WHERE m.submission_id = id) FROM submission WHERE state != 'removed'"
    )
    for submission_id, state, total, folded, dead, skipped, dropped, frontier, dead_rows, walked, lanes, coming in rows:
        name = f"Submission {submission_id} ({state})"
        pending = below.get(submission_id, 0) + max(total - frontier * 64, 0)
        pending -= sum(mask.bit_count() for block, mask in overlay.get(submission_id, {}).items() if block >= frontier)
        done = folded + completed.get(submission_id, 0)
        if pending + done + dead + dropped != total:
            found.append(
                f"{name} has {counted(total, 'chunk')}, but {pending} pending + {done} completed + {dead} dead "
                f"+ {dropped} dropped."
            )
        if skipped != (pending if state in FINAL_STATES else 0) + dropped:
            found.append(
                f"{name} has {pending} pending and {dropped} dropped chunks, but {skipped} are counted as skipped."
            )
        if dropped != given_up.get(submission_id, 0):
            found.append(
                f"{name} has {dropped} dropped chunks, but the table of them says {given_up.get(submission_id, 0)}."
            )
        if state == "completed" and pending:
            found.append(f"{name} has {pending} pending chunks.")
        if not 0 <= frontier <= blocks_of(total):
            found.append(f"{name} has {counted(total, 'chunk')}, but its frontier is {frontier}.")
        if dead_rows != dead:
            found.append(
                f"{name} has {counted(dead_rows, 'dead letter')}, but {counted(dead, 'chunk')} are counted as dead."
            )
        if walked != (lanes + 1 if state == "open" else 0):
            found.append(f"{name} is in {walked} walks; it has {lanes} metadata pairs.")
        if coming != (lanes if state in {"blocked", "scheduled"} else 0):
            found.append(f"{name} is noted as coming in {coming} lanes; it has {lanes} metadata pairs.")
    return found


def _lane_problems(connection: apsw.Connection) -> list[str]:
    found = [
        f"Lane {lane_id} counts {counted}, but its submissions add up to {sums}."
        for sql in (_SUMS_OF_ALL, _SUMS_OF_PAIRS)
        for lane_id, *numbers in connection.execute(sql)
        if (counted := [int(number) for number in numbers[:5]]) != (sums := [int(number) for number in numbers[5:]])
    ]
    found += [
        f"Submission {submission_id} has metadata in lane {lane_id}, which does not exist."
        for submission_id, lane_id in connection.execute(
            "SELECT submission_id, lane_id FROM submission_lane WHERE lane_id NOT IN (SELECT id FROM lane)"
        )
    ]
    found += [
        f"Lane {lane_id} walks submission {submission_id}, which is not in it."
        for lane_id, submission_id in connection.execute(
            "SELECT lane_id, submission_id FROM lane_submission w "
            "WHERE NOT EXISTS (SELECT 1 FROM submission WHERE id = w.submission_id) "
            "OR lane_id != 0 AND NOT EXISTS "
            "(SELECT 1 FROM submission_lane m WHERE m.submission_id = w.submission_id AND m.lane_id = w.lane_id)"
        )
    ]
    return found


def _lease_problems(connection: apsw.Connection, overlay: dict[int, dict[int, int]]) -> list[str]:
    found = []
    held: dict[tuple[int, int], int] = {}
    rows = connection.execute(
        "SELECT l.reservation_id, l.submission_id, l.block, l.granted, l.mask, "
        "s.state, s.frontier, s.chunks_total, b.pending "
        "FROM lease l LEFT JOIN submission s ON s.id = l.submission_id "
        "LEFT JOIN block b ON b.submission_id = l.submission_id AND b.block = l.block ORDER BY l.reservation_id"
    )
    for reservation_id, submission_id, block, granted, stored, state, frontier, total, pending in rows:
        name = f"Lease {reservation_id} of block {submission_id}/{block}"
        mask = from_sql(stored)
        if state != "open":
            found.append(f"{name} is held, but the submission is {state or 'not known'}.")
            continue
        left = (block_mask(total, block) if block >= frontier else from_sql(pending or 0)) & ~overlay.get(
            submission_id, {}
        ).get(block, 0)
        if mask & ~left:
            found.append(f"{name} holds chunks that are finished or do not exist.")
        if mask & ~from_sql(granted) or not mask:
            found.append(f"{name} holds chunks that it was not granted, or none.")
        if mask & held.get((submission_id, block), 0):
            found.append(f"{name} holds chunks that another lease holds.")
        held[submission_id, block] = held.get((submission_id, block), 0) | mask
    return found


def _dependency_problems(connection: apsw.Connection) -> list[str]:
    found = [
        f"Submission {submission_id} is {state}, but waits for {counted(count, 'other')}."
        for submission_id, state, count in connection.execute(
            "SELECT s.id, s.state, (SELECT count(*) FROM dependency d WHERE d.submission_id = s.id AND outcome IS NULL)"
            " AS waits FROM submission s WHERE state != 'removed' AND (state = 'blocked') != (waits > 0)"
        )
    ]
    found += [
        f"Submission {submission_id} waits for {target}, which is {state or 'not there'}."
        for submission_id, target, state in connection.execute(
            "SELECT d.submission_id, target, s.state FROM dependency d LEFT JOIN submission s ON s.id = target "
            "WHERE target >= 0 AND outcome IS NULL "
            "AND (s.state IS NULL OR s.state NOT IN ('blocked', 'scheduled', 'open')) "
            "AND NOT (coalesce(s.state, '') IN ('failed', 'cancelled', 'expired') "
            "AND needs = 'completed' AND on_failed = 'keep') "
            f"AND {_NOT_DUE}"
        )
    ]
    found += [
        f"Submission {submission_id} waits for lane {~target}, whose submissions have ended."
        for submission_id, target in connection.execute(
            "SELECT submission_id, target FROM dependency d WHERE target < 0 AND outcome IS NULL "
            "AND EXISTS (SELECT 1 FROM submission_lane m JOIN submission ON id = m.submission_id "
            "WHERE m.lane_id = ~target AND state != 'removed') "
            "AND NOT EXISTS (SELECT 1 FROM lane_submission WHERE lane_id = ~target) "
            f"AND NOT EXISTS (SELECT 1 FROM lane_coming WHERE lane_id = ~target) AND {_NOT_DUE}"
        )
    ]
    found += [
        f"Submission {submission_id} waits for lane {~target}, which does not exist."
        for submission_id, target in connection.execute(
            "SELECT submission_id, target FROM dependency WHERE target < 0 AND ~target NOT IN (SELECT id FROM lane)"
        )
    ]
    return found


def _move_problems(connection: apsw.Connection) -> list[str]:
    found = [
        f"Submission {submission_id} has moved to {address}, but is {state} here."
        for submission_id, address, state in connection.execute(
            "SELECT submission_id, address, state FROM moved JOIN submission ON id = submission_id "
            "WHERE state != 'removed'"
        )
    ]
    found += [
        f"Submission {submission_id} is on its way here, but is {state or 'not there'}."
        for submission_id, state in connection.execute(
            "SELECT submission_id, state FROM arriving LEFT JOIN submission ON id = submission_id "
            "WHERE state IS NULL OR state != 'removed'"
        )
    ]
    return found

"""Submissions that are being removed: hidden at once, then deleted with all their rows, slice by slice.

It must not decide what may be removed.
"""

from __future__ import annotations

from typing import NamedTuple

import apsw

from opsq.ids import SubmissionId
from opsq.store import idempotency_keys, lanes, meta, rules
from opsq.store.lanes import GoneLane

REMOVE_ROWS = 2_000
"""Rows deleted per table in one slice of a removal: about 10 ms together."""
END_ROWS = 40
"""What the end of a removal takes, in such rows: about 200 µs for a submission with some metadata."""


def unfinished_count(connection: apsw.Connection) -> int:
    """How many chunks of submissions being removed the lanes still count as unfinished.

    Uses the index of removed ones.
    """
    sql = (
        "SELECT sum(chunks_total - chunks_completed - chunks_dead - chunks_skipped) FROM submission "
        "WHERE state = 'removed'"
    )
    return int(connection.execute(sql).get or 0)


def hide(writer: apsw.Connection, submission_id: int) -> None:
    """The first step of a removal: the submission is gone for everyone."""
    writer.execute("UPDATE submission SET state = 'removed', finished_at = NULL WHERE id = ?", (submission_id,))


class Removed(NamedTuple):
    """A submission being removed, which no answer shows any more: what the counters of its lanes still include."""

    request_key: bytes
    lanes: bytes
    total: int
    completed: int
    dead: int
    skipped: int
    keeps_content: bool = False
    """It is on another daemon, of which its content is now, or still."""


_ARRIVES = "EXISTS (SELECT 1 FROM arriving a WHERE a.submission_id = submission.id)"


def hidden(connection: apsw.Connection) -> list[tuple[SubmissionId, Removed]]:
    """Submissions being removed, but for those that were moving here."""
    return _hidden(connection, f"NOT {_ARRIVES}")


def on_the_way(connection: apsw.Connection) -> list[tuple[SubmissionId, Removed]]:
    """Submissions that are moving here, or were and have been given up."""
    return _hidden(connection, _ARRIVES)


def _hidden(connection: apsw.Connection, condition: str) -> list[tuple[SubmissionId, Removed]]:
    rows = connection.execute(
        "SELECT id, request_key, lanes, chunks_total, chunks_completed, chunks_dead, chunks_skipped, "
        "EXISTS (SELECT 1 FROM moved m WHERE m.submission_id = submission.id) "
        "OR EXISTS (SELECT 1 FROM arriving a WHERE a.submission_id = submission.id) "
        f"FROM submission WHERE state = 'removed' AND {condition}"
    )
    return [(SubmissionId(submission_id), Removed(*fields)) for submission_id, *fields in rows]


def remove_slice(
    writer: apsw.Connection, submission_id: int, rows: int = REMOVE_ROWS, *, is_elsewhere: bool = False
) -> tuple[list[GoneLane] | None, int]:
    """Delete at most `rows` rows of each table of a hidden submission.

    The history of one that is elsewhere is there, too, and goes. All of it is folded, so `folded_seq` keeps any seq
    from being given twice.

    Returns:
        When that was all of it, the lanes that are gone with it, else None; and how many of `rows` it took.
    """
    if is_elsewhere:
        writer.execute(
            "DELETE FROM history WHERE seq IN "
            "(SELECT seq FROM history_block WHERE submission_id = ?1 AND (block, seq) IN "
            f"(SELECT block, seq FROM history_block WHERE submission_id = ?1 LIMIT {rows}))",
            (submission_id,),
        )
    most = 0
    for table, key in (
        ("block", "block"),
        ("attempt", "block, mask"),
        ("dead", "chunk"),
        ("dropped", "block"),
        ("result", "block, mask"),
        ("history_block", "block, seq"),
        ("dependency", "target"),
    ):
        writer.execute(
            f"DELETE FROM {table} WHERE submission_id = ?1 AND ({key}) IN "
            f"(SELECT {key} FROM {table} WHERE submission_id = ?1 LIMIT {rows})",
            (submission_id,),
        )
        most = max(most, writer.changes())
    if most >= rows:
        return None, rows
    gone = lanes.forget(writer, submission_id)
    rules.drop_weights(writer, ((lane.key, lane.value) for lane in gone))
    idempotency_keys.forget(writer, submission_id)
    meta.put(writer, "last_removed_id", max(submission_id, meta.get_int(writer, "last_removed_id")))
    writer.execute("DELETE FROM arriving WHERE submission_id = ?", (submission_id,))
    writer.execute("DELETE FROM submission WHERE id = ?", (submission_id,))
    return gone, most + END_ROWS

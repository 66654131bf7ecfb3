"""Rows of `idempotency` and `withdrawn`: which submission a key has made, and requests that were withdrawn."""

from __future__ import annotations

import apsw

from opsq.ids import SubmissionId

PRUNE_ROWS = 2_000


def by_idempotency_key(connection: apsw.Connection, key: str, ended_from: int = 0) -> SubmissionId | None:
    """The submission that this key made, also one on its way here.

    Not one that was removed, or ended before `ended_from`.
    """
    row = connection.execute(
        "SELECT id FROM idempotency JOIN submission ON id = submission_id "
        "WHERE idempotency.key = ? AND (finished_at IS NULL OR finished_at >= ?) AND (state != 'removed' "
        "OR EXISTS (SELECT 1 FROM arriving a WHERE a.submission_id = id AND NOT is_given_up))",
        (key, ended_from),
    ).fetchone()
    return SubmissionId(row[0]) if row else None


def of_submission(connection: apsw.Connection, submission_id: int) -> str | None:
    """The key that made a submission, if one did."""
    row = connection.execute("SELECT key FROM idempotency WHERE submission_id = ?", (submission_id,)).fetchone()
    return None if row is None else str(row[0])


def keep(writer: apsw.Connection, key: str, submission_id: int) -> None:
    """The key has made this submission; one that it made before was removed, or ended too long ago."""
    writer.execute("INSERT OR REPLACE INTO idempotency (key, submission_id) VALUES (?, ?)", (key, submission_id))


def forget(writer: apsw.Connection, submission_id: int) -> None:
    """A submission is gone, and its key is free."""
    writer.execute("DELETE FROM idempotency WHERE submission_id = ?", (submission_id,))


def is_withdrawn(connection: apsw.Connection, request_key: bytes) -> bool:
    """Whether a request was taken back."""
    return connection.execute("SELECT 1 FROM withdrawn WHERE request_key = ?", (request_key,)).fetchone() is not None


def withdraw(writer: apsw.Connection, request_key: bytes, withdrawn_at: int) -> None:
    """Take a request back; when it was first taken back stays."""
    writer.execute(
        "INSERT OR IGNORE INTO withdrawn (request_key, withdrawn_at) VALUES (?, ?)", (request_key, withdrawn_at)
    )


def prune(writer: apsw.Connection, before_at: int) -> None:
    """Forget some of the requests that were taken back before `before_at`, the oldest first."""
    writer.execute(
        f"DELETE FROM withdrawn WHERE request_key IN "
        f"(SELECT request_key FROM withdrawn WHERE withdrawn_at < ? ORDER BY withdrawn_at LIMIT {PRUNE_ROWS})",
        (before_at,),
    )

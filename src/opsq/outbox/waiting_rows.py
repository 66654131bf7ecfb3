"""What waits in an outbox as a relay sees it, whatever the database; `postgresql` and `sqlite` find it.

This file must not move anything.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple, Protocol, TypeVar

BATCH_LIMIT_BYTES = 8 << 20
"""A batch ends before this size, so that it fits a frame; it has one row at least."""

SUBMISSIONS, COMPLETIONS = "opsq_outbox", "opsq_outbox_completed"
"""The tables."""

PUT_BACK = (
    "UPDATE opsq_outbox SET refusal = NULL WHERE refusal IS NOT NULL",
    "UPDATE opsq_outbox_completed SET refusal = NULL WHERE told_at IS NULL AND refusal IS NOT NULL",
)
"""What `Outbox.put_back` runs, in any database; so does `Outbox.left` this."""
LEFT = """
    SELECT count(*) FILTER (WHERE refusal IS NULL), count(*) FILTER (WHERE refusal IS NOT NULL) FROM (
        SELECT refusal FROM opsq_outbox UNION ALL SELECT refusal FROM opsq_outbox_completed WHERE told_at IS NULL
    ) AS found
"""

MISSING_HINT = "`opsq outbox ddl --for DATABASE` prints the statements that make it."


class Submission(NamedTuple):
    """A row of `opsq_outbox`."""

    seq: int
    submission: bytes
    chunks: bytes | None

    @property
    def size_bytes(self) -> int:
        """What it takes up of a batch."""
        return len(self.submission) + len(self.chunks or b"")


class Completion(NamedTuple):
    """A row of `opsq_outbox_completed`."""

    seq: int
    handle: str
    result: bytes

    @property
    def size_bytes(self) -> int:
        """What it takes up of a batch."""
        return len(self.result)


R = TypeVar("R", Submission, Completion)


def batch_of(rows: Iterable[R]) -> list[R]:
    """The first of these rows, up to `BATCH_LIMIT_BYTES`. Reads one row too many at most."""
    batch: list[R] = []
    size_bytes = 0
    for row in rows:
        size_bytes += row.size_bytes
        if batch and size_bytes > BATCH_LIMIT_BYTES:
            break
        batch.append(row)
    return batch


class Left(NamedTuple):
    """What is in an outbox: rows that wait, and rows that were set aside."""

    waiting_count: int
    aside_count: int


class Outbox(Protocol):
    """The rows of a database. A take begins what `settle` or `leave` ends; until then no other relay has its rows.

    Raises:
        Unreachable: (every method) the database cannot be used now; the connection has ended.
        UsageError: (every method) it has no outbox, or this user may not use it.
    """

    name: str
    """What messages call it, without a password."""

    def open(self) -> None:
        """Connect, unless it is connected."""

    def take_submissions(self, limit: int) -> list[Submission]:
        """Submissions in order, none before an earlier one of its order key."""

    def take_completions(self, limit: int) -> list[Completion]:
        """Completions in order."""

    def settle(self, table: str, done: list[int], refused: dict[int, str]) -> None:
        """End a take: rows `done`, by `seq`, were handed over; those refused are set aside with the reason."""

    def leave(self) -> None:
        """Let go of what was taken."""

    def put_back(self) -> int:
        """Have what was set aside tried again; returns how many rows."""

    def prune(self, keep_s: float) -> None:
        """Delete completions that were handed over longer ago than this."""

    def left(self) -> Left:
        """Count what is in it."""

    def wait(self, stop_fd: int, timeout_s: float) -> None:
        """Wait until there may be new rows, or the descriptor is readable, or the time is over."""

    def close(self) -> None:
        """End the connection."""

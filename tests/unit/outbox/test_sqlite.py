"""Rows of an outbox in SQLite: a take reads those that it returns, and not all that --batch would allow."""

from __future__ import annotations

import contextlib
import sqlite3
from pathlib import Path

import pytest

from opsq.outbox.ddl import ddl
from opsq.outbox.sqlite import TAKE, TAKE_COMPLETED, SqliteOutbox
from opsq.outbox.waiting_rows import BATCH_LIMIT_BYTES, Completion, Submission, batch_of

PIECE = bytes(BATCH_LIMIT_BYTES // 4)


@pytest.fixture
def path(tmp_path: Path) -> str:
    """A file with an outbox."""
    made = str(tmp_path / "shop.db")
    with contextlib.closing(sqlite3.connect(made)) as connection:
        connection.executescript(ddl("sqlite"))
    return made


@pytest.mark.parametrize("statement", [TAKE, TAKE_COMPLETED])
def test_rows_are_read_in_order_without_a_sort(path: str, statement: str) -> None:
    with contextlib.closing(sqlite3.connect(path)) as connection:
        plan = [line[3] for line in connection.execute(f"EXPLAIN QUERY PLAN {statement}", (500,))]
    [step] = plan
    assert step.startswith(("SCAN", "SEARCH")), plan


@pytest.mark.parametrize("row", [Submission(1, b"", PIECE), Submission(1, PIECE, None), Completion(1, "", PIECE)])
def test_batch_reads_one_row_more_than_it_has_room_for(row: Submission | Completion) -> None:
    rows = iter([row._replace(seq=seq) for seq in range(1, 9)])
    assert [each.seq for each in batch_of(rows)] == [1, 2, 3, 4]
    assert next(rows).seq == 6


def test_row_that_is_larger_than_a_batch_comes_alone() -> None:
    rows = iter([Completion(seq, "", PIECE * 5) for seq in (1, 2)])
    assert [each.seq for each in batch_of(rows)] == [1]


def test_rows_that_were_not_read_keep_no_transaction_open(path: str) -> None:
    """Such a one would see the file as it was then, and could write nothing once others have."""
    with contextlib.closing(sqlite3.connect(path)) as writer:
        writer.execute("PRAGMA journal_mode = WAL")
        for n in range(9):
            writer.execute("INSERT INTO opsq_outbox (submission, chunks) VALUES (?, ?)", (b"%d" % n, PIECE))
        writer.commit()
        relay = SqliteOutbox(path)
        relay.open()
        taken = [row.seq for row in relay.take_submissions(500)]
        writer.execute("DELETE FROM opsq_outbox WHERE seq = 9")
        writer.commit()
        relay.settle("opsq_outbox", taken, {})
        assert [row.submission for row in relay.take_submissions(500)] == [b"3", b"4", b"5"]
        relay.close()

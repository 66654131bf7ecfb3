"""The shard number of a file: given once, kept for good."""

from __future__ import annotations

from pathlib import Path

import pytest

from opsq.errors import Conflict
from opsq.ids import SubmissionIds, shard_of
from opsq.store import meta, shard
from opsq.store.database import Database


def reopened(path: Path, asked: int | None = None) -> int | None:
    """The number after a start that asks for one."""
    database = Database.open(path)
    try:
        shard.claim(database, asked)
        return shard.number(database.reader)
    finally:
        database.close()


def test_new_file_has_no_number_until_one_is_asked_for(tmp_path: Path) -> None:
    path = tmp_path / "opsq.sqlite"
    assert reopened(path) is None
    assert reopened(path, 1023) == 1023
    assert reopened(path) == 1023
    assert reopened(path, 1023) == 1023


def test_file_with_a_number_takes_no_other(tmp_path: Path) -> None:
    path = tmp_path / "opsq.sqlite"
    reopened(path, 0)
    with pytest.raises(Conflict, match="is shard 0, and shard 1 was asked for"):
        reopened(path, 1)
    assert reopened(path) == 0


def test_file_that_has_made_submissions_without_a_number_can_be_shard_0_only(tmp_path: Path) -> None:
    path = tmp_path / "opsq.sqlite"
    database = Database.open(path)
    made = SubmissionIds().next(2**41)
    database.begin()
    meta.put(database.writer, "last_removed_id", made)
    database.commit()
    database.close()
    assert shard_of(made) == 0
    with pytest.raises(Conflict, match="without a shard number"):
        reopened(path, 7)
    assert reopened(path, 0) == 0

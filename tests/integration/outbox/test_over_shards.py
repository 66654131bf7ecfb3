"""Rows of an outbox that are handed over to several shards, and again after a relay was killed."""

from __future__ import annotations

import contextlib
import sqlite3
import subprocess
from pathlib import Path

import pytest

import opsq
from acceptance.starter import PROGRAM
from fleets import fleet_in
from opsq import outbox
from opsq.cli.daemon_address import connect
from opsq.client.sync.connection import Connection
from opsq.ids import shard_of
from opsq.outbox.hand_over import HandOver
from opsq.outbox.waiting_rows import Completion, Submission
from opsq.wire.messages import Reserve, Reserved


def rows_of(path: Path, count: int, filling: bytes = b"") -> list[Submission]:
    """Rows that transactions have written."""
    with contextlib.closing(sqlite3.connect(path)) as connection:
        connection.executescript(outbox.ddl("sqlite"))
        for number in range(count):
            outbox.submit(connection, [b"order %d" % number + filling])
        connection.commit()
        found = connection.execute("SELECT seq, submission, chunks FROM opsq_outbox ORDER BY seq").fetchall()
    return [Submission(*row) for row in found]


def test_rows_that_are_handed_over_again_make_nothing_though_another_shard_has_more_room(tmp_path: Path) -> None:
    rows = rows_of(tmp_path / "shop.db", 30)
    with fleet_in(tmp_path, 3, max_backlog_chunks=1000) as fleet:
        for _ in range(3):  # each time by a relay that knows nothing of the one before
            with contextlib.closing(HandOver(lambda: connect(fleet.client_settings))) as hand_over:
                assert hand_over.submit(rows).done == [row.seq for row in rows]
        with opsq.connect(fleet.address) as queue:
            made = [state.submission_id for state in queue.submissions()]
        assert len(made) == 30
        assert {shard_of(one) for one in made} == {0, 1, 2}


def test_rows_wait_for_a_shard_that_may_have_them(tmp_path: Path) -> None:
    rows = rows_of(tmp_path / "shop.db", 30)
    with fleet_in(tmp_path, 3) as fleet:
        with contextlib.closing(HandOver(lambda: connect(fleet.client_settings))) as hand_over:
            hand_over.submit(rows)
        fleet.kill(1)
        again = HandOver(lambda: connect(fleet.client_settings))
        with contextlib.closing(again), pytest.raises(opsq.errors.Unreachable, match="may have a submission"):
            again.submit(rows)
        fleet.start(1)
        with contextlib.closing(HandOver(lambda: connect(fleet.client_settings))) as hand_over:
            assert len(hand_over.submit(rows).done) == 30
        with opsq.connect(fleet.address) as queue:
            assert len(list(queue.submissions())) == 30


def test_row_whose_submission_has_moved_is_done_and_the_submission_has_its_content(tmp_path: Path) -> None:
    """The relay was killed before it could forget the row, and is still of the daemon that had it."""
    [row] = rows_of(tmp_path / "shop.db", 1, bytes(10_000))
    with fleet_in(tmp_path, 2) as fleet:
        source, target = fleet.settings
        for _ in range(2):
            with contextlib.closing(HandOver(lambda: connect(source))) as hand_over:
                assert hand_over.submit([row]).done == [row.seq]
            command = ["drain", "--to", target.socket]
            subprocess.run([PROGRAM, "--state-dir", source.state_dir, *command], check=True, stdout=subprocess.DEVNULL)
        with opsq.connect(target.socket) as queue:
            [chunk] = queue.consume(overlapping=True, until_idle=True)
            assert chunk.data == b"order 0" + bytes(10_000)


def test_large_result_arrives_although_its_shard_is_restarted(tmp_path: Path) -> None:
    """While it is away, the other shard describes what it has."""
    with fleet_in(tmp_path, 2) as fleet:
        with opsq.connect(fleet.settings[1].socket) as queue:
            submission_id = queue.submit([b"chunk"]).id
        with Connection.open(fleet.settings[1].socket) as daemon:
            reserved = daemon.call(Reserve(daemon.next_id(), 1, "OldestFirst", None, 3600.0), Reserved)
            [(_, handle)] = reserved.handles()
        row = Completion(1, str(handle), bytes(10_000))
        with contextlib.closing(HandOver(lambda: connect(fleet.client_settings))) as hand_over:
            hand_over.open()
            fleet.kill(1)
            with pytest.raises(opsq.errors.Unreachable):
                hand_over.complete([row])
            fleet.start(1)
            assert hand_over.complete([row]).done == [1]
        with opsq.connect(fleet.address) as queue:
            assert list(queue.submission(submission_id).results()) == [bytes(10_000)]

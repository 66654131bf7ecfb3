"""Backup, check and vacuum, a short write-ahead log, and no content left of removed submissions."""

from __future__ import annotations

import asyncio
import os
import sqlite3
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from daemons import DEADLINE_S, Client, connected, end, error_of, running, state_of
from opsq.clock import now
from opsq.content.store_kinds import open_store
from opsq.daemon import lifecycle
from opsq.daemon.housekeeping import Housekeeping
from opsq.queue.engine import Engine
from opsq.queue.policy import Policy
from opsq.settings import Settings
from opsq.store.database import Database
from opsq.store.write_ahead_log import LIMIT_BYTES
from opsq.wire.messages import (
    Backup,
    Cancel,
    Changed,
    Check,
    Checked,
    NewSubmission,
    Remove,
    Show,
    Shown,
    Submit,
    Submitted,
    Vacuum,
)
from waiting import wait_until


@pytest.fixture
def settings(runtime_dir: Path) -> Iterator[Settings]:
    with running(runtime_dir / "state") as found:
        yield found


def submit(
    client: Client, count: int = 1, attachment: bytes | None = None, request_key: bytes | None = None
) -> list[int]:
    keys = [request_key or os.urandom(16) for _ in range(count)]
    reply = client.ask(Submit(2, [NewSubmission(key, 10, attachment=attachment) for key in keys]))
    assert isinstance(reply, Submitted), reply
    return [created.submission_id for created in reply.created]


def make_folder(path: Path, *, days: float = 2, is_empty: bool = False) -> None:
    """A folder in the store, written so long ago."""
    path.mkdir()
    if not is_empty:
        (path / "part-0").write_bytes(b"x")
    for each in (*path.iterdir(), path):
        os.utime(each, (time.time() - days * 24 * 3600,) * 2)


def swept_count(settings: Settings) -> int:
    """How many folders a sweep deletes for the queue of a daemon that has ended."""

    async def sweep() -> int:
        database = Database.open(Path(settings.database_path))
        engine = Engine(database, Policy(), now())
        try:
            store = open_store(settings.store)
            return await Housekeeping(database, store, asyncio.get_running_loop(), engine.expects).sweep()
        finally:
            database.close()

    return asyncio.run(sweep())


def test_backup_while_work_goes_on_can_be_restored(settings: Settings, runtime_dir: Path) -> None:
    with connected(settings) as client:
        (submission_id,) = submit(client)
        copied = client.ask(Backup(3, str(runtime_dir / "copy.sqlite")))
        assert isinstance(copied, Changed)
        assert copied.count == (runtime_dir / "copy.sqlite").stat().st_size
    (runtime_dir / "restored").mkdir(0o700)
    os.rename(runtime_dir / "copy.sqlite", runtime_dir / "restored/opsq.sqlite")
    with running(runtime_dir / "restored") as restored, connected(restored) as client:
        assert isinstance(client.ask(Show(4, submission_id)), Shown)


def test_backup_overwrites_nothing_and_wants_an_absolute_path(settings: Settings, runtime_dir: Path) -> None:
    (runtime_dir / "there").write_text("precious")
    with connected(settings) as client:
        assert "File exists" in error_of(client.ask(Backup(3, str(runtime_dir / "there")))).message
        refused = error_of(client.ask(Backup(4, "relative.sqlite")))
        assert (refused.code, refused.details["field"]) == ("usage", "path")
        assert error_of(client.ask(Backup(5, "/no/such/folder/copy"))).code == "input_unreadable"
    assert (runtime_dir / "there").read_text() == "precious"


def test_check_finds_no_problem_in_a_sound_file(settings: Settings) -> None:
    with connected(settings) as client:
        submit(client, 10)
        assert client.ask(Check(3)) == Checked(3, [])


def test_vacuum_gives_free_pages_back(settings: Settings) -> None:
    with connected(settings) as client:
        ids = submit(client, 200, attachment=os.urandom(20_000))
        for submission_id in ids:
            client.ask(Cancel(3, submission_id))
            assert client.ask(Remove(4, submission_id)) == Changed(4)
        wait_until(lambda: state_of(settings).free_bytes > 3_000_000, DEADLINE_S)
        given_back = client.ask(Vacuum(5))
        assert isinstance(given_back, Changed)
        assert given_back.count > 3_000_000
        assert state_of(settings).free_bytes < 1_000_000


def test_content_of_a_removed_submission_is_deleted(settings: Settings) -> None:
    key = os.urandom(16)
    folder = Path(settings.state_dir, "content", key.hex())
    with connected(settings) as client:
        (submission_id,) = submit(client, request_key=key)
        folder.mkdir()
        (folder / "part-0").write_bytes(b"x" * 1000)
        client.ask(Cancel(3, submission_id))
        assert folder.exists()
        client.ask(Remove(4, submission_id))
        wait_until(lambda: not folder.exists(), DEADLINE_S)


def test_sweep_deletes_old_content_that_no_submission_names(settings: Settings) -> None:
    """Young content may be on its way in; a folder of another form is not ours; what a submission names stays.

    An empty folder is of a write that has not begun, until it is very old.
    """
    known, orphan, young, empty, forgotten = (os.urandom(16) for _ in range(5))
    with connected(settings) as client:
        submit(client, request_key=known)
    lifecycle.stop(settings)
    content = Path(settings.state_dir, "content")
    make_folder(content / young.hex(), days=0)
    for name in (known.hex(), orphan.hex(), "not-ours"):
        make_folder(content / name)
    for key, days in ((empty, 2), (forgotten, 60)):
        make_folder(content / key.hex(), days=days, is_empty=True)
    assert swept_count(settings) == 2
    left = {path.name for path in content.iterdir() if path.is_dir()}
    assert left == {known.hex(), young.hex(), empty.hex(), "not-ours"}


def test_content_of_another_queue_in_the_same_store_is_not_swept(
    runtime_dir: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Without shard numbers: as two users have it whose settings name one store."""
    key = os.urandom(16)
    store = runtime_dir / "store"
    with running(runtime_dir / "first", store=str(store)) as first, connected(first) as client:
        submit(client, request_key=key)
        make_folder(store / key.hex())
        with running(runtime_dir / "second", store=str(store)) as second:
            lifecycle.stop(second)
        assert swept_count(second) == 0
        assert (store / key.hex() / "part-0").exists()
        assert "which another queue has used too" in caplog.text
        lifecycle.stop(first)
    make_folder(store / os.urandom(16).hex())
    assert swept_count(first) == 0, "it may be of the second"


def test_store_stays_that_of_a_queue_that_was_restored_elsewhere(settings: Settings, runtime_dir: Path) -> None:
    known, orphan = os.urandom(16), os.urandom(16)
    with connected(settings) as client:
        submit(client, request_key=known)
        (runtime_dir / "restored").mkdir(0o700)
        assert isinstance(client.ask(Backup(3, str(runtime_dir / "restored/opsq.sqlite"))), Changed)
    end(settings)
    content = Path(settings.state_dir, "content")
    for key in (known, orphan):
        make_folder(content / key.hex())
    with running(runtime_dir / "restored", store=str(content)) as restored:
        lifecycle.stop(restored)
    assert swept_count(restored) == 1
    assert (content / known.hex()).exists()


def test_log_stays_under_its_limit_with_a_reader_open_at_all_times(settings: Settings) -> None:
    """Readers overlap, so there is no moment without one, while more is written than the log may hold."""
    attachment = os.urandom(8192)
    log = Path(settings.database_path + "-wal")
    is_over = threading.Event()

    def read() -> None:
        before: sqlite3.Connection | None = None
        while not is_over.is_set():
            reader = sqlite3.connect(f"file:{settings.database_path}?mode=ro", uri=True)
            reader.execute("BEGIN")
            reader.execute("SELECT count(*) FROM meta").fetchall()
            if before is not None:
                before.close()
            before = reader
            is_over.wait(0.05)
        if before is not None:
            before.close()

    reading = threading.Thread(target=read)
    reading.start()
    try:
        with connected(settings) as client:
            for _ in range(2 * LIMIT_BYTES // (500 * len(attachment))):
                submit(client, 500, attachment)
                assert log.stat().st_size <= LIMIT_BYTES
    finally:
        is_over.set()
        reading.join()

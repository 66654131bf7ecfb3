"""The store on a real file: opening, locking, migrating, refusing, pragmas, copies, checks.

And the plans of what walks the backlog.
"""

from __future__ import annotations

import errno
import hashlib
import os
import shutil
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from types import SimpleNamespace

import apsw
import pytest

from opsq.errors import AlreadyRunning, DatabaseDamaged, InputUnreadable, NotPermitted, StorageFull, VersionMismatch
from opsq.store import backlog, database, database_copy, integrity, write_ahead_log
from opsq.store.database import Database, Deposed
from opsq.store.database_file import migrations
from opsq.strategy import explain
from opsq.strategy.arms import CUSTOM_PRIORITY, NEWEST_FIRST, OLDEST_FIRST, RANDOM, walk_sql
from opsq.users import open_file
from waiting import wait_until

SCHEMA = len(migrations())


@pytest.fixture
def path(runtime_dir: Path) -> Path:
    return runtime_dir / "opsq.sqlite"


@pytest.fixture
def opened(path: Path) -> Iterator[Database]:
    database = Database.open(path)
    yield database
    database.close()


def made(path: Path) -> Path:
    """A database that has been used and closed."""
    database = Database.open(path)
    database.begin()
    database.writer.execute(
        "INSERT INTO submission (id, state, chunks_total, priority, shuffle, reservation_s, max_attempts, max_lost, "
        "backoff_base_s, "
        "backoff_factor, backoff_max_s, keep_on_dead, submitted_at, request_key, lanes, content) "
        "VALUES (1, 'completed', 0, 0, 0, 1, 1, 1, 1, 1, 1, 0, 0, x'01', x'80', x'')"
    )
    database.writer.execute("UPDATE lane SET submissions_count = 1")
    database.commit()
    database.close()
    return path


def digest(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def value(connection: apsw.Connection, sql: str) -> object:
    return connection.execute(sql).get


# --- opening ---


def test_new_file_is_made_for_its_owner_alone_with_every_migration(opened: Database, path: Path) -> None:
    assert value(opened.reader, "PRAGMA user_version") == SCHEMA
    assert path.stat().st_mode & 0o777 == 0o600


def test_plain_sqlite_opens_and_checks_the_file(path: Path) -> None:
    """No function of ours stands in the schema."""
    connection = apsw.Connection(str(made(path)), flags=apsw.SQLITE_OPEN_READONLY)
    assert value(connection, "PRAGMA integrity_check") == "ok"
    assert value(connection, "SELECT state FROM submission") == "completed"
    connection.close()


def test_every_connection_has_its_limits_and_a_busy_time_out(opened: Database) -> None:
    for connection in (opened.reader, opened.writer):
        assert value(connection, "PRAGMA journal_mode") == "wal"
        assert value(connection, "PRAGMA journal_size_limit") == write_ahead_log.LIMIT_BYTES
        assert value(connection, "PRAGMA busy_timeout") == database.BUSY_MS
        assert value(connection, "PRAGMA wal_autocheckpoint") == 0
    assert value(opened.reader, "PRAGMA query_only") == 1
    assert value(opened.reader, "PRAGMA auto_vacuum") == 2


@pytest.mark.parametrize(("is_durable", "synchronous"), [(True, 2), (False, 1)])
def test_durable_commits_are_synced_in_full_and_others_say_so(path: Path, is_durable: bool, synchronous: int) -> None:
    opened = Database.open(path, is_durable=is_durable)
    assert value(opened.writer, "PRAGMA synchronous") == synchronous
    opened.close()


def test_reader_cannot_write(opened: Database) -> None:
    with pytest.raises(apsw.ReadOnlyError):
        opened.reader.execute("DELETE FROM submission")


def test_every_transaction_that_writes_begins_immediate(opened: Database) -> None:
    """A transaction that reads first and writes later fails at once when another has written between."""
    source = Path(database.__file__).parent
    for file in source.rglob("*.py"):
        text = file.read_text()
        for begin in text.split('"BEGIN')[1:]:
            assert begin.startswith((" IMMEDIATE", " DEFERRED")), file
    opened.begin()
    other = apsw.Connection(str(opened.path))
    with pytest.raises(apsw.BusyError):
        other.execute("BEGIN IMMEDIATE")
    other.close()
    assert opened.rollback()


# --- one owner ---


def test_second_owner_is_refused_and_changes_nothing(opened: Database, path: Path) -> None:
    lock = path.with_suffix(".lock")
    before = digest(path), digest(lock)
    with pytest.raises(AlreadyRunning, match=str(os.getpid())):
        Database.open(path)
    assert (digest(path), digest(lock)) == before


def test_lock_of_a_dead_process_is_free(path: Path) -> None:
    """The pid in the file is of no account: here it is that of a live process that has nothing to do with us."""
    path.with_suffix(".lock").write_text("1\n")
    Database.open(path).close()


def test_lock_outlives_closing_and_is_never_deleted(path: Path) -> None:
    Database.open(path).close()
    assert path.with_suffix(".lock").exists()
    Database.open(path).close()


def test_lock_is_not_inherited_by_children(opened: Database, path: Path) -> None:
    """Else a consumer's program that outlives the daemon would keep the folder."""
    command = [sys.executable, "-c", "print(flush=True); input()"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, close_fds=False) as child:
        assert child.stdout is not None
        child.stdout.readline()  # before its exec has ended it still has all
        opened.close()
        Database.open(path).close()
        child.communicate(b"\n")


def test_owner_that_was_deposed_begins_no_transaction(opened: Database) -> None:
    other = apsw.Connection(str(opened.path))
    other.execute("UPDATE owner SET token = x'00'")
    other.close()
    with pytest.raises(Deposed):
        opened.check_owner()
    with pytest.raises(Deposed):
        opened.begin()
    assert opened.rollback()


@pytest.mark.parametrize("is_replaced", [True, False])
def test_file_that_was_replaced_or_removed_is_noticed_at_the_next_transaction(
    opened: Database, path: Path, is_replaced: bool
) -> None:
    if is_replaced:
        shutil.copy(path, path.with_name("other"))
        path.with_name("other").rename(path)
    else:
        path.unlink()
    with pytest.raises(Deposed, match=r"replaced|removed"):
        opened.begin()
    assert opened.rollback()


def test_folder_that_cannot_be_written_is_refused_by_name(runtime_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def deny(*_: object, **__: object) -> int:
        raise PermissionError(13, "Permission denied")

    with monkeypatch.context() as patch:
        patch.setattr(database.os, "open", deny)
        with pytest.raises(NotPermitted, match=str(runtime_dir)):
            Database.open(runtime_dir / "opsq.sqlite")


# --- files that are refused ---


@pytest.mark.parametrize(
    "content",
    [b"not a database at all, but long enough to look like one" * 100, b"SQLite format 3\x00" + b"\xff" * 4096],
)
def test_file_that_is_no_database_is_refused_and_untouched(path: Path, content: bytes) -> None:
    path.write_bytes(content)
    with pytest.raises(DatabaseDamaged, match="left as it is"):
        Database.open(path)
    assert path.read_bytes() == content


def test_database_of_something_else_is_refused_and_untouched(path: Path) -> None:
    other = apsw.Connection(str(path))
    other.execute("CREATE TABLE theirs (a)")
    other.close()
    before = digest(path)
    with pytest.raises(DatabaseDamaged, match="not an opsq database"):
        Database.open(path)
    assert digest(path) == before


def test_broken_page_is_found_at_start_and_the_file_is_untouched(path: Path) -> None:
    made(path)
    broken = bytearray(path.read_bytes())
    for page in range(3, 12):
        broken[page * 4096 : page * 4096 + 200] = b"\xab" * 200
    path.write_bytes(broken)
    before = digest(path)
    with pytest.raises(DatabaseDamaged):
        Database.open(path)
    assert digest(path) == before


@pytest.mark.parametrize("cut_to", [0.9, 0.5, 0.1])
def test_file_that_was_cut_short_is_refused_and_untouched(path: Path, cut_to: float) -> None:
    whole = made(path).read_bytes()
    path.write_bytes(whole[: int(len(whole) * cut_to)])
    before = digest(path)
    with pytest.raises(DatabaseDamaged):
        Database.open(path)
    assert digest(path) == before


def test_empty_file_becomes_a_database(path: Path) -> None:
    """A crash between making the file and its first page."""
    path.touch()
    Database.open(path).close()
    assert checked(path) == []


def test_newer_file_is_refused_with_both_versions_and_untouched(path: Path) -> None:
    made(path)
    newer = apsw.Connection(str(path))
    newer.execute(f"PRAGMA user_version = {SCHEMA + 1}")
    newer.close()
    before = digest(path)
    with pytest.raises(VersionMismatch, match=f"schema {SCHEMA + 1}.*knows {SCHEMA}"):
        Database.open(path)
    with pytest.raises(VersionMismatch):
        Database.open_read_only(path)
    assert digest(path) == before
    assert list(path.parent.glob("*.bak")) == []


def test_refused_start_gives_the_lock_back(path: Path) -> None:
    path.write_bytes(b"x" * 5000)
    with pytest.raises(DatabaseDamaged):
        Database.open(path)
    path.unlink()
    Database.open(path).close()


# --- migrations ---


def test_older_file_is_backed_up_and_then_migrated(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made(path)
    monkeypatch.setattr(database, "migrations", lambda: [*migrations(), "CREATE TABLE added (a INTEGER) STRICT;"])
    opened = Database.open(path)
    assert value(opened.reader, "PRAGMA user_version") == SCHEMA + 1
    assert value(opened.reader, "SELECT count(*) FROM added") == 0
    opened.close()
    [backup] = path.parent.glob("*.bak")
    assert backup.name.startswith(f"opsq.sqlite.v{SCHEMA}-")
    older = apsw.Connection(str(backup), flags=apsw.SQLITE_OPEN_READONLY)
    assert value(older, "PRAGMA user_version") == SCHEMA
    assert value(older, "SELECT state FROM submission") == "completed"
    older.close()


def test_older_file_without_room_for_its_copy_is_refused_and_untouched(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made(path)
    before = digest(path)

    def backup(*_: object) -> int:
        raise StorageFull("The disk is full.")

    monkeypatch.setattr(database, "migrations", lambda: [*migrations(), "CREATE TABLE added (a INTEGER) STRICT;"])
    monkeypatch.setattr(Database, "backup", backup)
    with pytest.raises(StorageFull, match=rf"There is no room for .*opsq\.sqlite\.v{SCHEMA}-"):
        Database.open(path)
    assert digest(path) == before


def test_migration_that_fails_leaves_the_older_file_as_it_was(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made(path)
    with monkeypatch.context() as patch:
        patch.setattr(
            database, "migrations", lambda: [*migrations(), "CREATE TABLE added (a); CREATE TABLE added (a);"]
        )
        with pytest.raises(apsw.SQLError):
            Database.open(path)
    opened = Database.open(path)
    assert value(opened.reader, "PRAGMA user_version") == SCHEMA
    assert value(opened.reader, "SELECT count(*) FROM sqlite_schema WHERE name = 'added'") == 0
    opened.close()


# --- network file systems ---


def test_network_file_system_is_refused_with_a_hint(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(database, "network_filesystem", lambda _: "nfs4")
    with pytest.raises(InputUnreadable, match=r"nfs4.*--allow-network-fs"):
        Database.open(path)
    assert not path.exists()


def test_network_file_system_that_is_allowed_uses_a_rollback_journal_and_works(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(database, "network_filesystem", lambda _: "nfs4")
    opened = Database.open(path, allow_network_fs=True)
    assert value(opened.writer, "PRAGMA journal_mode") == "delete"
    for number in range(3):
        opened.begin()
        opened.writer.execute("INSERT INTO meta VALUES (?, 1)", (f"key {number}",))
        opened.commit()
        assert value(opened.reader, "SELECT count(*) FROM meta WHERE key LIKE 'key %'") == number + 1
    assert integrity.problems(opened) == []
    opened.close()


# --- copies, checks, the log ---


def checked(path: Path) -> list[str]:
    opened = Database.open_read_only(path)
    try:
        return integrity.problems(opened)
    finally:
        opened.close()


def fill(opened: Database, rows: int) -> None:
    opened.begin()
    opened.writer.executemany(
        "INSERT OR REPLACE INTO meta VALUES (?, ?)", ((f"fill {n}", "x" * 1000) for n in range(rows))
    )
    opened.commit()


def test_backup_is_a_whole_database_that_a_daemon_can_start_on(opened: Database, path: Path) -> None:
    fill(opened, 100)
    copy = path.with_name("copy.sqlite")
    assert opened.backup(copy) == copy.stat().st_size
    assert checked(copy) == []
    again = Database.open(copy)
    assert value(again.reader, "SELECT count(*) FROM meta WHERE key LIKE 'fill %'") == 100
    again.close()


def test_backup_ends_although_somebody_writes_all_the_time(opened: Database, path: Path) -> None:
    """It copies one state; a copy that begins anew after each commit would never end."""
    fill(opened, 12_000)
    copy = path.with_name("copy.sqlite")
    copying = threading.Thread(target=opened.backup, args=(copy,))
    copying.start()
    commits = 0
    while copying.is_alive() and commits < 3000:
        fill(opened, 10)
        commits += 1
    copying.join(180)
    assert commits < 3000
    assert checked(copy) == []


def test_backup_over_a_file_that_exists_is_refused(opened: Database, path: Path) -> None:
    copy = path.with_name("copy.sqlite")
    copy.write_text("precious")
    with pytest.raises(InputUnreadable, match=r"copy\.sqlite"):
        opened.backup(copy)
    assert copy.read_text() == "precious"


def test_backup_is_not_written_through_a_link_that_takes_its_place(
    opened: Database, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    precious = path.with_name("precious")
    precious.touch()

    def replaced(beside: Path, flags: int) -> int:
        descriptor = open_file(beside, flags)
        beside.unlink()
        beside.symlink_to(precious)
        return descriptor

    monkeypatch.setattr(database_copy, "open_file", replaced)
    with pytest.raises(InputUnreadable, match=r"Cannot write the backup .*copy\.sqlite"):
        opened.backup(path.with_name("copy.sqlite"))
    assert precious.stat().st_size == 0
    assert not path.with_name("copy.sqlite").exists()


def test_holes_that_a_copy_without_room_has_left_count_as_room_that_the_file_needs(
    opened: Database, path: Path
) -> None:
    """SQLite has made the file longer, and then found no room for the pages."""
    opened.log.restart()
    assert opened.log.growth_bytes() <= 0
    fill(opened, 200)
    needed = opened.log.growth_bytes()
    assert needed > 200_000
    os.truncate(path, value(opened.reader, "PRAGMA page_count") * 4096)
    assert opened.log.growth_bytes() == needed
    opened.log.restart()
    assert opened.log.growth_bytes() <= 0


def test_vacuum_gives_free_pages_back_to_the_file_system(opened: Database) -> None:
    fill(opened, 2000)
    opened.begin()
    opened.writer.execute("DELETE FROM meta WHERE key LIKE 'fill %'")
    opened.commit()
    opened.log.restart()
    before = opened.file_bytes()
    assert opened.free_bytes() > 1_000_000
    given = opened.vacuum()
    opened.log.restart()
    assert before - opened.file_bytes() == given > 1_000_000
    assert opened.free_bytes() == 0


def test_vacuum_counts_what_it_gives_back_whatever_is_written_meanwhile(
    opened: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The difference of two sizes was negative when more was written, and no client could read the answer."""
    fill(opened, 2000)
    opened.begin()
    opened.writer.execute("DELETE FROM meta WHERE key LIKE 'fill %'")
    opened.commit()
    free_bytes, pages_count = opened.free_bytes(), value(opened.reader, "PRAGMA page_count")
    written = iter(range(1))
    sleep = SimpleNamespace(sleep=lambda _: [fill(opened, 4000) for _ in written])
    monkeypatch.setattr(database, "time", sleep)
    assert 256 * 4096 <= opened.vacuum(256) <= free_bytes
    assert value(opened.reader, "PRAGMA page_count") > pages_count


def test_log_begins_anew_after_a_whole_checkpoint_and_not_after_a_passive_one(opened: Database, path: Path) -> None:
    log = path.with_name(f"{path.name}-wal")
    fill(opened, 1000)
    size = log.stat().st_size
    opened.log.copy()
    fill(opened, 10)
    assert opened.log.bytes > 0
    opened.log.restart()
    assert opened.log.bytes == 0
    fill(opened, 10)
    assert opened.log.bytes < size // 4
    assert log.stat().st_size >= size


def test_foreign_reader_that_keeps_the_log_is_noticed_and_nobody_waits_for_it(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(write_ahead_log, "STEP_BYTES", 1)
    with closing(Database.open(path)) as opened:
        stranger = apsw.Connection(str(path), flags=apsw.SQLITE_OPEN_READONLY)
        stranger.execute("BEGIN")
        assert stranger.execute("SELECT count(*) FROM submission").get == 0
        while opened.log.bytes < opened.log.restart_bytes:
            fill(opened, 1_000)
        assert opened.log.kept_s() == 0
        opened.log.copy()
        assert not opened.log.restart()
        wait_until(lambda: opened.log.kept_s() > 0, 10, "the clock has moved")
        stranger.close()
        assert opened.log.restart()
        assert opened.log.kept_s() == 0


def test_log_is_not_forgotten_while_a_reader_holds_it(opened: Database) -> None:
    fill(opened, 100)
    with opened.snapshot() as connection:
        assert value(connection, "SELECT count(*) FROM meta WHERE key LIKE 'fill %'") == 100
        fill(opened, 200)
        before = opened.log.bytes
        assert not opened.log.restart()
        assert opened.log.bytes == before
        assert value(connection, "SELECT count(*) FROM meta WHERE key LIKE 'fill %'") == 100


@pytest.mark.parametrize(
    ("damage", "told"),
    [
        ("UPDATE submission SET chunks_total = 5", "5 pending"),
        ("UPDATE submission SET chunks_dead = 1, chunks_total = 1", "dead letters"),
        ("UPDATE lane SET chunks_total = 7", "Lane 0"),
        ("INSERT INTO block VALUES (1, 0, 1)", "frontier"),
        ("INSERT INTO block VALUES (9, 0, 1)", "no submission"),
        ("INSERT INTO lane_submission (lane_id, submission_id, shuffle, rank) VALUES (0, 1, 0, 0)", "walks"),
        ("INSERT INTO submission_lane VALUES (1, 77)", "does not exist"),
        ("INSERT INTO lease VALUES (1, 1, 0, 1, 1, 0, 'c', 0, 0, 0, 0)", "completed"),
    ],
)
def test_check_names_what_does_not_hold_between_the_rows(path: Path, damage: str, told: str) -> None:
    made(path)
    assert checked(path) == []
    connection = apsw.Connection(str(path))
    connection.execute(damage)
    connection.close()
    problems = checked(path)
    assert problems
    assert any(told in problem for problem in problems), problems


def test_check_runs_beside_the_writer_in_a_thread(opened: Database) -> None:
    found: list[list[str]] = []
    running = threading.Thread(target=lambda: found.append(integrity.problems(opened)))
    opened.begin()
    running.start()
    running.join(180)
    assert opened.rollback()
    assert found == [[]]


def test_stopped_file_is_read_without_a_lock_and_without_writing(path: Path) -> None:
    made(path)
    path.with_suffix(".lock").unlink()
    before = digest(path)
    assert checked(path) == []
    assert digest(path) == before
    assert not path.with_suffix(".lock").exists()


def killed_while_writing(path: Path) -> str:
    """A database as a process with a rollback journal leaves it that was killed in a transaction; its digest before."""
    before = digest(path)
    live = path.with_name("live")
    shutil.move(path, live)
    connection = apsw.Connection(str(live))
    connection.execute("PRAGMA journal_mode = DELETE")
    connection.execute("BEGIN IMMEDIATE")
    connection.execute("UPDATE lane SET submissions_count = 77")
    connection.cache_flush()  # the journal is synced, and the page is in the file: as at the death of the process
    shutil.copy(live, path)
    shutil.copy(live.with_name("live-journal"), path.with_name(f"{path.name}-journal"))
    connection.close()
    assert digest(path) != before
    return before


def rows_of(database: Database) -> list[tuple[object, ...]]:
    return list(database.reader.execute("SELECT submissions_count FROM lane"))


@pytest.mark.parametrize("remote", [None, "nfs4"])
def test_start_undoes_what_a_killed_process_had_half_written(
    path: Path, monkeypatch: pytest.MonkeyPatch, remote: str | None
) -> None:
    killed_while_writing(made(path))
    monkeypatch.setattr(database, "network_filesystem", lambda _: remote)
    opened = Database.open(path, allow_network_fs=True)
    try:
        assert rows_of(opened) == [(1,)]
    finally:
        opened.close()


def test_reading_a_stopped_file_undoes_what_a_killed_process_had_half_written(path: Path) -> None:
    killed_while_writing(made(path))
    opened = Database.open_read_only(path)
    try:
        assert rows_of(opened) == [(1,)]
        assert integrity.problems(opened) == []
    finally:
        opened.close()


@pytest.mark.parametrize("steps", range(1, 5))
def test_start_goes_on_after_a_first_start_that_was_killed(path: Path, steps: int) -> None:
    """Killed at the first page, which has a rollback journal: there is no log yet."""
    live = path.with_name("live")
    connection = apsw.Connection(str(live))
    connection.execute("PRAGMA page_size = 4096; PRAGMA auto_vacuum = INCREMENTAL; BEGIN")
    connection.execute(f"PRAGMA application_id = {0x6F707371}")
    if steps > 1:
        connection.cache_flush()
    if steps > 2:
        connection.execute("COMMIT")
    if steps > 3:
        connection.execute("PRAGMA journal_mode = WAL")
    for end in ("", "-journal", "-wal", "-shm"):
        if (left := live.with_name(f"live{end}")).exists():
            shutil.copy(left, path.with_name(f"{path.name}{end}"))
    connection.close()
    opened = Database.open(path)
    try:
        assert integrity.problems(opened) == []
    finally:
        opened.close()


@pytest.mark.parametrize("open_it", [Database.open, Database.open_read_only])
def test_file_with_several_names_is_refused_until_it_is_a_copy(
    path: Path, open_it: Callable[[Path], Database], runtime_dir: Path
) -> None:
    original = runtime_dir / "the original"
    original.mkdir()
    copied = runtime_dir / "a copy"
    subprocess.run(["cp", "-al", made(original / path.name).parent, copied], check=True)
    for folder in (original, copied):
        with pytest.raises(InputUnreadable, match="2 names") as caught:
            open_it(folder / path.name)
    hint = caught.value.hint
    subprocess.run(hint[hint.index("cp ") :], shell=True, check=True)
    both = [open_it(folder / path.name) for folder in (original, copied)]  # at the same time: the locks are two, too
    for one in both:
        one.close()


def test_lock_is_taken_although_there_is_no_room_for_the_name_of_its_holder(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> int:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "pwrite", full)
    Database.open(path).close()


def test_missing_file_is_not_made_by_reading(path: Path) -> None:
    with pytest.raises(InputUnreadable, match="no database"):
        Database.open_read_only(path)
    assert not path.exists()


# --- plans ---


@pytest.mark.parametrize(
    "sql",
    [
        *(
            walk_sql(order, probes, absent)
            for order in (OLDEST_FIRST, NEWEST_FIRST, CUSTOM_PRIORITY, RANDOM)
            for probes in (0, 1, 3)
            for absent in (0, 1)
        ),
        backlog.SUPPLY_SQL,
    ],
)
def test_walks_and_supplies_stream_and_never_scan_or_sort(opened: Database, sql: str) -> None:
    plan = explain.plan(opened.reader, sql)
    assert plan
    for line in plan:
        assert not line.detail.startswith(("SCAN", "USE TEMP B-TREE", "MATERIALIZE")), plan


def test_log_that_starts_over_under_who_copies_it_is_known_to_be_cut(opened: Database) -> None:
    fill(opened, 100)
    assert opened.log.restart()
    assert not opened.log.was_cut
    opened.log.is_read_along = True
    fill(opened, 200)
    with opened.snapshot() as connection:
        assert value(connection, "SELECT count(*) FROM meta WHERE key LIKE 'fill %'") == 200
        fill(opened, 300)
        assert not opened.log.restart()
        assert not opened.log.was_cut
    assert opened.log.restart()
    assert opened.log.was_cut

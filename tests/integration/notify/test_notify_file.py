"""A notifier whose file cannot be used says why, and keeps what it had."""

from __future__ import annotations

from pathlib import Path

import apsw
import pytest

from daemons import settings_of
from opsq.cli.notify_file import claimed, deliveries
from opsq.errors import (
    AlreadyRunning,
    Conflict,
    DatabaseDamaged,
    InputUnreadable,
    OpsqError,
    Refused,
    StorageFull,
    VersionMismatch,
)
from opsq.store.deliveries import Deliveries


@pytest.mark.parametrize(
    ("raised", "wanted", "said"),
    [
        (apsw.FullError, StorageFull, "There is no room for .*no delivery is lost"),
        (apsw.BusyError, Conflict, "Another program keeps .* locked"),
        (apsw.ReadOnlyError, InputUnreadable, "cannot be opened for writing"),
        (apsw.CantOpenError, InputUnreadable, "cannot be opened for writing"),
        (apsw.CorruptError, DatabaseDamaged, "is damaged"),
        (apsw.NotADBError, DatabaseDamaged, "is damaged"),
        (apsw.IOError, Refused, "Cannot read or write"),
    ],
)
@pytest.mark.parametrize("while_opening", [False, True])
def test_what_sqlite_refuses_is_said_in_words(
    runtime_dir: Path,
    monkeypatch: pytest.MonkeyPatch,
    raised: type[apsw.Error],
    wanted: type[OpsqError],
    said: str,
    while_opening: bool,
) -> None:
    settings = settings_of(runtime_dir)

    def fail(*_: object) -> None:
        raise raised("so it is")

    if while_opening:
        monkeypatch.setattr(Deliveries, "_migrate", fail)
    with pytest.raises(OpsqError, match=said) as refused, deliveries(settings):
        fail()
    assert type(refused.value) is wanted


def test_file_that_may_not_be_written_is_not_a_bug(runtime_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    settings = settings_of(runtime_dir)
    with deliveries(settings):
        pass
    connect = apsw.Connection
    monkeypatch.setattr(apsw, "Connection", lambda path: connect(path, flags=apsw.SQLITE_OPEN_READONLY))
    with pytest.raises(InputUnreadable, match="cannot be opened for writing"), deliveries(settings) as file:
        file.drop(None)


def test_only_one_process_delivers(runtime_dir: Path) -> None:
    settings = settings_of(runtime_dir)
    with claimed(settings), pytest.raises(AlreadyRunning), claimed(settings):
        pass
    with claimed(settings):
        pass


def test_file_of_a_newer_notifier_is_refused_and_left_as_it_is(tmp_path: Path) -> None:
    path = tmp_path / "notify.sqlite"
    Deliveries(path).close()
    newer = apsw.Connection(str(path))
    newer.pragma("user_version", 99)
    newer.close()
    with pytest.raises(VersionMismatch, match="written by a newer opsq"):
        Deliveries(path)
    newer = apsw.Connection(str(path))
    assert newer.pragma("user_version") == 99
    newer.close()

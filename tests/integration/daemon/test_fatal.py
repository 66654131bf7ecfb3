"""When nothing may be answered any more: the daemon's file was taken away or replaced under it."""

from __future__ import annotations

import os
import shutil
import sqlite3
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from daemons import connected, log_with, running
from opsq.daemon import lifecycle
from opsq.settings import Settings
from opsq.wire.messages import NewSubmission, Reserve, Reserved, Submit, Submitted
from waiting import wait_until


@pytest.fixture
def settings(runtime_dir: Path) -> Iterator[Settings]:
    with running(runtime_dir / "state") as found:
        yield found


def removed(settings: Settings) -> None:
    os.unlink(settings.database_path)


def replaced(settings: Settings) -> None:
    """A restore over the running daemon: another file at the path."""
    shutil.copy(settings.database_path, settings.database_path + ".new")
    os.replace(settings.database_path + ".new", settings.database_path)


def taken_over(settings: Settings) -> None:
    """Another owner has written its token into the file."""
    with sqlite3.connect(settings.database_path) as database:
        database.execute("UPDATE owner SET token = randomblob(16)")
    database.close()


@pytest.mark.parametrize("change", [removed, replaced, taken_over])
def test_daemon_that_lost_its_file_acknowledges_nothing_and_ends(
    settings: Settings, change: Callable[[Settings], None]
) -> None:
    """Neither a submit nor what could be reserved is answered; the log says why."""
    with connected(settings) as client:
        assert isinstance(client.ask(Submit(2, [NewSubmission(os.urandom(16), 1)])), Submitted)
        change(settings)
        client.send(Submit(3, [NewSubmission(os.urandom(16), 1)]))
        assert client.receive() is None
    wait_until(lambda: not lifecycle.is_locked(settings.lock_path))
    log_with(settings, "the daemon exits at once")


def test_daemon_whose_file_was_taken_over_hands_nothing_out(settings: Settings) -> None:
    with connected(settings) as client:
        assert isinstance(client.ask(Submit(2, [NewSubmission(os.urandom(16), 100)])), Submitted)
        assert isinstance(client.ask(Reserve(3, 1, "OldestFirst")), Reserved)
        taken_over(settings)
        client.send(Reserve(4, 1, "OldestFirst"))
        assert client.receive() is None
    wait_until(lambda: not lifecycle.is_locked(settings.lock_path))

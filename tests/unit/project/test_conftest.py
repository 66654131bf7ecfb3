"""The ground that all tests stand on: a clean environment, short directories, and waiting with a deadline."""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest

from waiting import wait_until


def test_runtime_dir_leaves_room_for_a_socket_path(runtime_dir: Path):
    """Linux allows 107 bytes for a socket path and macOS 103."""
    assert len(os.fsencode(runtime_dir / ".local" / "state" / "opsq" / "opsq.sock")) < 80
    assert runtime_dir.stat().st_mode & 0o777 == 0o700


def test_home_is_empty_and_apart_from_the_runtime_dir(home: Path, runtime_dir: Path):
    """No default state folder can be shared between tests."""
    assert Path.home() == home != runtime_dir
    assert list(home.iterdir()) == []


def test_foreign_variables_are_absent():
    """Nothing of the machine that runs the tests shines through."""
    assert [name for name in os.environ if re.match("OPSQ_|XDG_|AWS_|LISTEN_|NOTIFY_SOCKET", name)] == []


def test_wait_until_returns_what_the_condition_returned():
    """The first true outcome ends the wait and is handed on."""
    outcomes = iter([None, 0, "ready"])
    assert wait_until(lambda: next(outcomes)) == "ready"


def test_wait_until_fails_by_name_after_its_deadline():
    """A condition that never holds fails the test and is named."""
    with pytest.raises(AssertionError, match=r"not so after 0 s: the daemon answers"):
        wait_until(lambda: False, deadline_s=0, what="the daemon answers")

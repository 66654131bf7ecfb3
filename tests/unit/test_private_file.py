"""Small private files change as a whole, one process at a time."""

from __future__ import annotations

import os
import stat
import threading
from pathlib import Path

import pytest

from opsq.errors import InputUnreadable
from opsq.private_file import changing


def test_content_is_replaced_with_a_private_mode_and_nothing_is_left_beside_it(tmp_path: Path) -> None:
    path = tmp_path / "file"
    with changing(str(path)) as replace:
        replace(b"one")
    with changing(str(path)) as replace:
        replace(b"two")
    assert path.read_bytes() == b"two"
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert os.listdir(tmp_path) == ["file"]


def test_what_raises_changes_nothing_and_gives_the_lock_back(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"old")
    with pytest.raises(ValueError, match="no"), changing(str(path)):
        raise ValueError("no")
    assert path.read_bytes() == b"old"
    with changing(str(path)) as replace:
        replace(b"new")
    assert path.read_bytes() == b"new"


def test_changes_of_several_are_made_one_after_the_other(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"0")

    def add() -> None:
        for _ in range(20):
            with changing(str(path)) as replace:
                replace(b"%d" % (int(path.read_bytes()) + 1))

    threads = [threading.Thread(target=add) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert path.read_bytes() == b"80"


def test_folder_that_is_not_there_is_an_error_with_the_path(tmp_path: Path) -> None:
    path = str(tmp_path / "nowhere" / "file")
    with pytest.raises(InputUnreadable, match=r"Cannot write .*nowhere/file: No such file"), changing(path):
        raise AssertionError("there is no folder to lock")

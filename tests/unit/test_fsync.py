"""Syncing on systems whose fsync stops at the cache of the drive, and on file systems that cannot do more."""

from __future__ import annotations

import errno
import fcntl
import os
from pathlib import Path

import pytest

from opsq.fsync import sync_descriptor, sync_path

_FULL_SYNC = 51  # F_FULLFSYNC of macOS


class _Calls(list[str]):
    """What was synced by which call."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, full_sync_errno: int = 0) -> None:
        super().__init__()

        def full_sync(descriptor: int, command: int) -> int:
            assert command == _FULL_SYNC
            os.fstat(descriptor)
            if full_sync_errno:
                raise OSError(full_sync_errno, os.strerror(full_sync_errno))
            self.append("full")
            return 0

        monkeypatch.setattr(fcntl, "F_FULLFSYNC", _FULL_SYNC, raising=False)
        monkeypatch.setattr(fcntl, "fcntl", full_sync)
        monkeypatch.setattr(os, "fsync", lambda descriptor: self.append("fsync"))
        monkeypatch.delattr(os, "fdatasync", raising=False)  # macOS has none


@pytest.fixture
def descriptor(tmp_path: Path):
    found = os.open(tmp_path / "file", os.O_RDWR | os.O_CREAT)
    yield found
    os.close(found)


def test_cache_of_the_drive_is_flushed_for_bytes_and_names(
    monkeypatch: pytest.MonkeyPatch, descriptor: int, tmp_path: Path
):
    calls = _Calls(monkeypatch)
    sync_descriptor(descriptor)
    sync_path(str(tmp_path))
    assert calls == ["full", "full"]


@pytest.mark.parametrize("number", [errno.ENOTSUP, errno.ENOTTY, errno.EINVAL])
def test_file_system_that_cannot_flush_a_drive_is_synced(
    monkeypatch: pytest.MonkeyPatch, descriptor: int, tmp_path: Path, number: int
):
    calls = _Calls(monkeypatch, number)
    sync_descriptor(descriptor)
    sync_path(str(tmp_path))
    assert calls == ["fsync", "fsync"]


def test_failure_to_flush_is_an_error(monkeypatch: pytest.MonkeyPatch, descriptor: int, tmp_path: Path):
    _Calls(monkeypatch, errno.EIO)
    with pytest.raises(OSError, match="Input/output"):
        sync_descriptor(descriptor)
    with pytest.raises(OSError, match="Input/output"):
        sync_path(str(tmp_path))

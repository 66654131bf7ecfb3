"""A run of Litestream that the system does not let begin; others are in the tests of the daemon."""

from __future__ import annotations

import tempfile
from pathlib import Path

import pytest

from opsq.errors import StoreNotVisible
from opsq.replica import litestream_process
from opsq.replica.litestream_process import LitestreamProcess


def test_start_that_the_system_refuses_is_told_and_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    temporary = tmp_path / "temporary"
    temporary.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(temporary))
    monkeypatch.setattr(litestream_process, "find_litestream", lambda: str(tmp_path))
    (tmp_path / "litestream").touch()  # where its folder should be
    with pytest.raises(StoreNotVisible, match="cannot be started"):
        LitestreamProcess(str(tmp_path), "/db", "file:///replica", 1)
    assert not list(temporary.iterdir())

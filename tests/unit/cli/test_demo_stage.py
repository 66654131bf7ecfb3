"""Where demonstrations leave their files for a while."""

from __future__ import annotations

import tempfile
from pathlib import Path

import pytest

from opsq.cli.caller import Caller
from opsq.cli.demo_stage import Speech, private_folder


def test_folder_of_a_demonstration_is_where_tmpdir_says(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr(tempfile, "tempdir", None)
    with private_folder(Speech(Caller({"quiet": True}, frozenset())), is_kept=False) as folder:
        assert folder.parent == tmp_path
    assert list(tmp_path.iterdir()) == []

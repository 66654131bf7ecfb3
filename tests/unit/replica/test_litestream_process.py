"""What a run of Litestream leaves behind; a program that only waits stands for it."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Iterator
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


@pytest.fixture
def process(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[LitestreamProcess]:
    program = tmp_path / "program"
    program.write_text("#!/bin/sh\nexec sleep 60\n")
    program.chmod(0o700)
    monkeypatch.setattr(litestream_process, "find_litestream", lambda: str(program))
    found = LitestreamProcess(str(tmp_path), "/db", "file:///replica", 1)
    yield found
    found.end()


def test_log_does_not_grow_without_end(process: LitestreamProcess, tmp_path: Path) -> None:
    log = tmp_path / "litestream/litestream.log"
    log.write_text("said\n" * 300_000)
    with pytest.raises(StoreNotVisible, match="not answer"):
        process.copy_now(0.0)
    assert process.silences_count == 1
    assert log.stat().st_size == 0
    assert log.with_suffix(".log.1").stat().st_size == 1_500_000


def test_signed_urls_are_not_repeated(process: LitestreamProcess, tmp_path: Path) -> None:
    said = {"msg": "sync failed", "error": "PUT https://host/key?X-Amz-Signature=sesame: 403"}
    (tmp_path / "litestream/litestream.log").write_text(json.dumps(said))
    assert process.last_words() == "sync failed: PUT https://host/key 403."

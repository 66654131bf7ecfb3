"""What takes room in a state folder: logs that are large are named with their sizes, links are not."""

from __future__ import annotations

from pathlib import Path

import pytest

from opsq.errors import StorageFull
from opsq.filesystem import Space
from opsq.store import disk_use
from opsq.store.disk_use import FileSizes, logs, old_logs, others, without_database

LARGE = bytes(64 << 10)


def test_logs_that_are_large_are_named_and_their_sizes_are_what_they_take(tmp_path: Path) -> None:
    for name in ("opsq.log", "opsq.log.1", "audit.jsonl.1", "opsq.sqlite.v3-1.bak", "opsq.sqlite", "mine"):
        (tmp_path / name).write_bytes(LARGE)
    (tmp_path / "audit.jsonl").write_bytes(b"small")
    assert logs(tmp_path) == {"logs": "opsq.log", "logs_bytes": len(LARGE), "folder": str(tmp_path)}
    found = old_logs(tmp_path)
    assert set(str(found["old_logs"]).split()) == {"opsq.log.1", "audit.jsonl.1", "opsq.sqlite.v3-1.bak"}
    assert found["old_logs_bytes"] == 3 * len(LARGE)


def test_log_that_is_a_link_is_not_named(tmp_path: Path) -> None:
    (tmp_path / "mine").write_bytes(LARGE)
    (tmp_path / "opsq.log").symlink_to(tmp_path / "mine")
    assert logs(tmp_path) == {}


def test_files_of_others_are_named_if_they_are_most_of_what_is_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(disk_use, "space", lambda _: Space(10_000, 1_000))
    assert others(1_000, tmp_path) == {"used_bytes": 9_000, "others_bytes": 8_000}
    assert others(5_000, tmp_path) == {}
    monkeypatch.setattr(disk_use, "space", lambda _: Space(100_000, 1_000))
    assert others(60_000, tmp_path) == {}
    assert others(60_000, tmp_path, is_last_hope=True)["others_bytes"] == 39_000
    monkeypatch.setattr(disk_use, "space", lambda _: None)
    assert others(0, tmp_path) == {}


def test_sizes_are_cut_where_there_are_too_many_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "folder").mkdir()
    for number in range(5):
        (tmp_path / "folder" / str(number)).write_bytes(LARGE)
    sizes = FileSizes()
    assert sizes.below(str(tmp_path)) == 5 * len(LARGE)
    assert not sizes.is_cut
    monkeypatch.setattr(disk_use, "_FILES_LIMIT", 3)
    sizes = FileSizes()
    assert sizes.below(str(tmp_path)) < 5 * len(LARGE)
    assert sizes.is_cut


def test_start_that_has_no_room_says_what_would_make_some(tmp_path: Path) -> None:
    folder = tmp_path / "with space"
    folder.mkdir()
    (folder / "opsq.log").write_bytes(LARGE)
    (folder / "opsq.log.1").write_bytes(LARGE)
    full = StorageFull(cause="no_room_to_start", path="opsq.sqlite", left="0 bytes free")
    full.details.update(without_database(folder))
    assert full.message == "There is no room for opsq.sqlite, with 0 bytes free."
    assert f"`cd '{folder}' && rm opsq.log.1` frees about 64.0 KiB of old logs and copies." in full.hint
    assert f"`cd '{folder}' && tee opsq.log < /dev/null` empties logs of about 64.0 KiB." in full.hint

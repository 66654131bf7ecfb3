"""The file of the audit: what is appended is read again, whatever stood at its end, and it has a largest size."""

from __future__ import annotations

from pathlib import Path

from opsq.daemon.audit_file import FILE_BYTES, Act, acts, append


def act(what: str) -> Act:
    return Act(1, "user ada", "uid 1000", "cli-1", "Pause", what)


def test_line_that_was_cut_spoils_only_itself(tmp_path: Path) -> None:
    path = str(tmp_path / "audit.jsonl")
    append(path, [act("a"), act("b")])
    with open(path, "r+b") as file:
        file.truncate(file.seek(0, 2) - 5)
    append(path, [act("c")])
    assert acts(path) == [act("a"), act("c")]


def test_full_file_is_kept_once_and_begun_again(tmp_path: Path) -> None:
    path = str(tmp_path / "audit.jsonl")
    for name in ("a", "b"):
        append(path, [act(name)])
        with open(path, "ab") as file:
            file.write(b"\n" * FILE_BYTES)
        append(path, [act(name * 2)])
    append(path, [act("c")])
    assert acts(path) == [act("b"), act("bb"), act("c")]
    assert sorted(each.name for each in tmp_path.iterdir()) == ["audit.jsonl", "audit.jsonl.1"]

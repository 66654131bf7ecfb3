"""opsq examples: the files of examples/, as they are, from wherever opsq was installed."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from acceptance.conftest import Opsq
from opsq.cli import shipped_examples
from opsq.errors import InputUnreadable

EXAMPLES = Path(__file__).parents[2] / "examples"
FILES = {
    path.relative_to(EXAMPLES).as_posix(): path.read_bytes()
    for path in EXAMPLES.rglob("*")
    if path.is_file() and "__pycache__" not in path.parts
}


def test_list_names_each_with_what_it_says_of_itself(opsq: Opsq):
    found = dict(line.split("\t") for line in opsq.ok("examples").lines)
    assert set(found) == set(FILES)
    assert found["nightly.sh"].startswith("A cron job: processes the files in a folder")
    assert found["fan_out.sh"].endswith("the files below a folder, with their sizes")
    assert found["launchd/org.opsq.daemon.plist"].endswith("started at login, and again when it fails")
    assert all(len(about.split()) > 3 for about in found.values())


def test_example_is_printed_as_it_is(opsq: Opsq):
    assert opsq.ok("examples", "spark/features.py").out == FILES["spark/features.py"]
    [shape] = opsq.ok("examples", "spark/features.py", "--json").json["examples"]
    assert shape["text"].encode() == FILES["spark/features.py"]


def test_folder_is_listed(opsq: Opsq):
    names = [line.partition("\t")[0] for line in opsq.ok("examples", "systemd/").lines]
    assert names == sorted(name for name in FILES if name.startswith("systemd/"))


def test_copies_can_be_run_and_overwrite_nothing(opsq: Opsq):
    copied = opsq.ok("examples", "--output", "here").lines
    assert {path.removeprefix("here/"): (opsq.folder / path).read_bytes() for path in copied} == FILES
    assert os.access(opsq.folder / "here/run.sh", os.X_OK)
    (opsq.folder / "here/run.sh").write_text("mine")
    again = opsq("examples", "run.sh", "-o", "here")
    assert (again.status, (opsq.folder / "here/run.sh").read_text()) == (5, "mine")
    (opsq.folder / "here/run.sh").unlink()
    [shape] = opsq.ok("examples", "run.sh", "-o", "here", "--json").json["examples"]
    assert shape["path"] == "here/run.sh"


def test_unknown_example_is_exit_3_and_a_file_for_a_folder_exit_2(opsq: Opsq):
    assert opsq("examples", "system").status == 3
    opsq.file("file", b"")
    assert opsq("examples", "run.sh", "-o", "file").status == 2


def test_names_are_offered_for_completion_without_a_daemon(opsq: Opsq):
    assert opsq.ok("completion", "examples").lines == opsq.ok("examples").lines


def test_package_without_them_says_where_they_were_looked_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(shipped_examples, "files", lambda name: tmp_path / "lib/src/opsq")
    with pytest.raises(InputUnreadable, match="not installed") as refused:
        shipped_examples.folder()
    assert str(tmp_path) in refused.value.hint

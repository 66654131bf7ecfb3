"""Files that are read again: once for each change, and until that was read."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from opsq.daemon import access_tokens, tokens_file
from opsq.daemon.access_tokens import AccessTokens
from opsq.daemon.reread_files import RereadFiles
from opsq.errors import InputUnreadable, NotPermitted
from opsq.settings import load


class Place:
    """A file, and whether it can be read."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.failure = ""
        self.reads_count = 0
        self.write("first")
        self.files = RereadFiles("the words", [str(path), ""], self.read)

    def write(self, text: str) -> None:
        new = self.path.with_suffix(".new")
        new.write_text(text)
        os.replace(new, self.path)

    def read(self) -> str:
        self.reads_count += 1
        if self.failure:
            raise InputUnreadable(self.failure)
        return self.path.read_text()


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return Place(tmp_path / "file")


def test_change_is_read_once(place: Place) -> None:
    assert not place.files.refresh()
    place.write("second")
    assert place.files.refresh()
    assert not place.files.refresh()
    assert (place.files.found, place.reads_count) == ("second", 2)


def test_change_that_could_not_be_read_once_is_read_later(place: Place, caplog: pytest.LogCaptureFixture) -> None:
    """The reason is logged once, or again for another change."""
    place.write("second")
    place.failure = "Too many open files in system."
    assert not place.files.refresh()
    assert not place.files.refresh()
    assert place.files.found == "first"
    assert caplog.text.count("the words were not reloaded; the previous ones stay in force: Too many open files") == 1
    place.write("third")
    assert not place.files.refresh()
    assert caplog.text.count("Too many open files") == 2
    place.failure = ""
    assert place.files.refresh()
    assert not place.files.refresh()
    assert place.files.found == "third"


def test_token_is_revoked_although_the_file_could_not_be_read_at_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = load({"state_dir": str(tmp_path)})
    token = tokens_file.create(settings.tokens_file, "etl", frozenset(("producer",)))
    tokens = AccessTokens(settings)
    tokens_file.revoke(settings.tokens_file, "etl")

    def refuse(path: str) -> str:
        raise InputUnreadable(f"{path} cannot be read: Too many open files in system.")

    with monkeypatch.context() as patch:
        patch.setattr(access_tokens, "read_private", refuse)
        assert tokens.find(token).name == "etl"
    with pytest.raises(NotPermitted, match="missing or wrong"):
        tokens.find(token)

"""What is said when an input changes while a round reads it as a stream."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from opsq.cli.run.feed import Feeder
from opsq.content import segments
from opsq.content.content_writer import ContentWriter
from opsq.content.local_store import LocalStore
from opsq.content.manifest import Content
from opsq.content.splitter import Splitting
from opsq.errors import ContentChanged

LINES = b"".join(b"%d\r\n" % number for number in range(1_000_000))


class FakeRound:
    """As much of a round as takes segments; `change` is called after the first."""

    chunk_limit_bytes = 1 << 26

    def __init__(self, folder: Path, change: Callable[[], object]) -> None:
        self._store = LocalStore(folder)
        self._change = change
        self.parts: list[tuple[int, bool]] = []

    def open_writer(self) -> ContentWriter:
        return ContentWriter(self._store, os.urandom(16).hex())

    def check_room(self, producer: Any, content: Content) -> None:
        """There is always room."""

    def submit(self, producer: Any, content: Content, part: int, *, is_last: bool) -> int:
        if not self.parts:
            self._change()
        self.parts.append((part, is_last))
        return part


def feed(path: Path, change: Callable[[], object], monkeypatch: pytest.MonkeyPatch) -> tuple[FakeRound, list[str]]:
    """Feed a file in segments of 1 MiB."""
    monkeypatch.setattr(segments, "FIRST_BYTES", 1 << 20)
    monkeypatch.setattr(segments, "LARGEST_BYTES", 1 << 20)
    path.write_bytes(LINES)
    round_: Any = FakeRound(path.parent / "store", change)
    said: list[str] = []
    feeder = Feeder(
        round_, Any, [str(path)], Splitting(strips_crlf=True), lambda _: None, said.append, jobs=1, is_bounded=False
    )
    try:
        feeder.feed()
    finally:
        assert all(not is_last for _, is_last in round_.parts[:-1])
        os.close(feeder._wake_read)
        os.close(feeder._wake_write)
    return round_, [text for text in said if text]


def test_streamed_file_that_loses_bytes_ends_the_round(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "in"
    with pytest.raises(ContentChanged, match=f"{path} was cut from {len(LINES)} to 100 bytes"):
        feed(path, lambda: os.truncate(path, 100), monkeypatch)


def test_streamed_file_that_is_replaced_is_remarked_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path, new = tmp_path / "in", tmp_path / "new"
    new.write_bytes(b"x\n")
    round_, said = feed(path, lambda: os.replace(new, path), monkeypatch)
    assert round_.parts[-1] == (len(round_.parts) - 1, True)
    assert said == [f"{path} was replaced or removed while it was read: the old file is used."]


def test_streamed_file_that_stays_needs_no_word(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert feed(tmp_path / "in", lambda: None, monkeypatch)[1] == []

"""Descriptors of files that many threads read at once."""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from opsq.content import file_io
from opsq.content.file_io import FileReader

THREADS, FILES, ROUNDS = 6, 9, 3000


@pytest.fixture
def busy_threads() -> Iterator[None]:
    """Threads that give way after every few instructions."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(before)


def test_threads_share_descriptors_while_others_are_forgotten(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, busy_threads: None
) -> None:
    """The cache is smaller than the files, so that each read changes it for all others."""
    monkeypatch.setattr(file_io, "DESCRIPTORS_LIMIT", 4)
    for number in range(FILES):
        (tmp_path / str(number)).write_text(str(number))
    reader = FileReader()
    wrong: list[object] = []
    together = threading.Barrier(THREADS)

    def read(first: int) -> None:
        together.wait()
        try:
            for turn in range(first, first + ROUNDS):
                name = str(turn % FILES)
                found = reader.read(str(tmp_path / name), 0, 1)
                if found != name.encode():
                    wrong.append((name, found))
                if turn % 3 == 0:
                    reader.forget(str(tmp_path))
        except Exception as error:  # noqa: BLE001  # raised below, by the thread that counts
            wrong.append(error)

    threads = [threading.Thread(target=read, args=(number,)) for number in range(THREADS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []
    assert len(reader._open) <= 4
    reader.close()

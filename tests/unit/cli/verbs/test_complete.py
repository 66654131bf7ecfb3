"""Large results of `opsq complete` go into the store: appended to a file, or as one object where there are no files."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from opsq.cli.verbs import complete
from opsq.content.content_store import Store
from opsq.content.file_io import Buffer
from opsq.content.local_store import LocalStore
from opsq.errors import ContentMissing, InputUnreadable, StoreNotVisible
from opsq.ids import Handle, SubmissionId, Token
from opsq.wire.messages import RESULT_INLINE_BYTES

HANDLE = Handle(SubmissionId(1), 0, Token(1, 0, 1, 1))


class Objects(LocalStore):
    """A store that has objects and no paths, like those of clouds."""

    def __init__(self, root: str) -> None:
        super().__init__(root)
        self.objects: dict[str, bytes] = {}

    def path(self, name: str) -> str | None:
        return None

    def mark(self) -> str:
        return Store.mark(self)

    def write_object(self, name: str, content: Buffer, *, is_durable: bool) -> None:
        self.objects[name] = bytes(content)

    def read_range(self, name: str, offset: int, size: int) -> bytes:
        if name not in self.objects:
            raise ContentMissing
        return self.objects[name][offset : offset + size]

    def folders(self) -> Iterator[str]:
        return (name.partition("/")[0] for name in self.objects if "/" in name)


@pytest.fixture(params=[LocalStore, Objects])
def store(request: Any, runtime_dir: Path, monkeypatch: pytest.MonkeyPatch) -> LocalStore:
    """A store that the daemon has marked, and in which the submission has a folder."""
    found: LocalStore = request.param(str(runtime_dir / "content"))
    (runtime_dir / "content").mkdir()
    monkeypatch.setattr(complete, "content_of", lambda daemon, submission_id: (SimpleNamespace(folder="f0"), found))
    return found


def daemon_of(store: LocalStore) -> Any:
    """As much of a connection as is looked at."""
    return SimpleNamespace(welcome=SimpleNamespace(store_marker=store.mark(), is_durable=True))


def test_large_result_is_read_back_from_the_place_that_is_told(store: LocalStore, runtime_dir: Path) -> None:
    result = bytes(range(256)) * 20_000
    (runtime_dir / "result").write_bytes(result)
    name, offset, length = complete._result(daemon_of(store), HANDLE, str(runtime_dir / "result"))  # type: ignore[misc]  # it is large
    assert store.read_range(f"f0/{name}", offset, length) == result


def test_small_result_travels_itself(store: LocalStore, runtime_dir: Path) -> None:
    (runtime_dir / "result").write_bytes(b"x" * RESULT_INLINE_BYTES)
    assert complete._result(daemon_of(store), HANDLE, str(runtime_dir / "result")) == b"x" * RESULT_INLINE_BYTES


def test_result_is_not_written_into_a_store_that_the_daemon_does_not_see(store: LocalStore, runtime_dir: Path) -> None:
    (runtime_dir / "result").write_bytes(b"x" * 5000)
    daemon = daemon_of(store)
    daemon.welcome.store_marker = "another"
    with pytest.raises(StoreNotVisible):
        complete._result(daemon, HANDLE, str(runtime_dir / "result"))
    assert list(store.folders()) == []


def test_folder_as_a_result_is_refused(store: LocalStore, runtime_dir: Path) -> None:
    with pytest.raises(InputUnreadable):
        complete._result(daemon_of(store), HANDLE, str(runtime_dir))

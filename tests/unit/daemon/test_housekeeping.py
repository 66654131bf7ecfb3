"""Background work: an end waits for what runs."""

from __future__ import annotations

import asyncio
import os
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from opsq.content.content_store import SHARED
from opsq.content.local_store import LocalStore
from opsq.daemon.housekeeping import EMPTY_AGES_COUNT, IDLE_S, ORPHAN_AGE_S, Housekeeping
from opsq.store.database import Database

DEADLINE_S = 10.0


class SlowStore:
    """Deletes when it is let."""

    def __init__(self) -> None:
        self.has_begun, self.is_let = threading.Event(), threading.Event()
        self.deleted: list[str] = []

    def delete_folder(self, folder: str) -> None:
        self.has_begun.set()
        self.is_let.wait()
        self.deleted.append(folder)


@pytest.fixture
def database(tmp_path: Path) -> Iterator[Database]:
    database = Database.open(tmp_path / "opsq.sqlite")
    yield database
    database.close()


def keeping(store: Any, database: Any = None, expects: Callable[[bytes], bool] = lambda _: False) -> Housekeeping:
    """The background work on the running loop, of a daemon without submissions."""
    return Housekeeping(database, store, asyncio.get_running_loop(), expects)


def test_stop_waits_for_what_is_being_deleted() -> None:
    async def work(store: Any) -> None:
        housekeeping = keeping(store)
        housekeeping.delete_content(["a"])
        stopped = asyncio.create_task(housekeeping.stop())
        for _ in range(10):
            await asyncio.sleep(0)
        has_waited = not stopped.done()
        store.is_let.set()
        assert has_waited
        await stopped
        assert store.deleted == ["a"]

    asyncio.run(work(SlowStore()))


def test_deletions_that_hang_keep_no_other_work_from_threads(caplog: pytest.LogCaptureFixture) -> None:
    """Copies of the log, backups and checks have theirs, however many submissions were removed."""

    async def work(store: Any) -> None:
        loop = asyncio.get_running_loop()
        housekeeping = keeping(store)
        folders = [f"{number:032x}" for number in range(40)]
        try:
            for folder in folders:
                housekeeping.delete_content([folder])
                await asyncio.sleep(0)
            assert await asyncio.wait_for(loop.run_in_executor(None, lambda: "done"), DEADLINE_S) == "done"
            assert store.deleted == []
        finally:
            store.is_let.set()
        await housekeeping.stop()
        assert sorted(store.deleted) == folders

    asyncio.run(work(SlowStore()))
    assert caplog.text == ""


def test_content_that_cannot_be_deleted_is_logged_and_the_next_goes(caplog: pytest.LogCaptureFixture) -> None:
    class Refusing(SlowStore):
        def delete_folder(self, folder: str) -> None:
            if folder == "a":
                raise PermissionError(13, "Permission denied")
            super().delete_folder(folder)

    async def work(store: Any) -> None:
        store.is_let.set()
        housekeeping = keeping(store)
        housekeeping.delete_content(["a", "b"])
        await housekeeping.stop()
        assert store.deleted == ["b"]

    asyncio.run(work(Refusing()))
    assert "cannot delete content folder a, will retry later" in caplog.text


def test_no_second_vacuum_begins_beside_one_that_runs() -> None:
    is_let = threading.Event()
    begun: list[int] = []

    def vacuum(pages_count: int) -> None:
        begun.append(pages_count)
        is_let.wait()

    async def work() -> None:
        database: Any = SimpleNamespace(vacuum=vacuum, free_bytes=lambda: 1 << 30, file_bytes=lambda: 1 << 30)
        housekeeping = keeping(SlowStore(), database)
        for _ in range(2):
            housekeeping.tick(IDLE_S)
            await asyncio.sleep(0)
        is_let.set()
        await housekeeping.stop()
        housekeeping.tick(IDLE_S)
        await housekeeping.stop()

    asyncio.run(work())
    assert len(begun) == 2, "one, and the next when that was over"


def test_store_of_several_daemons_is_not_swept(tmp_path: Path, database: Database) -> None:
    """What is of no submission here may be of one elsewhere."""
    store = LocalStore(tmp_path)
    for _ in range(2):
        store.create_folder(os.urandom(16).hex())

    async def sweep() -> int:
        return await keeping(store, database).sweep(-1e6 * EMPTY_AGES_COUNT)

    store.share()
    assert store.is_shared()
    assert asyncio.run(sweep()) == 0
    store.delete_object(SHARED)
    assert asyncio.run(sweep()) == 2


class OldStore(SlowStore):
    """Has old folders with content, all of one queue."""

    def __init__(self, folders_count: int) -> None:
        super().__init__()
        self.names = [f"{number:032x}" for number in range(folders_count)]

    def claim(self, owner: str) -> None:
        """It is known whose it is."""

    def is_shared(self) -> bool:
        return False

    def folders(self) -> list[str]:
        return self.names

    def modified_at(self, folder: str) -> float:
        return time.time() - 2 * ORPHAN_AGE_S

    def objects(self, folder: str) -> list[str]:
        return ["part-0"]


def test_others_have_their_turn_while_a_sweep_looks_for_many_submissions(database: Database) -> None:
    turns_count = 0
    looks: Counter[int] = Counter()

    def expects(request_key: bytes) -> bool:
        looks[turns_count] += 1
        return True

    async def take_turns() -> None:
        nonlocal turns_count
        while True:
            turns_count += 1
            await asyncio.sleep(0)

    async def work() -> int:
        others = asyncio.create_task(take_turns())
        deleted_count = await keeping(OldStore(5000), database, expects).sweep()
        others.cancel()
        return deleted_count

    assert asyncio.run(work()) == 0
    assert looks.total() == 5000
    assert max(looks.values()) <= 200


def test_content_whose_submission_comes_while_a_sweep_deletes_stays(database: Database) -> None:
    expected: set[str] = set()

    async def work() -> list[str]:
        store = OldStore(3)
        sweeping = asyncio.create_task(keeping(store, database, lambda key: key.hex() in expected).sweep())
        assert await asyncio.to_thread(store.has_begun.wait, DEADLINE_S)
        expected.add(store.names[1])
        store.is_let.set()
        assert await sweeping == 2
        return [name for name in store.names if name not in store.deleted]

    assert asyncio.run(work()) == list(expected)

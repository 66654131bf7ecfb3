"""Background work: an end waits for what runs."""

from __future__ import annotations

import asyncio
import os
import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from opsq.content.content_store import SHARED
from opsq.content.local_store import LocalStore
from opsq.daemon.housekeeping import EMPTY_AGES_COUNT, IDLE_S, Housekeeping
from opsq.store.database import Database

DEADLINE_S = 10.0


class SlowStore:
    """Deletes when it is let."""

    def __init__(self) -> None:
        self.is_let = threading.Event()
        self.deleted: list[str] = []

    def delete_folder(self, folder: str) -> None:
        self.is_let.wait()
        self.deleted.append(folder)


def test_stop_waits_for_what_is_being_deleted() -> None:
    async def work(store: Any) -> None:
        housekeeping = Housekeeping(None, store, asyncio.get_running_loop())  # type: ignore[arg-type]  # not looked at
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
        housekeeping = Housekeeping(None, store, loop)  # type: ignore[arg-type]  # not looked at
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
        housekeeping = Housekeeping(None, store, asyncio.get_running_loop())  # type: ignore[arg-type]  # not looked at
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
        housekeeping = Housekeeping(database, SlowStore(), asyncio.get_running_loop())  # type: ignore[arg-type]
        for _ in range(2):
            housekeeping.tick(IDLE_S)
            await asyncio.sleep(0)
        is_let.set()
        await housekeeping.stop()
        housekeeping.tick(IDLE_S)
        await housekeeping.stop()

    asyncio.run(work())
    assert len(begun) == 2, "one, and the next when that was over"


def test_store_of_several_daemons_is_not_swept(tmp_path: Path) -> None:
    """What is of no submission here may be of one elsewhere."""
    store = LocalStore(tmp_path)
    for _ in range(2):
        store.create_folder(os.urandom(16).hex())
    database = Database.open(tmp_path / "opsq.sqlite")

    async def sweep() -> int:
        return await Housekeeping(database, store, asyncio.get_running_loop()).sweep(-1e6 * EMPTY_AGES_COUNT)

    store.share()
    assert store.is_shared()
    assert asyncio.run(sweep()) == 0
    store.delete_object(SHARED)
    assert asyncio.run(sweep()) == 2
    database.close()

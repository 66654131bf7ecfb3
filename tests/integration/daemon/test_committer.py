"""The committer with a real file: its log stays short whatever else is going on in threads."""

from __future__ import annotations

import asyncio
import os
import threading
from pathlib import Path
from typing import Any

import pytest

from opsq.clock import now
from opsq.daemon import committer as committer_module
from opsq.daemon.committer import Committer
from opsq.store import meta
from opsq.store.database import Database

BATCH_BYTES = 1 << 20
BATCHES_COUNT = 64
BUSY_COUNT = 40
"""More than there are threads for work of all kinds."""


class Writing:
    """In place of the engine: each batch is a large row."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self.has_more = False

    def has_batch(self, now: Any) -> bool:
        return self.has_more

    def begin_batch(self, now: Any) -> bool:
        self.has_more = False
        self._database.begin()
        meta.put(self._database.writer, "row", os.urandom(BATCH_BYTES))
        return True

    def end_batch(self, error: Exception | None, now: Any) -> None:
        if error is not None:
            raise error


def test_log_is_copied_while_all_other_work_in_threads_hangs(tmp_path: Path) -> None:
    """The threads of backups, checks and content are all taken, and the log starts over all the same."""
    database = Database.open(tmp_path / "opsq.sqlite", is_durable=False)
    is_let = threading.Event()

    async def longest_log() -> int:
        loop = asyncio.get_running_loop()
        engine, committed = Writing(database), asyncio.Event()
        committer = Committer(database, engine, loop, committed.set, pytest.fail)  # type: ignore[arg-type]
        longest_bytes = 0
        try:
            for _ in range(BUSY_COUNT):
                loop.run_in_executor(None, is_let.wait)
            for _ in range(BATCHES_COUNT):
                committed.clear()
                engine.has_more = True
                while engine.has_more or committer.is_busy:
                    committer.kick(now())
                    await committed.wait()
                    committed.clear()
                await asyncio.sleep(0.01)  # a copy is not behind for long
                longest_bytes = max(longest_bytes, database.log.bytes)
        finally:
            is_let.set()
            committer.stop()
        return longest_bytes

    try:
        assert asyncio.run(longest_log()) < 2 * database.log.restart_bytes
    finally:
        database.close()


def test_what_follows_from_a_lone_request_leaves_the_event_loop_to_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A request that takes many batches has the event loop wait for the first of them, however fast commits are."""
    monkeypatch.setattr(committer_module, "_QUICK_S", 60.0)
    database = Database.open(tmp_path / "opsq.sqlite", is_durable=False)

    class Following(Writing):
        """A request whose batches follow one from the other."""

        left = 5

        def end_batch(self, error: Exception | None, now: Any) -> None:
            super().end_batch(error, now)
            self.left -= 1
            self.has_more = self.left > 0

    async def left_at_first() -> int:
        engine, committed = Following(database), asyncio.Event()
        loop = asyncio.get_running_loop()
        committer = Committer(database, engine, loop, committed.set, pytest.fail)  # type: ignore[arg-type]
        try:
            engine.has_more = True
            committer.kick(now(), is_lone=True)
            left = engine.left
            while engine.has_more or committer.is_busy:
                await committed.wait()
                committed.clear()
                committer.kick(now())
        finally:
            committer.stop()
        return left

    try:
        assert asyncio.run(left_at_first()) == 4
    finally:
        database.close()

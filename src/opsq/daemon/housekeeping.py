"""Background work: deletes the content of removed submissions, sweeps orphaned content, vacuums the database when idle.

This file must not delay the event loop: everything that touches files runs in a thread. What asks the store has
threads of its own, since a store may keep them for ever.
"""

from __future__ import annotations

import asyncio
import logging
import re
import time
from collections import deque
from collections.abc import Callable, Coroutine
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from opsq.content.content_store import Store
from opsq.errors import OpsqError
from opsq.store import moved, shard
from opsq.store.database import Database

ORPHAN_AGE_S = 24 * 3600.0
"""Orphaned content is kept for this long after its last write: its submission may still be on the way."""

EMPTY_AGES_COUNT = 30
"""An empty folder is kept this many times as long: it costs nothing, and Spark may work for days before it writes."""

SWEEP_FIRST_S = 60.0
SWEEP_EVERY_S = 6 * 3600.0
IDLE_S = 10.0
_STORE_THREADS_COUNT = 4
_LOOKS_COUNT = 200
"""After so many looks for a submission, a few milliseconds, others have their turn."""

_VACUUM_PAGES = 1024
_VACUUM_LEAST_BYTES = 4 << 20
_FOLDER = re.compile(r"[0-9a-f]{32}")

_Found = TypeVar("_Found")

_log = logging.getLogger("opsq.housekeeping")


class Housekeeping:
    """The background work of one daemon; all methods are called on its event loop.

    Args:
        expects: whether this request key has made a submission, or may be about to; see `Engine.expects`.
    """

    def __init__(
        self,
        database: Database,
        store: Store,
        loop: asyncio.AbstractEventLoop,
        expects: Callable[[bytes], bool],
    ) -> None:
        self._database = database
        self._store = store
        self._loop = loop
        self._expects = expects
        self._store_threads = ThreadPoolExecutor(_STORE_THREADS_COUNT, "opsq-store")
        self._removed: deque[str] = deque()
        self._deletes_count = 0
        self._tasks: set[asyncio.Task[None]] = set()
        self._sweep_at = time.monotonic() + SWEEP_FIRST_S
        self._is_sweeping = False
        self._is_vacuuming = False

    def delete_content(self, folders: list[str]) -> None:
        """Delete the content of removed submissions, a few at once and the others after them."""
        self._removed.extend(folders)
        for _ in range(min(_STORE_THREADS_COUNT - self._deletes_count, len(self._removed))):
            self._deletes_count += 1
            self._start(self._delete_removed())

    def tick(self, idle_s: float) -> None:
        """Start what is due; `idle_s` is the time since the last commit."""
        now_s = time.monotonic()
        if now_s >= self._sweep_at and not self._is_sweeping:
            self._is_sweeping = True
            self._sweep_at = now_s + SWEEP_EVERY_S
            self._start(self._sweep())
        if idle_s >= IDLE_S and not self._is_vacuuming and self._has_much_free():
            self._is_vacuuming = True
            self._start(self._vacuum())

    async def stop(self) -> None:
        """Wait a few seconds for running work; the next sweep finds whatever is left."""
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=5)

    async def sweep(self, oldest_s: float = ORPHAN_AGE_S) -> int:
        """Delete orphaned content folders that were last written more than `oldest_s` seconds ago.

        Empty ones are kept longer (`EMPTY_AGES_COUNT`). Returns the count of those deleted.
        """
        reader = self._database.reader
        if not await self._in_store_thread(self._is_ours, moved.identity(reader).hex()):
            if shard.number(reader) is None:
                _log.warning(
                    "content that no submission names stays in %s, which another queue has used too: "
                    "see `store` in opsq.toml(5)",
                    self._store.url,
                )
            return 0
        names = await self._in_store_thread(self._old_folders, oldest_s)
        deleted_count = 0
        for count, name in enumerate(names, 1):
            if not self._expects(bytes.fromhex(name)):
                await self._delete(name)
                deleted_count += 1
            if count % _LOOKS_COUNT == 0:
                await asyncio.sleep(0)
        return deleted_count

    def _start(self, work: Coroutine[None, None, None]) -> None:
        task = self._loop.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _sweep(self) -> None:
        try:
            count = await self.sweep()
            if count:
                _log.info("deleted %d orphaned content folders", count)
        except (OpsqError, OSError) as error:
            _log.warning("cannot sweep orphaned content: %s", error)
        finally:
            self._is_sweeping = False

    async def _vacuum(self) -> None:
        try:
            await self._loop.run_in_executor(None, self._database.vacuum, _VACUUM_PAGES)
        except Exception as error:  # noqa: BLE001  # it is retried later
            _log.info("vacuum postponed: %s", error)
        finally:
            self._is_vacuuming = False

    async def _delete_removed(self) -> None:
        try:
            while self._removed:
                await self._delete(self._removed.popleft())
        finally:
            self._deletes_count -= 1

    async def _delete(self, folder: str) -> None:
        try:
            await self._in_store_thread(self._store.delete_folder, folder)
        except (OpsqError, OSError) as error:
            _log.warning("cannot delete content folder %s, will retry later: %s", folder, error)

    def _has_much_free(self) -> bool:
        free_bytes = self._database.free_bytes()
        return free_bytes >= max(_VACUUM_LEAST_BYTES, self._database.file_bytes() // 10)

    def _in_store_thread(self, work: Callable[..., _Found], *args: object) -> asyncio.Future[_Found]:
        return self._loop.run_in_executor(self._store_threads, work, *args)

    def _is_ours(self, owner: str) -> bool:
        """Whether what is not of a submission here cannot be of one elsewhere."""
        self._store.claim(owner)
        return not self._store.is_shared()

    def _old_folders(self, oldest_s: float) -> list[str]:
        """Folders of submissions that were last written more than `oldest_s` seconds ago."""
        now = time.time()
        found = []
        for name in self._store.folders():
            if _FOLDER.fullmatch(name):
                modified_at = self._store.modified_at(name)
                if modified_at is None or modified_at >= now - oldest_s:
                    continue
                if modified_at < now - EMPTY_AGES_COUNT * oldest_s or any(self._store.objects(name)):
                    found.append(name)
        return found

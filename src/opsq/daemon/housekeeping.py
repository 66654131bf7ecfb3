"""Work that is nobody's request: deleting the content of removed submissions, sweeping content that no submission names, vacuum when idle.

This file must not delay the event loop: everything that touches files runs in a thread, one job of a kind at a time.
"""

from __future__ import annotations

import asyncio
import logging
import re
import time
from collections.abc import Coroutine

from opsq.content.content_store import Store
from opsq.errors import OpsqError
from opsq.store import submissions
from opsq.store.database import Database

ORPHAN_AGE_S = 24 * 3600.0
"""Content that no submission names is left alone for this long after its last write: it may still be on its way in."""

SWEEP_FIRST_S = 60.0
SWEEP_EVERY_S = 6 * 3600.0
IDLE_S = 10.0
_VACUUM_PAGES = 1024
_VACUUM_LEAST_BYTES = 4 << 20
_FOLDER = re.compile(r"[0-9a-f]{32}")

_log = logging.getLogger("opsq.upkeep")


class Housekeeping:
    """The background work of one daemon; all methods are called on its event loop."""

    def __init__(self, database: Database, store: Store, loop: asyncio.AbstractEventLoop) -> None:
        self._database = database
        self._store = store
        self._loop = loop
        self._tasks: set[asyncio.Task[None]] = set()
        self._sweep_at = time.monotonic() + SWEEP_FIRST_S
        self._is_sweeping = False
        self._is_vacuuming = False

    def delete_content(self, folders: list[str]) -> None:
        """Delete the content of removed submissions, in a thread."""
        self._start(self._delete(folders))

    def tick(self, idle_s: float) -> None:
        """Do what is due; `idle_s` is for how long nothing was committed."""
        now_s = time.monotonic()
        if now_s >= self._sweep_at and not self._is_sweeping:
            self._is_sweeping = True
            self._sweep_at = now_s + SWEEP_EVERY_S
            self._start(self._sweep())
        if idle_s >= IDLE_S and not self._is_vacuuming and self._has_much_free():
            self._is_vacuuming = True
            self._start(self._vacuum())

    async def stop(self) -> None:
        """Wait for what is under way, a few seconds at most: whatever is left over is found by the next sweep."""
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=5)

    async def sweep(self, oldest_s: float = ORPHAN_AGE_S) -> int:
        """Delete content folders that no submission names and into which nothing was written for `oldest_s` seconds; their count."""
        before = time.time() - oldest_s
        names = await self._loop.run_in_executor(None, self._old_folders, before)
        orphans = [
            name for name in names if submissions.by_request_key(self._database.reader, bytes.fromhex(name)) is None
        ]
        await self._delete(orphans)
        return len(orphans)

    def _start(self, work: Coroutine[None, None, None]) -> None:
        task = self._loop.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _sweep(self) -> None:
        try:
            count = await self.sweep()
            if count:
                _log.info("deleted %d content folders that no submission names", count)
        except (OpsqError, OSError) as error:
            _log.warning("content that no submission names could not be swept: %s", error)
        finally:
            self._is_sweeping = False

    async def _vacuum(self) -> None:
        try:
            await self._loop.run_in_executor(None, self._database.vacuum, _VACUUM_PAGES)
        except Exception as error:  # noqa: BLE001  # it is tried again
            _log.info("vacuum was put off: %s", error)
        finally:
            self._is_vacuuming = False

    async def _delete(self, folders: list[str]) -> None:
        for folder in folders:
            try:
                await self._loop.run_in_executor(None, self._store.delete_folder, folder)
            except (OpsqError, OSError) as error:
                _log.warning("content folder %s could not be deleted, and will be swept later: %s", folder, error)

    def _has_much_free(self) -> bool:
        free_bytes = self._database.free_bytes()
        return free_bytes >= max(_VACUUM_LEAST_BYTES, self._database.file_bytes() // 10)

    def _old_folders(self, before: float) -> list[str]:
        """Folders that look like ours and were last written before that wall instant."""
        found = []
        for name in self._store.folders():
            if _FOLDER.fullmatch(name):
                modified_at = self._store.modified_at(name)
                if modified_at is not None and modified_at < before:
                    found.append(name)
        return found

"""Group commit: batches of rows go to the writer on the event loop, and only their COMMIT runs in a helper thread, never two at once.

This file owns the order of commits and copies of the log (checkpoints); it must not know what the rows mean. While a COMMIT runs,
requests queue in the engine and form the next batch.
"""

from __future__ import annotations

import asyncio
import logging
import queue
import threading
import time
from collections.abc import Callable

from opsq.clock import Now
from opsq.clock import now as read_clocks
from opsq.queue.engine import Engine
from opsq.store.database import PASSIVE_BYTES, RESTART_BYTES, Database

_FULL_LOG_S = 60.0
_RESTART_PAUSE_S = 1.0
"""After a copy of the whole log that a foreign reader prevented: how long until the next try."""

_log = logging.getLogger("opsq.commits")


class Committer:
    """Commits what the engine has, one batch after the other.

    Args:
        on_done: called on the event loop after each batch, when its replies are in the outbox.
        on_fatal: called with an error after which nothing may be answered any more.
    """

    def __init__(
        self,
        database: Database,
        engine: Engine,
        loop: asyncio.AbstractEventLoop,
        on_done: Callable[[], None],
        on_fatal: Callable[[Exception], None],
    ) -> None:
        self._database = database
        self._engine = engine
        self._loop = loop
        self._on_done = on_done
        self._on_fatal = on_fatal
        self._work: queue.SimpleQueue[tuple[Callable[[], None], Callable[[Exception | None], None]] | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._run, name="opsq-commit", daemon=True)
        self._is_busy = False
        self._is_copying = False
        self._copied_bytes = 0
        self._restart_at = 0.0
        self._full_logged_at = -_FULL_LOG_S
        self.commits_count = 0
        self._thread.start()

    @property
    def is_busy(self) -> bool:
        """Whether the helper thread is at work on the writer."""
        return self._is_busy

    def kick(self, now: Now) -> None:
        """Begin the next batch, if there is one and the writer is free."""
        engine = self._engine
        while not self._is_busy and engine.has_batch(now):
            try:
                has_transaction = engine.begin_batch(now)
            except Exception as error:  # noqa: BLE001  # whatever failed, the engine knows whether the batch can be undone
                self._end(error)
                return
            if not has_transaction:
                engine.end_batch(None, now)
                continue
            self._is_busy = True
            self._work.put((self._database.commit, self._end))

    def stop(self) -> None:
        """End the helper thread; nothing may be in flight."""
        self._work.put(None)
        self._thread.join()

    # --- the helper thread --------------------------------------------------------------------------------

    def _run(self) -> None:
        while (item := self._work.get()) is not None:
            work, done = item
            error: Exception | None = None
            try:
                work()
            except Exception as raised:  # noqa: BLE001  # handed to the event loop
                error = raised
            self._loop.call_soon_threadsafe(done, error)

    # --- the event loop -----------------------------------------------------------------------------------

    def _end(self, error: Exception | None) -> None:
        self._is_busy = False
        try:
            self._engine.end_batch(error, read_clocks())
        except Exception as fatal:  # noqa: BLE001  # what happened to the batch cannot be known
            self._on_fatal(fatal)
            return
        if error is None:
            self.commits_count += 1
            self._copy_log()
        else:
            self._tell(error)
        self._on_done()

    def _tell(self, error: Exception) -> None:
        now_s = time.monotonic()
        if now_s - self._full_logged_at >= _FULL_LOG_S:
            self._full_logged_at = now_s
            _log.error("nothing can be written to %s: %s; handing out is paused until there is room", self._database.path, error)

    def _copy_log(self) -> None:
        """Keep the log short: copy it beside the commits, and when it is long, once between two of them."""
        wal_bytes = self._database.wal_bytes
        if wal_bytes < self._copied_bytes:
            self._copied_bytes = 0  # the log began anew
        if self._is_copying:
            return
        if wal_bytes >= RESTART_BYTES and time.monotonic() >= self._restart_at:
            self._is_busy = True
            self._work.put((self._database.checkpoint_restart, self._restarted))
        elif wal_bytes - self._copied_bytes >= PASSIVE_BYTES:
            self._is_copying = True
            self._copied_bytes = wal_bytes
            copying = self._loop.run_in_executor(None, self._database.checkpoint_passive)
            copying.add_done_callback(self._copied)

    def _restarted(self, error: Exception | None) -> None:
        self._is_busy = False
        if error is not None:
            _log.warning("the log of the database could not be copied: %s", error)
        if self._database.wal_bytes >= RESTART_BYTES:
            self._restart_at = time.monotonic() + _RESTART_PAUSE_S
        self._on_done()

    def _copied(self, copying: asyncio.Future[None]) -> None:
        self._is_copying = False
        if not copying.cancelled() and (error := copying.exception()) is not None:
            _log.warning("the log of the database could not be copied: %s", error)

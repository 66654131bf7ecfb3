"""Group commit: rows are written on the event loop, and their COMMIT runs in a helper thread, one at a time.

This file owns the order of commits and copies of the log (checkpoints); it must not know what the rows mean. While a
COMMIT runs, requests queue in the engine and form the next batch.

A round trip to the helper thread costs two wake-ups, about half a COMMIT on a fast disk, and lets the event loop serve
others in the meantime. For a single request, when commits have been fast, there are no others, and the COMMIT runs on
the event loop.
"""

from __future__ import annotations

import asyncio
import logging
import queue
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import apsw

from opsq.clock import Now
from opsq.clock import now as read_clocks
from opsq.queue.chunk_counters import Histogram
from opsq.queue.engine import Engine
from opsq.store.database import Database
from opsq.store.write_ahead_log import LIMIT_BYTES

_FULL_LOG_S = 60.0
_RESTART_STEP_BYTES = 8 << 20
"""After another reader prevented a full checkpoint: by how much the log grows before the next attempt."""

_LAST_BYTES = 2 << 20
"""The log is restarted only when at most this much is left to copy, because it blocks commits."""

_URGENT_BYTES = 96 << 20
"""Then it is copied and restarted in one, however much is left to copy."""

_WAIT_BYTES = 64 << 20
_WAIT_MS, _URGENT_WAIT_MS = 100, 250
_PATIENCE_S = 1.0
"""How long commits wait for readers of a log of so many bytes, and longer near its limit.

They do not wait while it is shorter, nor once a reader has kept it for so long.
"""

_QUICK_S = 0.0005
"""A COMMIT that takes no longer may block the event loop when there is nothing else to do."""

_COMMITS_S = (0.0001, 0.0003, 0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1.0, 3.0)

_log = logging.getLogger("opsq.commits")


class Committer:
    """Commits what the engine has, one batch after the other.

    Args:
        on_done: called on the event loop after each batch, when its replies are in the outbox.
        on_fatal: called with an error after which no reply may be sent.
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
        self._work: queue.SimpleQueue[tuple[Callable[[], None], Callable[[Exception | None], None]] | None] = (
            queue.SimpleQueue()
        )
        self._thread = threading.Thread(target=self._run, name="opsq-commit", daemon=True)
        self._is_busy = False
        self._commit_s = 0.0
        self._copier = ThreadPoolExecutor(1, "opsq-log")
        """Of its own: whatever else takes long in threads must not keep the log from being copied."""
        self._is_copying = False
        self._copied_bytes = 0
        self._restart_from_bytes = 0
        self._full_logged_at = -_FULL_LOG_S
        self.commits_count = 0
        self.durations = Histogram(_COMMITS_S)
        """Of the COMMITs that succeeded."""
        self._thread.start()

    @property
    def is_busy(self) -> bool:
        """Whether the helper thread is using the writer."""
        return self._is_busy

    def kick(self, now: Now, *, is_lone: bool = False) -> None:
        """Start the next batch, if there is one and the writer is free.

        Args:
            is_lone: the batch holds a single request, so the event loop may wait for its COMMIT.
        """
        engine = self._engine
        while not self._is_busy and engine.has_batch(now):
            try:
                has_transaction = engine.begin_batch(now)
            except Exception as error:  # noqa: BLE001  # the engine knows whether the batch can be undone
                self._end(error)
                return
            if not has_transaction:
                engine.end_batch(None, now)
            elif is_lone and self._commit_s < _QUICK_S:
                is_lone = False  # what follows from it leaves the event loop to others
                self._end(_attempt(self._commit))
            else:
                self._is_busy = True
                self._work.put((self._commit, self._committed))

    def stop(self) -> None:
        """Stop the helper threads; no commit may be in flight."""
        self._work.put(None)
        self._thread.join()
        self._copier.shutdown()

    # --- the helper thread --------------------------------------------------------------------------------

    def _run(self) -> None:
        while (item := self._work.get()) is not None:
            work, done = item
            self._loop.call_soon_threadsafe(done, _attempt(work))

    def _commit(self) -> None:
        """COMMIT, and note its duration."""
        started_s = time.monotonic()
        self._database.commit()
        duration_s = time.monotonic() - started_s
        self._commit_s += (duration_s - self._commit_s) / 8
        self.durations.note(duration_s)

    def _restart_log(self) -> None:
        """Copy the whole log so that the next commit restarts it; waits for short readers, not for one that stays."""
        log = self._database.log
        if log.bytes < _WAIT_BYTES or log.kept_s() > _PATIENCE_S:
            log.restart()
        else:
            log.restart(wait_ms=_URGENT_WAIT_MS if log.bytes >= _URGENT_BYTES else _WAIT_MS)

    # --- the event loop -----------------------------------------------------------------------------------

    def _committed(self, error: Exception | None) -> None:
        self._is_busy = False
        self._end(error)
        self._on_done()

    def _end(self, error: Exception | None) -> None:
        try:
            self._engine.end_batch(error, read_clocks())
        except Exception as fatal:  # noqa: BLE001  # what happened to the batch cannot be known
            self._on_fatal(fatal)
            return
        if error is None:
            self.commits_count += 1
            self._copy_log()
        else:
            self._log_failure(error)

    def _note_full(self, error: Exception) -> None:
        self._engine.note_full(read_clocks())
        self._log_failure(error)

    def _log_failure(self, error: Exception) -> None:
        now_s = time.monotonic()
        if now_s - self._full_logged_at >= _FULL_LOG_S:
            self._full_logged_at = now_s
            _log.error(
                "cannot write to %s: %s; no chunks are handed out until there is room",
                self._database.path,
                error,
            )

    def _copy_log(self) -> None:
        """Keep the log short: checkpoint it alongside commits, and when it is long, once between two of them."""
        log = self._database.log
        wal_bytes = log.bytes
        if wal_bytes < self._copied_bytes:
            self._copied_bytes = 0  # the log was restarted
        if self._is_copying or (log.is_read_along and wal_bytes < max(LIMIT_BYTES, self._restart_from_bytes)):
            return
        left_bytes = wal_bytes - self._copied_bytes
        is_long = wal_bytes >= max(log.restart_bytes, self._restart_from_bytes)
        if is_long and (left_bytes <= _LAST_BYTES or wal_bytes >= _URGENT_BYTES):
            self._is_busy = True
            self._work.put((self._restart_log, self._restarted))
        elif is_long or left_bytes >= log.step_bytes:
            self._is_copying = True
            self._copied_bytes = wal_bytes
            copying = self._loop.run_in_executor(self._copier, log.copy)
            copying.add_done_callback(self._copied)

    def _restarted(self, error: Exception | None) -> None:
        self._is_busy = False
        if isinstance(error, apsw.FullError):
            self._note_full(error)
        wal_bytes = self._database.log.bytes
        if wal_bytes >= self._database.log.restart_bytes:
            self._restart_from_bytes = wal_bytes + _RESTART_STEP_BYTES
            _log.info(
                "the write-ahead log is %d MB long: %s", wal_bytes >> 20, error or "another program is reading it"
            )
        else:
            self._restart_from_bytes = 0
        self._on_done()

    def _copied(self, copying: asyncio.Future[None]) -> None:
        self._is_copying = False
        if copying.cancelled() or (error := copying.exception()) is None:
            return
        if isinstance(error, apsw.FullError):
            self._note_full(error)
        else:
            _log.warning("checkpoint failed: %s", error)


def _attempt(work: Callable[[], None]) -> Exception | None:
    """Run `work` and return what it raised."""
    try:
        work()
    except Exception as error:  # noqa: BLE001  # returned to the caller
        return error
    return None

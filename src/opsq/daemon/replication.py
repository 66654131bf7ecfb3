"""Keeps the replica of a running daemon: renews its ownership, has Litestream copy, and holds back what must wait.

It must not know what replies mean, but for which may be said by a daemon that is not sure to be the owner. Litestream
and the marker are waited for in two threads, so that neither waits for the other; old copies are deleted in a third.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import logging
import re
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Literal

from opsq.content.store_kinds import open_store
from opsq.errors import Deposed, OpsqError, StorageFull, StoreNotVisible
from opsq.queue.engine import Peer
from opsq.replica.litestream_process import LitestreamProcess
from opsq.replica.ownership import BEATS_COUNT, Ownership
from opsq.settings import Settings
from opsq.store.write_ahead_log import WriteAheadLog
from opsq.wire.messages import Alive, DaemonState, ReplicaState, Reply

_COPY_S = 30.0
"""How long one copy of what is new may take; the first one is of everything, and is asked for again."""
_LAST_COPY_S = 10.0
_SILENCES_COUNT = 2
"""After so many copies that were not answered Litestream is started again."""
_PAUSE_LEAST_S, _PAUSE_MOST_S = 0.2, 30.0
_ALWAYS_SAID = frozenset({Alive, DaemonState})
"""What acknowledges nothing: connections stay, and people are told why all else waits."""
_FOLDER = re.compile(r"[0-9]{8}-[0-9a-f]{8}")

_log = logging.getLogger("opsq.replica")


class Replication:
    """The replica of one daemon; all methods are called on its event loop.

    Args:
        ownership: as taken at the start.
        log: of the database.
        commits_count: how many commits there were.
        is_full: whether the disk is: then Litestream, which cannot write either, must not keep the log.
        pulse_soon: has the daemon deliver again.
        on_fatal: ends the process without sending another reply.
    """

    def __init__(
        self,
        settings: Settings,
        ownership: Ownership,
        log: WriteAheadLog,
        *,
        commits_count: Callable[[], int],
        is_full: Callable[[], bool],
        pulse_soon: Callable[[], None],
        on_fatal: Callable[[BaseException], None],
    ) -> None:
        self._settings = settings
        self._ownership = ownership
        self._log = log
        self._commits_count = commits_count
        self._is_full = is_full
        self._pulse_soon = pulse_soon
        self._on_fatal = on_fatal
        self._loop = asyncio.get_running_loop()
        self._owner_thread = ThreadPoolExecutor(1, "opsq-owner")
        self._copy_thread = ThreadPoolExecutor(1, "opsq-replica")
        self._cleaner = ThreadPoolExecutor(1, "opsq-cleaner")
        self._litestream: LitestreamProcess | None = None
        self._is_whole = False
        """Whether everything was copied once since Litestream was started: from then on, changes alone are."""
        self._runs_count = 0
        self._error = ""
        self._pause_s = _PAUSE_LEAST_S
        self._kept: list[tuple[Peer, Reply]] = []
        self._after_copy: list[Callable[[], None]] = []
        self._seen_count = -1
        self._changed_s: float | None = None
        """Since when something is not in the copy; None: everything is."""
        self._copied_bytes = 0
        self._changed = asyncio.Event()
        self._urgent = asyncio.Event()
        self._was_owner = True
        """Whether it held the ownership when that was last looked at; each change is logged."""
        self._is_ending = False
        self._tasks: list[asyncio.Task[None]] = []

    def start(self) -> None:
        """Begin to copy, and to renew the ownership."""
        self._changed_s = time.monotonic()
        self._changed.set()
        self._urgent.set()
        self._tasks = [self._loop.create_task(self._renew()), self._loop.create_task(self._copy())]

    async def finish(self) -> None:
        """Copy what is left, for a few seconds at most, and end Litestream; the ownership stays."""
        self._is_ending = True
        copying = self._tasks[1]
        copying.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await copying
        count, log_bytes, actions = self._commits_count(), self._log.bytes, self._take_after_copy()
        await self._loop.run_in_executor(self._copy_thread, self._finish_copy)
        if not self._error:
            self._copied(count, log_bytes, actions)
        self._tasks[0].cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await self._tasks[0]
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_LAST_COPY_S):  # a renewal may be under way
                await self._loop.run_in_executor(self._owner_thread, lambda: None)
        self._owner_thread.shutdown(wait=False)
        self._copy_thread.shutdown()
        self._cleaner.shutdown(wait=False)

    def sayable(self, replies: list[tuple[Peer, Reply]]) -> list[tuple[Peer, Reply]]:
        """What may be said now of these replies and of earlier ones; the rest is kept until it may.

        While it is not sure that this daemon is the owner, it only says how it is.
        """
        self._note_changes()
        if not replies and not self._kept:
            return replies
        replies, self._kept = [*self._kept, *replies], []
        if self._ownership.holds():
            return [each for each in replies if not self._waits(*each)]
        self._note_loss("it could not be renewed in time")
        self._kept = [each for each in replies if type(each[1]) not in _ALWAYS_SAID]
        return [each for each in replies if type(each[1]) in _ALWAYS_SAID]

    def _waits(self, peer: Peer, reply: Reply) -> bool:
        """Whether a reply waits for the next copy from now on."""
        request_id = getattr(reply, "id", None) if peer.awaiting_copy else None
        if request_id not in peer.awaiting_copy:
            return False
        peer.awaiting_copy.discard(request_id)
        self.when_copied(lambda: self._kept.append((peer, reply)))
        self._wake(is_urgent=True)
        return True

    @property
    def is_owner(self) -> bool:
        """Whether nobody else can own the queue now."""
        return self._ownership.holds()

    def when_copied(self, action: Callable[[], None]) -> None:
        """Do this when everything that is committed now is in the copy."""
        self._after_copy.append(action)

    def state(self) -> ReplicaState:
        """How it is."""
        kind: Literal["copying", "running", "down"] = "running" if self._is_whole else "copying"
        return ReplicaState(
            self._settings.replicate_to,
            "down" if self._error else kind,
            self._lag_s(),
            self._ownership.holds(),
            self._ownership.marker.epoch,
            max(self._runs_count - 1, 0),
            self._error,
        )

    # --- the marker ---

    async def _renew(self) -> None:
        while True:
            await asyncio.sleep(self._settings.replicate_lease_s / BEATS_COUNT)
            try:
                renew = functools.partial(self._ownership.renew, lag_s=self._lag_s())
                await self._loop.run_in_executor(self._owner_thread, renew)
            except Deposed as error:
                self._on_fatal(error)
            except OpsqError as error:
                if not self._ownership.holds():
                    self._note_loss(error)
            except Exception as error:  # noqa: BLE001  # a bug here must not leave a daemon that renews nothing
                self._on_fatal(error)
            else:
                if not self._was_owner:
                    self._was_owner = True
                    _log.info("the lease is renewed")
                self._pulse_soon()
            if self._litestream is not None and (self._is_full() or not self._litestream.is_running):
                self._wake(is_urgent=True)

    def _note_loss(self, reason: object) -> None:
        if self._was_owner:
            self._was_owner = False
            _log.error("nothing is acknowledged or handed out until the lease is renewed: %s", reason)

    # --- the copy ---

    def _note_changes(self) -> None:
        count = self._commits_count()
        if count == self._seen_count:
            return
        self._seen_count = count
        if self._changed_s is None:
            self._changed_s = time.monotonic()
        if self._log.bytes < self._copied_bytes:
            self._copied_bytes = 0  # it has started over
        self._wake(is_urgent=self._log.bytes - self._copied_bytes >= self._log.step_bytes)

    def _wake(self, *, is_urgent: bool) -> None:
        self._changed.set()
        if is_urgent:
            self._urgent.set()

    async def _copy(self) -> None:
        while True:
            await self._changed.wait()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(self._settings.replicate_every_s):
                    await self._urgent.wait()
            self._changed.clear()
            self._urgent.clear()
            count, log_bytes, actions = self._commits_count(), self._log.bytes, self._take_after_copy()
            begun_s = time.monotonic()
            try:
                await self._loop.run_in_executor(self._copy_thread, self._copy_once, _COPY_S, bool(actions))
            except asyncio.CancelledError:
                self._after_copy = [*actions, *self._after_copy]
                raise
            except Deposed as error:
                self._on_fatal(error)
            except (OpsqError, OSError) as error:
                self._after_copy = [*actions, *self._after_copy]
                self._note_failure(error)
                await asyncio.sleep(self._pause_s)
                self._pause_s = min(2 * self._pause_s, _PAUSE_MOST_S)
                self._wake(is_urgent=True)
            except Exception as error:  # noqa: BLE001  # a bug here must not leave a daemon that copies nothing
                self._on_fatal(error)
            else:
                if self._error:
                    self._error = ""
                    _log.info("the replica is written again")
                self._pause_s = _PAUSE_LEAST_S
                self._copied(count, log_bytes, actions, begun_s)

    def _copied(
        self, count: int, log_bytes: int, actions: list[Callable[[], None]], begun_s: float | None = None
    ) -> None:
        self._changed_s = None if self._commits_count() == count else begun_s
        self._copied_bytes = min(log_bytes, self._log.bytes)
        for action in actions:
            action()
        self._pulse_soon()

    def _take_after_copy(self) -> list[Callable[[], None]]:
        actions, self._after_copy = self._after_copy, []
        return actions

    def _note_failure(self, error: OpsqError | OSError) -> None:
        text = error.message if isinstance(error, OpsqError) else f"{error}."
        if text != self._error:
            _log.error("the replica is not written: %s", error)
        self._error = text

    def _lag_s(self) -> float:
        return 0.0 if self._changed_s is None else time.monotonic() - self._changed_s

    # --- in the thread of the copy ---

    def _copy_once(self, timeout_s: float, is_awaited: bool) -> None:
        """Copy everything; if something waits for that, make sure that the copy still is the queue's."""
        if self._is_full():
            self._end()
            raise StorageFull("The disk is full: Litestream was ended, and is started again when there is room.")
        litestream = self._litestream
        if litestream is None or not litestream.is_running or self._log.was_cut or self._hangs(litestream):
            litestream = self._start()
        litestream.copy_now(timeout_s)
        if self._log.was_cut:
            raise StoreNotVisible("The write-ahead log was started over before Litestream had copied it.")
        if not self._is_whole:
            self._owner_thread.submit(self._ownership.renew, folder=litestream.folder).result()
            self._is_whole = True
            self._cleaner.submit(self._delete, self._older_copies(litestream.folder))
        elif is_awaited:  # a machine that was paused whole may not know yet how late it is
            self._owner_thread.submit(self._ownership.renew).result()

    def _hangs(self, litestream: LitestreamProcess) -> bool:
        """Whether it is to be ended; a first copy may keep it silent for long."""
        return self._is_whole and litestream.silences_count >= _SILENCES_COUNT

    def _start(self) -> LitestreamProcess:
        if self._litestream is not None:
            if self._hangs(self._litestream):
                _log.error("Litestream does not answer, and is started again")
            elif self._litestream.is_running:
                _log.error("Litestream may have missed a part of the write-ahead log, and is started again")
            else:
                _log.error("Litestream has ended: %s", self._litestream.last_words())
        self._end()
        settings = self._settings
        self._log.was_cut = False
        self._log.is_read_along = True  # before it reads, so that no cut goes unseen
        try:
            self._litestream = LitestreamProcess(
                settings.state_dir, settings.database_path, settings.replicate_to, self._ownership.marker.epoch
            )
        except OpsqError:
            self._log.is_read_along = False
            raise
        self._runs_count += 1
        where = f"{settings.replicate_to}/{self._litestream.folder}"
        _log.info("Litestream copies to %s as process %d", where, self._litestream.pid)
        return self._litestream

    def _older_copies(self, folder: str) -> list[str]:
        """The copies that this one replaces; those of a later owner are not ours to delete."""
        epoch = self._ownership.marker.epoch
        try:
            found = [name for name in open_store(self._settings.replicate_to).folders() if _FOLDER.fullmatch(name)]
        except (OpsqError, OSError) as error:
            _log.warning("cannot list old copies, will retry later: %s", error)
            return []
        return [name for name in found if name != folder and int(name[:8]) <= epoch]

    def _delete(self, names: list[str]) -> None:
        """Delete old copies; beside new ones, since that may take long."""
        try:
            store = open_store(self._settings.replicate_to)
            for name in names:
                if self._is_ending or not self._ownership.holds():
                    return
                store.delete_folder(name)
        except (OpsqError, OSError) as error:
            _log.warning("cannot delete old copies, will retry later: %s", error)

    def _finish_copy(self) -> None:
        try:
            self._copy_once(_LAST_COPY_S, is_awaited=True)  # the marker is to say that nothing lags behind
            self._error = ""
        except (OpsqError, OSError) as error:
            self._error = str(error)
            _log.error("the replica lacks what came last: %s", error)
        finally:
            self._end()

    def _end(self) -> None:
        if self._litestream is not None:
            self._litestream.end()
        self._litestream = None
        self._is_whole = self._log.is_read_along = False

"""The write-ahead log of a database: its length, copying it into the file, and its room when the disk is full.

Owns when a copy must wait or fails; must not know what is written, nor begin a transaction.

SQLite's own checkpoints are off: a PASSIVE one never resets a log that is written all the time (1.6 GB in 11 s were
measured). A second connection copies at `step_bytes`; at `restart_bytes` the committer, between two commits and with no
statement open, finishes the copy itself, so that the next commit restarts the log. The file is kept, not truncated: a
COMMIT into an existing log costs half of one that extends it.
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import Final

import apsw

from opsq.filesystem import SECTOR_BYTES, space
from opsq.store.ballast import Ballast
from opsq.store.database_file import BUSY_MS, scalar

STEP_BYTES: Final = 4 << 20
"""Small steps: while 16 MB were copied and synced, single commits beside them took up to 85 ms.

With 4 MB up to 35 ms.
"""
LIMIT_BYTES: Final = 128 << 20
_STEPS: Final = 4
"""Of a log that starts over: it is soon as long as it gets, and a COMMIT that need not extend the file is quicker."""
_LEAST_STEP_BYTES: Final = 128 << 10
_PAGE_BYTES: Final = 4096
_FRAME_BYTES: Final = _PAGE_BYTES + 24
_SHRINK_SHARE: Final = 8
_SOME_SHARE: Final = 4
"""The part of the ballast that must be free beside it before everything goes on."""
_SHRINK_LEAST_PAGES: Final = 8


class WriteAheadLog:
    """The log of an open database.

    Args:
        path: of the database file.
        writer: is used between two commits only, by the committing thread.
        checkpointer: a connection of its own, for `copy`.
        ballast: the room that the log is given when the disk is full.
        has_file: False: a network file system, where a rollback journal takes its place, and nothing is copied.
    """

    def __init__(
        self, path: Path, writer: apsw.Connection, checkpointer: apsw.Connection, ballast: Ballast, *, has_file: bool
    ) -> None:
        self._database_path = path
        self._path = path.with_name(f"{path.name}-wal")
        self._writer = writer
        self._checkpointer = checkpointer
        self._ballast = ballast
        self._has_file = has_file
        self._kept_since: float | None = None
        self.bytes = self._file_bytes() // _FRAME_BYTES * _PAGE_BYTES
        """How long it is, in pages; until the first commit, at most so long."""
        self.readers_count = 0
        """Our own that read for long: no stranger is to be blamed for keeping it."""
        self.is_read_along = False
        """Another program reads it while it is written and copies it into the file itself, as for a replica."""
        self.was_cut = False
        """It was started over under that program, which may have missed what was in it."""
        self.step_bytes = min(STEP_BYTES, max(ballast.size_bytes // 2, _LEAST_STEP_BYTES))
        """It is copied in steps of this length; shorter on a small disk, whose ballast is small.

        So what the database file lacks for a copy is at most half of the ballast, but for what comes during one.
        """
        self.restart_bytes = _STEPS * self.step_bytes
        writer.set_wal_hook(self._committed)

    def _committed(self, connection: apsw.Connection, name: str, pages: int) -> int:
        self.bytes = pages * _PAGE_BYTES
        return apsw.SQLITE_OK

    def copy(self) -> None:
        """Copy what can be copied without waiting for anyone (PASSIVE), on a connection of its own: in any thread.

        Raises:
            apsw.FullError: the file cannot grow.
        """
        self._checkpointer.wal_checkpoint(mode=apsw.SQLITE_CHECKPOINT_PASSIVE)

    def restart(self, mode: int = apsw.SQLITE_CHECKPOINT_RESTART, wait_ms: int = 0) -> bool:
        """Copy all of it, so that the next commit starts it over; False: somebody reads it, or copies.

        Only between two commits, with no statement open. Waits at most `wait_ms` for readers: it is tried again.

        Raises:
            apsw.FullError: the file cannot grow.
        """
        self._writer.set_busy_timeout(wait_ms)
        try:
            self._writer.wal_checkpoint(mode=mode)
        except apsw.BusyError:
            is_ours = self.readers_count or (self.is_read_along and self.bytes < LIMIT_BYTES)
            if self.bytes >= self.restart_bytes and self._kept_since is None and not is_ours:
                self._kept_since = time.monotonic()
            return False
        finally:
            self._writer.set_busy_timeout(BUSY_MS)
        self.bytes = 0
        self._kept_since = None
        if self.is_read_along:
            self.was_cut = True
        return True

    def kept_s(self) -> float:
        """For how long a program that reads the database has kept a long log from starting over; 0: none does."""
        if self._kept_since is None or self.bytes < self.restart_bytes:
            self._kept_since = None
            return 0.0
        return time.monotonic() - self._kept_since

    # --- a full disk ---

    def give_up_room(self) -> None:
        """There is no room: copy the log with what the ballast has, and give it half of the rest.

        Once it is copied, its file is room that nobody else can take; the other half is for the next copies. As
        `restart`, only between two commits.
        """
        if not self._has_file:
            self._ballast.drop()
        self._shorten()
        self._keep_spare()

    def regain_room(self) -> bool:
        """Whether there is room for everything again; then the ballast holds its own. As `give_up_room`.

        Beside it there must be some for what comes first: otherwise that would be refused again.
        """
        if self._shorten() and self._ballast.hold() and self._has_some():
            return True
        self._keep_spare()
        return False

    def _has_some(self) -> bool:
        left = space(self._path)
        least_bytes = self._ballast.size_bytes // _SOME_SHARE
        return left is None or left.free_bytes >= least_bytes or not self._has_file

    def _keep_spare(self) -> None:
        if not self._has_file:
            return
        if self.spare_bytes() < self._ballast.size_bytes // 2:
            self._ballast.give_to(self._path, self._used_bytes())
        elif self._ballast.held_bytes() < self._ballast.size_bytes // 2:
            self._ballast.hold_rest()

    def growth_bytes(self) -> int:
        """How much room the file needs to take all of the log.

        A copy for which there was none has left the file with its new length, and holes.
        """
        pages = int(scalar(self._writer, "PRAGMA page_count"))
        found = self._database_path.stat()
        return pages * _PAGE_BYTES - min(found.st_size, found.st_blocks * SECTOR_BYTES)

    def spare_bytes(self) -> int:
        """What can be written into it although the disk is full."""
        return max(self._file_bytes() - self._used_bytes(), 0) if self._has_file else self._ballast.size_bytes

    def is_spent(self) -> bool:
        """Whether on a full disk nothing can be written any more, not even a removal."""
        return self.spare_bytes() < _LEAST_STEP_BYTES

    def room_for_growth_bytes(self, kept_share: int) -> int:
        """What may be written that makes the file longer: the next copy must have room, and leave a share of all."""
        held_bytes = self._ballast.held_bytes() if self._has_file else self._ballast.size_bytes // 2
        return held_bytes - self._ballast.size_bytes // kept_share - (self.bytes if self._has_file else 0)

    def spare_share(self) -> float:
        """The same as a part of what there is right after `give_up_room`; more than 1 if the file was long before."""
        return 2 * self.spare_bytes() / max(self._ballast.size_bytes, 1)

    def shrink(self) -> None:
        """Give some free pages of the database back, within a transaction; the next copy makes the file shorter."""
        pages = max(self.spare_bytes() // (_SHRINK_SHARE * _PAGE_BYTES), _SHRINK_LEAST_PAGES)
        for _ in self._writer.execute(f"PRAGMA incremental_vacuum({pages})"):
            pass

    def _shorten(self) -> bool:
        """Copy the log, in the room of the ballast if need be; False: the database file had no room for it."""
        if not self._has_file or self._copy_all():
            return True
        if self.growth_bytes() > self._ballast.held_bytes():
            return False
        self._ballast.drop()
        return self._copy_all()

    def _copy_all(self) -> bool:
        """Copy the log, and cut it if it is long."""
        is_long = self._file_bytes() > 2 * self._ballast.size_bytes
        try:
            self.restart(apsw.SQLITE_CHECKPOINT_TRUNCATE if is_long else apsw.SQLITE_CHECKPOINT_RESTART)
        except (apsw.FullError, apsw.IOError):
            return False
        return True

    def _used_bytes(self) -> int:
        return self.bytes // _PAGE_BYTES * _FRAME_BYTES + _FRAME_BYTES

    def _file_bytes(self) -> int:
        try:
            return self._path.stat().st_size
        except OSError:
            return 0

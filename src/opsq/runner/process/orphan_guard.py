"""A tiny process beside this one that ends the programs when this one is killed and cannot do it itself (SIGKILL).

It waits for the end of a pipe that only we hold, then kills the groups that stand in a table shared with us. To enter a
group there costs a write to memory. (The kernel's own way, PR_SET_PDEATHSIG, reaches one process, not what it starts.)
This file must not decide when a program ends while this process lives.
"""

from __future__ import annotations

import fcntl
import mmap
import os
from collections.abc import Callable
from contextlib import suppress

from opsq.runner.process.pipes import nameless_file
from opsq.runner.process.spawn import RESTORED_SIGNALS

_WIDTH_BYTES = 12
"""An entry: a minus, the number of a group, blanks to this width."""
_ENTRIES_COUNT = 8192
_BLANK = b" " * _WIDTH_BYTES

_SCRIPT = """
trap '' HUP INT TERM
read -r _ && exit
groups=$(cat <&3)
[ -z "$(echo $groups)" ] || kill -s KILL -- $groups
[ -z "$1" ] || exec rm -rf -- "$1"
"""


class OrphanGuard:
    """Ends the groups that are entered in it when this process dies without `close`, and removes a folder.

    Args:
        table_dir: a folder for the table, which has no name there.
        folder: names what to remove; "": nothing.

    Cost: a shell of 1 MB, started before the first program. Where it cannot be started, programs run unguarded.
    """

    def __init__(self, table_dir: str, folder: Callable[[], str] = str) -> None:
        self._table_dir = table_dir
        self._folder = folder
        self._table: mmap.mmap | None = None
        self._free: list[int] = []
        self._pid = 0
        self._write_fd = -1
        self._is_tried = False

    def begin(self) -> None:
        """Be there from now on; nothing if it is, or cannot be."""
        if not self._is_tried:
            self._is_tried = True
            with suppress(OSError):
                self._begin()

    def enter(self, group_id: int) -> int:
        """Enter a group; returns its place, or -1 if it is not guarded."""
        place = self._free.pop() if self._free else -1
        self.change(place, group_id)
        return place

    def change(self, place: int, group_id: int) -> None:
        """Put another group in that place."""
        if place >= 0 and self._table is not None:
            self._table[place : place + _WIDTH_BYTES] = b"-%-*d" % (_WIDTH_BYTES - 1, group_id)

    def leave(self, place: int) -> None:
        """Take out what is in that place."""
        if place >= 0 and self._table is not None:
            self._table[place : place + _WIDTH_BYTES] = _BLANK
            self._free.append(place)

    def close(self) -> None:
        """Stop guarding; call it when the programs have ended and the folder is gone."""
        if self._table is not None:
            self._table.close()
            self._table = None
            self._free.clear()
            with suppress(BrokenPipeError):  # it was killed
                os.write(self._write_fd, b"\n")
            os.close(self._write_fd)
            os.waitpid(self._pid, 0)

    def _begin(self) -> None:
        made_fd = nameless_file(self._table_dir)
        try:
            # Under a number that is none of the four below.
            table_fd = fcntl.fcntl(made_fd, fcntl.F_DUPFD_CLOEXEC, 10)
        finally:
            os.close(made_fd)
        try:
            # Written, not only made long: memory behind which the disk has no room kills who touches it.
            blanks = _BLANK * _ENTRIES_COUNT
            if os.write(table_fd, blanks) < len(blanks):
                return
            table = mmap.mmap(table_fd, len(blanks))
            os.lseek(table_fd, 0, os.SEEK_SET)
            read_fd, write_fd = os.pipe()
            null_fd = os.open(os.devnull, os.O_RDWR | os.O_CLOEXEC)
            try:
                self._pid = self._spawn((read_fd, null_fd, null_fd, table_fd))
            except OSError:
                table.close()
                os.close(write_fd)
                raise
            finally:
                os.close(read_fd)
                os.close(null_fd)
        finally:
            os.close(table_fd)
        self._table, self._write_fd = table, write_fd
        self._free = [place * _WIDTH_BYTES for place in reversed(range(_ENTRIES_COUNT))]

    def _spawn(self, fds: tuple[int, int, int, int]) -> int:
        return os.posix_spawn(
            "/bin/sh",
            ["opsq-guard", "-c", _SCRIPT, "opsq-guard", self._folder()],
            {"PATH": "/bin:/usr/bin"},
            file_actions=[(os.POSIX_SPAWN_DUP2, fd, number) for number, fd in enumerate(fds)],
            # A signal for our group or from our terminal does not end it before us.
            setpgroup=0,
            setsigmask=(),
            setsigdef=RESTORED_SIGNALS,
        )

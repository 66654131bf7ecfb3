"""The ballast: a file that keeps room on the disk for what frees room, and for the next start.

Owns that file and what becomes of its room; must not know when a disk counts as full.
"""

from __future__ import annotations

import contextlib
import os
from pathlib import Path
from typing import Final

from opsq.filesystem import is_no_room, space
from opsq.users import open_file

BALLAST_BYTES: Final = 8 << 20
"""Half for what the log adds to the database file, half for some dozens of removals, of about 100 kB each."""
BALLAST_SHARE: Final = 10
"""Of a small disk it takes a tenth."""
_PAGE_BYTES: Final = 4096
_LEAST_BYTES: Final = 64 << 10


class Ballast:
    """The ballast at `path`; `size_bytes` long when it is held."""

    def __init__(self, path: Path) -> None:
        self._path = path
        found = space(path.parent)
        share_bytes = BALLAST_BYTES if found is None else found.total_bytes // BALLAST_SHARE
        self.size_bytes = min(BALLAST_BYTES, share_bytes) // _PAGE_BYTES * _PAGE_BYTES

    def hold(self) -> bool:
        """Take the room, or make sure of it. False: the disk has not so much. Cost: a few system calls."""
        try:
            descriptor = open_file(self._path, os.O_RDWR | os.O_CREAT)
            try:
                _allocate(descriptor, 0, self.size_bytes)
            finally:
                os.close(descriptor)
        except OSError as error:
            return not is_no_room(error)  # a file system that cannot have one: then there is none
        return True

    def hold_rest(self) -> None:
        """Take what of the room there is, up to half of it."""
        self.drop()
        left = space(self._path.parent)
        size_bytes = min(self.size_bytes // 2, left.free_bytes if left is not None else 0)
        with contextlib.suppress(OSError):
            descriptor = open_file(self._path, os.O_RDWR | os.O_CREAT)
            try:
                _allocate(descriptor, 0, size_bytes)
            finally:
                os.close(descriptor)

    def held_bytes(self) -> int:
        """How much it holds now."""
        try:
            return min(self._path.stat().st_size, self.size_bytes)
        except OSError:
            return 0

    def make_way(self) -> None:
        """Give the room up if there is not as much beside it: on a full disk what opens the database gets no other.

        Otherwise it stays: to delete it takes some milliseconds.
        """
        left = space(self._path.parent)
        if left is None or left.free_bytes < self.size_bytes or not left.has_inodes:
            self.drop()

    def drop(self) -> None:
        """Free the room for the first writer."""
        with contextlib.suppress(OSError):
            self._path.unlink()

    def give_to(self, path: Path, used_bytes: int) -> None:
        """Make a file longer than what is used of it by half of the room, or by what there is; keep the rest.

        What is used may have no blocks yet, in a file that was cut to nothing. Its half in two system calls: what is
        free on a full disk, others take at once.
        """
        try:
            descriptor = open_file(path, os.O_RDWR)
        except OSError:
            self.drop()
            return
        size_bytes = self.size_bytes // 2
        try:
            self.drop()
            while size_bytes >= _LEAST_BYTES:
                with contextlib.suppress(OSError):
                    _allocate(descriptor, 0, used_bytes + size_bytes)
                    return
                size_bytes //= 2
        finally:
            os.close(descriptor)
            self.hold_rest()


def _allocate(descriptor: int, offset: int, size_bytes: int) -> None:
    """Make sure that there are blocks under a range of a file, which grows to its end."""
    if hasattr(os, "posix_fallocate"):
        os.posix_fallocate(descriptor, offset, size_bytes)
        return
    end = os.fstat(descriptor).st_size  # macOS: what was written has blocks
    while end < offset + size_bytes:
        end += os.pwrite(descriptor, bytes(min(1 << 20, offset + size_bytes - end)), end)

"""What files take on a disk: those of a state folder, its logs, and all others.

Looks at a bounded number of files; must not know what is in them.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from opsq.filesystem import SECTOR_BYTES, space

Details = dict[str, int | float | str]

LEAST_BYTES: Final = 32 << 10
"""To name less than this helps nobody."""
NAMED_LIMIT: Final = 5
_FILES_LIMIT: Final = 4_000
_LOGS: Final = ("opsq.log", "audit.jsonl")
_OLD_LOGS: Final = ("opsq.log.*", "audit.jsonl.*", "opsq.sqlite.v*.bak")
"""What was rotated, and the copies that migrations have made."""


class FileSizes:
    """Adds up what files take, until there are too many."""

    def __init__(self) -> None:
        self._left = _FILES_LIMIT
        self.total_bytes = 0
        """Of all folders so far."""

    @property
    def is_cut(self) -> bool:
        """Whether there were too many."""
        return self._left <= 0

    def below(self, path: str) -> int:
        """What the files of a folder take, and those of the folders in it."""
        size_bytes = 0
        try:
            with os.scandir(path) as entries:
                for entry in entries:
                    self._left -= 1
                    if self.is_cut:
                        break
                    if entry.is_dir(follow_symlinks=False):
                        size_bytes += self.below(entry.path)
                    else:
                        taken_bytes = entry.stat(follow_symlinks=False).st_blocks * SECTOR_BYTES
                        size_bytes += taken_bytes
                        self.total_bytes += taken_bytes
        except OSError:
            return size_bytes
        return size_bytes


def logs(folder: Path) -> Details:
    """The logs that are being written, if they are large."""
    return _largest("logs", folder, _LOGS)


def old_logs(folder: Path) -> Details:
    """The largest of the logs and copies that are done with, if they are large."""
    return _largest("old_logs", folder, _OLD_LOGS)


def others(ours: int, folder: Path, *, is_last_hope: bool = False) -> Details:
    """What is used on the disk and not ours, if that is most of it, or nothing else can make room."""
    left = space(folder)
    if left is None:
        return {}
    used = left.total_bytes - left.free_bytes
    least = LEAST_BYTES if is_last_hope else used // 2
    return {"used_bytes": used, "others_bytes": used - ours} if used - ours > least else {}


def own_bytes(folder: Path) -> int:
    """What database and logs take."""
    return sum(_size(path) for pattern in ("opsq.*", "audit.*") for path in folder.glob(pattern))


def without_database(folder: Path) -> Details:
    """What is known of a state folder whose database cannot be opened."""
    sizes = FileSizes()
    ours = own_bytes(folder) + sizes.below(str(folder / "content"))
    return logs(folder) | old_logs(folder) | ({} if sizes.is_cut else others(ours, folder))


def _largest(name: str, folder: Path, patterns: Sequence[str]) -> Details:
    sizes = [(_size(path), path.name) for pattern in patterns for path in folder.glob(pattern)]
    best = [one for one in sorted(sizes, reverse=True)[:NAMED_LIMIT] if one[0] >= LEAST_BYTES]
    if not best:
        return {}
    names = " ".join(file for _, file in best)
    return {name: names, f"{name}_bytes": sum(size for size, _ in best), "folder": str(folder)}


def _size(path: Path) -> int:
    try:
        return path.lstat().st_blocks * SECTOR_BYTES
    except OSError:
        return 0

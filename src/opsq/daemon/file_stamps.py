"""Whether files were changed or replaced since they were last looked at, so that nobody needs to send a signal.

This file must not read them.
"""

from __future__ import annotations

import os
from collections.abc import Iterable

_Stamp = tuple[int, int, int, int]


class FileStamps:
    """What tells one state of some files from another; begins with that of now. An empty path is no file."""

    def __init__(self, paths: Iterable[str]) -> None:
        self._paths = tuple(paths)
        self._stamps = self._look()

    def have_changed(self) -> bool:
        """Whether they are others than at the last look."""
        before, self._stamps = self._stamps, self._look()
        return before != self._stamps

    def _look(self) -> list[_Stamp | None]:
        return [_stamp(path) for path in self._paths]


def _stamp(path: str) -> _Stamp | None:
    try:
        found = os.stat(path)
    except OSError:
        return None
    return found.st_ino, found.st_size, found.st_mtime_ns, found.st_mode

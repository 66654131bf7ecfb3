"""What files say, read again when they were changed or replaced, so that nobody needs to send a signal.

This file must not know what they mean.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Iterable
from typing import Generic, TypeVar

from opsq.errors import OpsqError

_Found = TypeVar("_Found")
_Stamp = tuple[int, int, int, int]
_log = logging.getLogger(__name__)


class RereadFiles(Generic[_Found]):
    """What was last read of some files; an empty path is no file.

    Args:
        what: what they are, for the log.
        read: reads them; raises `OpsqError` if it cannot.

    Raises:
        OpsqError: as `read` does.
    """

    def __init__(self, what: str, paths: Iterable[str], read: Callable[[], _Found]) -> None:
        self._what = what
        self._paths = tuple(paths)
        self._read = read
        self._stamps = self._look()
        self._failure = ""
        """Why they could not be read at the last try; empty: they could."""
        self.found = read()

    def refresh(self) -> bool:
        """Read them again if one has changed, or could not be read when it had; whether that was done.

        What cannot be read changes nothing, and is logged: a mistake in a file shuts nobody out.
        """
        before, self._stamps = self._stamps, self._look()
        has_changed = before != self._stamps
        if not has_changed and not self._failure:
            return False
        try:
            self.found = self._read()
        except OpsqError as error:
            if has_changed or error.message != self._failure:
                _log.error("%s were not reloaded; the previous ones stay in force: %s", self._what, error)
            self._failure = error.message
            return False
        self._failure = ""
        return True

    def _look(self) -> list[_Stamp | None]:
        return [_stamp(path) for path in self._paths]


def _stamp(path: str) -> _Stamp | None:
    try:
        found = os.stat(path)
    except OSError:
        return None
    return found.st_ino, found.st_size, found.st_mtime_ns, found.st_mode

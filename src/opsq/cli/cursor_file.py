"""A file that holds a cursor: how far a reader of events has come, over any restart.

It must not know what events are.
"""

from __future__ import annotations

import os

from opsq.documents.event_cursor import EventCursor
from opsq.errors import InputUnreadable, UsageError
from opsq.private_file import changing


class CursorFile:
    """Reads a cursor, and replaces it as a whole.

    Raises:
        InputUnreadable: the file is there and cannot be read.
        UsageError: it holds something else.
    """

    def __init__(self, path: str) -> None:
        self._path = os.path.abspath(path)
        self.cursor: EventCursor | None = None
        """None: there is none yet."""
        try:
            with open(self._path, encoding="ascii", errors="replace") as file:
                text = file.read(64).strip()
        except FileNotFoundError:
            return
        except OSError as error:
            raise InputUnreadable(f"Cannot read the cursor in {path}: {error.strerror}.") from error
        self.cursor = EventCursor.parse(text)
        if text and self.cursor is None:
            raise UsageError(f"{path} holds no cursor: {text!r}.", hint="Name a file of its own for the cursor.")

    def keep(self, cursor: EventCursor) -> None:
        """Have the file say so, durably."""
        if cursor != self.cursor:
            with changing(self._path) as replace:
                replace(f"{cursor}\n".encode())
            self.cursor = cursor

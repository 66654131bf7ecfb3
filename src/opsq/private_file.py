"""Changes small private files as a whole: one process at a time, and durably or not at all.

It must not know what is in them.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
from collections.abc import Callable, Iterator

from opsq.errors import InputUnreadable, NotPermitted
from opsq.users import open_file


@contextlib.contextmanager
def changing(path: str) -> Iterator[Callable[[bytes], None]]:
    """Hold the lock of a file's folder; gives what replaces its content, with mode 0600.

    Readers need no lock: they see the old content or the new.

    Raises:
        NotPermitted, InputUnreadable: it cannot be written.
    """

    def replace(content: bytes) -> None:
        temporary = f"{path}.new"
        with open(open_file(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC), "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
        os.fsync(folder)

    try:
        folder = os.open(os.path.dirname(path), os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            fcntl.flock(folder, fcntl.LOCK_EX)
            yield replace
        finally:
            os.close(folder)
    except PermissionError as error:
        raise NotPermitted(f"Cannot write {path}: {error.strerror}.") from error
    except OSError as error:
        raise InputUnreadable(f"Cannot write {path}: {error.strerror}.") from error

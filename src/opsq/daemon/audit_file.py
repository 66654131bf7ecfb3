"""The file of the audit: a line of JSON for each act, kept across restarts, 16 MiB at most.

This file must not know connections, and stays cheap to import: `opsq audit` reads with it while no daemon runs.
"""

from __future__ import annotations

import contextlib
import os

import msgspec

from opsq.content.file_io import write_all
from opsq.fsync import sync_descriptor, sync_path
from opsq.users import open_file

FILE_BYTES = 8 << 20
"""At this size the file becomes `.1`, in place of the one before."""


class Act(msgspec.Struct, frozen=True):
    """What an operator did. `at`: milliseconds since 1970; `who`: a user of this machine or a token."""

    at: int
    who: str
    origin: str
    connection: str
    act: str
    what: str


def append(path: str, added: list[Act]) -> None:
    """Add acts; they are durable on return.

    Raises:
        OSError: some of them may be missing.
    """
    lines = b"".join(msgspec.json.encode(act) + b"\n" for act in added)
    file_fd = open_file(path, os.O_RDWR | os.O_APPEND | os.O_CREAT)
    try:
        size = os.fstat(file_fd).st_size
        is_cut = size > 0 and os.pread(file_fd, 1, size - 1) != b"\n"
        write_all(file_fd, b"\n" + lines if is_cut else lines)
        sync_descriptor(file_fd)
    finally:
        os.close(file_fd)
    is_full = size + len(lines) >= FILE_BYTES
    if is_full:
        os.replace(path, f"{path}.1")
    if is_full or not size:
        sync_path(os.path.dirname(path))


def acts(path: str) -> list[Act]:
    """All acts that are kept, the oldest first; a line that was cut by a crash is left out."""
    found: list[Act] = []
    for name in (f"{path}.1", path):
        with contextlib.suppress(FileNotFoundError), open(name, "rb") as file:
            for line in file:
                with contextlib.suppress(msgspec.MsgspecError, ValueError):
                    found.append(msgspec.json.decode(line, type=Act))
    return found

"""What operators did: a line of JSON for each act in a file of the state folder, which outlives restarts.

This file must not decide who may do what (`wire.roles` does), nor wait for the disk.
"""

from __future__ import annotations

import contextlib
import logging
import os
import pwd
import time

import msgspec

from opsq.users import open_file
from opsq.wire import messages as m

AUDITED: frozenset[type[m.Message]] = frozenset(
    (
        *(m.Pause, m.Resume, m.Limit, m.Unlimit, m.Weight, m.Cancel, m.Remove, m.Requeue, m.Drop),
        *(m.ReleaseConsumer, m.Prune, m.Stop, m.Backup, m.Vacuum, m.Check),
    )
)
"""Requests that change what others get, or the daemon; each is an act, whoever may make it."""

FILE_BYTES = 8 << 20
"""At this size the file becomes `.1`, in place of the one before."""

_WHAT_CHARACTERS = 1000

_log = logging.getLogger(__name__)


class Act(msgspec.Struct, frozen=True):
    """One act. `at`: milliseconds since 1970; `who`: a user of this machine or a token; `origin`: from where."""

    at: int
    who: str
    origin: str
    connection: str
    act: str
    what: str


class Audit:
    """The file, to which the daemon appends."""

    def __init__(self, path: str) -> None:
        self._path = path

    def note(self, who: str, origin: str, connection: str, request: m.Request) -> None:
        """Write down an act that was accepted. Without room for it there still is the line in the log."""
        kind = type(request)
        defaults = dict(zip(reversed(kind.__struct_fields__), reversed(kind.__struct_defaults__), strict=False))
        given = {name: getattr(request, name) for name in kind.__struct_fields__ if name != "id"}
        what = ", ".join(f"{name}={value!r}" for name, value in given.items() if value != defaults.get(name, ...))
        act = Act(time.time_ns() // 1_000_000, who, origin, connection, kind.__name__, what[:_WHAT_CHARACTERS])
        _log.info("%s from %s (%s): %s %s", who, origin, connection, act.act, act.what)
        try:
            file_fd = open_file(self._path, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
            try:
                os.write(file_fd, msgspec.json.encode(act) + b"\n")
                is_full = os.fstat(file_fd).st_size >= FILE_BYTES
            finally:
                os.close(file_fd)
            if is_full:
                os.replace(self._path, f"{self._path}.1")
        except OSError as error:
            _log.error("the audit cannot be written: %s", error)


def acts(path: str) -> list[Act]:
    """All acts that are kept, the oldest first; a line that was cut by a crash is left out."""
    found: list[Act] = []
    for name in (f"{path}.1", path):
        with contextlib.suppress(FileNotFoundError), open(name, "rb") as file:
            for line in file:
                with contextlib.suppress(msgspec.MsgspecError, ValueError):
                    found.append(msgspec.json.decode(line, type=Act))
    return found


def user_name(uid: int | None) -> str:
    """A user of this machine, by name if it has one."""
    if uid is None:
        return "user unknown"
    try:
        return f"user {pwd.getpwuid(uid).pw_name}"
    except KeyError:
        return f"user {uid}"

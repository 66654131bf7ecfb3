"""Start, stop and restart of the daemon as the command line asks for them, from outside its process.

This file must not know what happens inside (`process`, `server`). Whether a daemon runs is decided by the lock beside the database,
never by a pid, which tells nothing after a reboot.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import subprocess
import sys
import time
from typing import NamedTuple

import msgspec

from opsq.daemon.control_connection import ControlConnection
from opsq.errors import (
    AlreadyRunning,
    Bug,
    Conflict,
    InputUnreadable,
    NotPermitted,
    StorageFull,
    TimedOut,
    Unreachable,
    from_code,
)
from opsq.settings import Settings
from opsq.wire.messages import DaemonState, Status, Stop

_ANSWER_S = 10.0
"""How long another process that holds the lock may take until it answers."""


class StartResult(NamedTuple):
    """What `start` found or did: `status` is `started` or `already_running`."""

    status: str
    pid: int
    socket: str


class StopResult(NamedTuple):
    """What `stop` found or did: `status` is `stopped` or `not_running`."""

    status: str


class Ready(msgspec.Struct, frozen=True):
    """What a daemon tells the process that started it: that it serves, or (with a `code`) why not."""

    pid: int = 0
    socket: str = ""
    code: str = ""
    message: str = ""
    hint: str = ""


def start(settings: Settings, *, is_temporary: bool = False) -> StartResult:
    """Start a daemon in the background, and return when it serves; one that runs already is left alone.

    Args:
        is_temporary: it may end as soon as nobody uses it; see `temporary`.

    Effects: a process in a session of its own, without a terminal, that keeps nothing of the caller's open.

    Raises:
        AlreadyRunning: an embedded queue owns the state folder.
        OpsqError: the daemon could not start; the error is its own.
    """
    local = msgspec.structs.replace(settings, address="")
    with contextlib.suppress(Unreachable):
        return _running(local)
    end = time.monotonic() + _ANSWER_S
    while True:
        try:
            return _spawn(local, is_temporary=is_temporary)
        except AlreadyRunning:  # somebody was faster, or just ends
            while is_locked(local.lock_path):
                with contextlib.suppress(Unreachable):
                    return _running(local)
                if time.monotonic() > end:
                    raise
                time.sleep(0.02)


def stop(settings: Settings, drain_s: float | None = None) -> StopResult:
    """Stop the daemon, and return when it has ended and its lock is free.

    Args:
        drain_s: how long it may wait for what is reserved; None takes its setting.

    Raises:
        Conflict: an embedded queue owns the state folder.
        TimedOut: the daemon answered, but did not end.
    """
    try:
        control = ControlConnection(settings)
    except Unreachable:
        if settings.address or not is_locked(settings.lock_path):
            return StopResult("not_running")
        raise Conflict(
            f"{settings.state_dir} is in use, but no daemon answers at {settings.socket}.",
            hint="A program that has opened the queue in its own process must be ended by itself.",
        ) from None
    with control:
        with contextlib.suppress(Unreachable):  # ended before its answer was read
            control.ask(Stop(1, settings.drain_s if drain_s is None else drain_s))
        has_ended = control.wait_closed(_ANSWER_S)
    end = time.monotonic() + _ANSWER_S
    while not settings.address and is_locked(settings.lock_path):
        if time.monotonic() > end:
            has_ended = False
            break
        time.sleep(0.002)
    if not has_ended:
        raise TimedOut(
            f"The daemon of {settings.state_dir} answered, but has not ended.", hint=f"See {settings.log_path}."
        )
    return StopResult("stopped")


def restart(settings: Settings, drain_s: float | None = None) -> StartResult:
    """Stop the daemon if one runs, and start one: what connected consumers hold is kept for them as leases."""
    stop(msgspec.structs.replace(settings, address=""), drain_s)
    return start(settings)


def make_state_dir(path: str) -> None:
    """Make the state folder if it is not there.

    Raises:
        OpsqError: it cannot be made.
    """
    try:
        os.makedirs(path, 0o700, exist_ok=True)
    except OSError as error:
        text = f"Cannot make the state folder {path}: {error.strerror}."
        hint = "Name another by --state-dir or OPSQ_STATE_DIR."
        if error.errno in {errno.EACCES, errno.EPERM, errno.EROFS}:
            raise NotPermitted(text, hint=hint) from error
        if error.errno in {errno.ENOSPC, errno.EDQUOT}:
            raise StorageFull(text, hint=hint) from error
        raise InputUnreadable(text, hint=hint) from error


def is_locked(lock_path: str) -> bool:
    """Whether some process owns the state folder of this lock.

    Effects: holds the lock, shared, for some microseconds; a daemon that starts in just these is started again by `start`.
    """
    try:
        descriptor = os.open(lock_path, os.O_RDONLY | os.O_CLOEXEC)
    except (FileNotFoundError, NotADirectoryError):
        return False
    except OSError as error:
        raise NotPermitted(f"Cannot look at {lock_path}: {error.strerror}.") from error
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except OSError:
        return True
    finally:
        os.close(descriptor)
    return False


def _running(settings: Settings) -> StartResult:
    with ControlConnection(settings) as control:
        state = control.ask(Status(1), _ANSWER_S)
    return StartResult("already_running", state.pid if isinstance(state, DaemonState) else 0, settings.socket)


def _spawn(settings: Settings, *, is_temporary: bool) -> StartResult:
    environ = {name: value for name, value in os.environ.items() if not name.startswith(("LISTEN_", "NOTIFY_"))}
    command = [sys.executable, "-P", "-m", "opsq.daemon", settings.state_dir, *(["temporary"] if is_temporary else [])]
    child = subprocess.Popen(
        command,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=environ,
        start_new_session=True,
    )
    told, said = child.communicate(msgspec.json.encode(settings))
    try:
        ready = msgspec.json.decode(told, type=Ready)
    except msgspec.DecodeError:
        lines = said.decode(errors="replace").strip().splitlines()
        raise Bug(
            f"The daemon ended while it was starting: {lines[-1] if lines else 'it said nothing'}.",
            hint=f"See {settings.log_path}.",
        ) from None
    if ready.code:
        raise from_code(ready.code, ready.message, ready.hint)
    return StartResult("started", ready.pid, ready.socket)

"""Starts, stops and restarts the daemon from outside its process.

This file must not know what happens inside (`daemon_process`, `server`). Whether a daemon runs is decided by the lock
beside the database, never by a pid, which means nothing after a reboot.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import subprocess
import sys
import time
from typing import NamedTuple

import msgspec

from opsq.client.core.address import address_of
from opsq.client.sync.connection import Connection
from opsq.daemon.control_connection import fetch_state, open_control_connection
from opsq.errors import (
    AlreadyRunning,
    Bug,
    Conflict,
    NotPermitted,
    TimedOut,
    Unreachable,
    from_code,
)
from opsq.settings import Settings
from opsq.wire.messages import Changed, Stop

ANSWER_S = 10.0
"""How long another process that holds the lock may take to answer."""
_RENEWAL_S = 3.0
"""How long a daemon may take to see that the file of its socket is gone, and to make it again."""


class StartResult(NamedTuple):
    """What `start` found or did: `status` is `started` or `already_running`."""

    status: str
    pid: int
    socket: str


class StopResult(NamedTuple):
    """What `stop` found or did: `status` is `stopped` or `not_running`."""

    status: str


class Ready(msgspec.Struct, frozen=True):
    """What a daemon reports to the process that started it: that it is ready, or (with a `code`) why it is not."""

    pid: int = 0
    socket: str = ""
    code: str = ""
    message: str = ""
    hint: str = ""


def start(settings: Settings, *, is_temporary: bool = False) -> StartResult:
    """Start a daemon in the background and return when it is ready; does nothing if one is already running.

    Args:
        is_temporary: it may exit as soon as it is unused; see `temporary_daemon`.

    Effects: a process in a session of its own, without a terminal, that keeps none of the caller's descriptors open.

    Raises:
        AlreadyRunning: an embedded queue owns the state folder.
        OpsqError: the daemon could not start; the error is its own.
    """
    local = msgspec.structs.replace(settings, address="")
    with contextlib.suppress(Unreachable):
        return _running(local)
    end = time.monotonic() + ANSWER_S
    while True:
        try:
            return _spawn(local, is_temporary=is_temporary)
        except AlreadyRunning:  # another process was faster, is shutting down, or has lost its folder
            while is_locked(local.lock_path):
                with contextlib.suppress(Unreachable):
                    return _running(local)
                if time.monotonic() > end:
                    raise
                time.sleep(0.02)
            if time.monotonic() > end:
                raise


def stop(settings: Settings, drain_s: float | None = None) -> StopResult:
    """Stop the daemon and return when it has exited and its lock is free.

    Args:
        drain_s: how long it may wait for reserved chunks; None: its setting.

    Raises:
        Conflict: an embedded queue owns the state folder.
        Unreachable: the settings have an address, and no daemon answers there.
        NotPermitted: the token is wrong, or not an operator's.
        TimedOut: the daemon answered, but did not exit.
    """
    until = time.monotonic() + _RENEWAL_S
    is_remote = not isinstance(address_of(settings), str)
    while True:
        try:
            connection = open_control_connection(settings)
            break
        except Unreachable:
            if is_remote:
                raise
            if not is_locked(settings.lock_path):
                return StopResult("not_running")
            if time.monotonic() > until:
                raise Conflict(
                    f"{settings.state_dir} is in use, but no daemon answers at {settings.socket}.",
                    hint="A program has opened the queue in its own process: stop that program"
                    f" (process {holder_of(settings.lock_path)}).",
                ) from None
        time.sleep(0.05)
    with connection:
        has_exited = _request_stop(connection, settings.drain_s if drain_s is None else drain_s)
    end = time.monotonic() + ANSWER_S
    while not is_remote and is_locked(settings.lock_path):
        if time.monotonic() > end:
            has_exited = False
            break
        time.sleep(0.002)
    if not has_exited:
        raise TimedOut(
            f"The daemon of {settings.state_dir} answered, but has not exited.", hint=f"See {settings.log_path}."
        )
    return StopResult("stopped")


def restart(settings: Settings, drain_s: float | None = None) -> StartResult:
    """Stop the daemon if one is running, and start one: reservations of connected consumers are kept as leases."""
    stop(msgspec.structs.replace(settings, address=""), drain_s)
    return start(settings)


def is_locked(lock_path: str) -> bool:
    """Whether a process owns the state folder of this lock.

    Effects: holds a shared lock for some microseconds; if a daemon fails to start because of that, `start` retries.
    """
    try:
        descriptor = os.open(lock_path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except (FileNotFoundError, NotADirectoryError):
        return False
    except OSError as error:
        raise NotPermitted(f"Cannot read {lock_path}: {error.strerror}.") from error
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except OSError:
        return True
    finally:
        os.close(descriptor)
    return False


def holder_of(lock_path: str) -> str:
    """The process that holds the lock, as it says of itself; for people."""
    with contextlib.suppress(OSError), open(lock_path, encoding="ascii", errors="replace") as file:
        return file.read(32).strip() or "?"
    return "?"


def _request_stop(connection: Connection, drain_s: float) -> bool:
    """Request a stop and wait; whether the daemon has closed the connection."""
    with contextlib.suppress(Unreachable):  # it exited before its answer was read, or hangs
        connection.call(Stop(connection.next_id(), drain_s), Changed)
    end = time.monotonic() + ANSWER_S
    try:
        while (left_s := end - time.monotonic()) > 0:
            connection.receive(left_s)
    except Unreachable:
        return True
    return False


def _running(settings: Settings) -> StartResult:
    return StartResult("already_running", fetch_state(settings, ANSWER_S).pid, settings.socket)


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
    report, errors = child.communicate(msgspec.json.encode(settings))
    try:
        ready = msgspec.json.decode(report, type=Ready)
    except msgspec.DecodeError:
        lines = errors.decode(errors="replace").strip().splitlines()
        raise Bug(
            f"The daemon exited during startup: {lines[-1] if lines else 'without an error message'}.",
            hint=f"See {settings.log_path}.",
        ) from None
    if ready.code:
        raise from_code(ready.code, ready.message, ready.hint)
    return StartResult("started", ready.pid, ready.socket)

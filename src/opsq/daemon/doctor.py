"""Checks the environment of a daemon, with advice for each problem.

This file only inspects: it must not change anything, nor start or stop a daemon.
"""

from __future__ import annotations

import os
import pwd
import resource
import shutil
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import apsw

from opsq.daemon.control_connection import fetch_state
from opsq.daemon.lifecycle import is_locked
from opsq.errors import OpsqError, Unreachable
from opsq.filesystem import network_filesystem
from opsq.settings import Settings, config_paths
from opsq.store.database import Database
from opsq.units import format_duration, format_roughly
from opsq.version import __version__
from opsq.wire.messages import DaemonState

_ROOM_BYTES = 256 << 20
_LINGER_DIR = Path("/var/lib/systemd/linger")
_SYSTEMD_DIR = Path("/run/systemd/system")


class Fact(NamedTuple):
    """The result of one check; `advice` says what to do, and is empty if there is nothing to do."""

    check: str
    is_ok: bool
    detail: str
    advice: str = ""


def examine(settings: Settings) -> list[Fact]:
    """Run every check, most important first.

    Cost: one request to a running daemon; if it is stopped, reads the database file, up to 64 MB of it.
    """
    facts = [Fact("versions", True, f"opsq {__version__}, SQLite {apsw.sqlite_lib_version()}")]
    facts += _files()
    facts += _state_dir(settings)
    facts += _socket(settings)
    facts += _daemon(settings)
    facts += _network(settings)
    facts.append(_descriptors(settings))
    facts += _lingering()
    return facts


def examine_without(error: OpsqError) -> list[Fact]:
    """Run the checks that need no settings, when `error` prevents reading those."""
    facts = [Fact("versions", True, f"opsq {__version__}, SQLite {apsw.sqlite_lib_version()}")]
    facts.append(
        Fact(
            "settings",
            False,
            error.message,
            f"{error.hint} Then run opsq doctor again: the rest depends on it.".lstrip(),
        )
    )
    facts += _lingering()
    return facts


def _files() -> Iterator[Fact]:
    found = [path for path in config_paths() if os.path.exists(path)]
    yield Fact(
        "settings",
        True,
        f"read from {', '.join(found)}" if found else f"no file; searched {', '.join(config_paths())}",
    )


def _state_dir(settings: Settings) -> Iterator[Fact]:
    path = settings.state_dir
    detail = f"{path} ({settings.source('state_dir')})"
    try:
        found = os.stat(path)
    except FileNotFoundError:
        yield Fact("state folder", True, f"{detail}, does not exist yet", "`opsq start` creates it.")
        return
    except OSError as error:
        yield Fact(
            "state folder",
            False,
            f"{detail}: {error.strerror}",
            "Choose another one with --state-dir or OPSQ_STATE_DIR.",
        )
        return
    mode = stat.S_IMODE(found.st_mode)
    if found.st_uid != os.geteuid():
        yield Fact(
            "state folder",
            False,
            f"{detail} belongs to uid {found.st_uid}",
            "Run opsq as that user, or choose another --state-dir.",
        )
    elif mode & 0o077:
        yield Fact(
            "state folder", False, f"{detail} has mode {mode:04o}: other users can read it", f"Run: chmod 700 {path}"
        )
    else:
        yield Fact("state folder", True, detail)
    remote = network_filesystem(Path(path))
    if remote:
        yield Fact(
            "file system",
            settings.allow_network_fs,
            f"{path} is on {remote}",
            "Use a local folder, or set --allow-network-fs.",
        )
    free_bytes = shutil.disk_usage(path).free
    advice = "" if free_bytes >= _ROOM_BYTES else "Free some space: when the disk is full, no chunks are handed out."
    yield Fact("room", not advice, f"{format_roughly(free_bytes)} free", advice)


def _socket(settings: Settings) -> Iterator[Fact]:
    detail = f"{settings.socket} (from {settings.source('socket')})"
    try:
        found = os.stat(settings.socket)
    except OSError:
        yield Fact("socket", True, detail)
        return
    if not stat.S_ISSOCK(found.st_mode):
        yield Fact("socket", False, f"{detail} is not a socket", "Remove it, or choose another path with --socket.")
    else:
        yield Fact("socket", True, f"{detail}, mode {stat.S_IMODE(found.st_mode):04o}, owned by uid {found.st_uid}")


def _daemon(settings: Settings) -> Iterator[Fact]:
    try:
        state = fetch_state(settings, 10.0)
        yield Fact("daemon", True, f"process {state.pid}, opsq {state.server}, {state.state}")
        if state.wal_kept_s:
            yield _long_log(state, settings)
        for consumer in state.consumers:
            if consumer.is_unmatched:
                detail = f"{consumer.consumer} waits with {consumer.waiting_strategy}, but nothing that waits is for it"
                yield Fact("consumer", True, detail, "`opsq explain ID` of a submission that waits says why.")
        return
    except Unreachable as error:
        if settings.address:
            yield Fact(
                "daemon", False, error.message, "Check the address, and that the daemon was started with --listen."
            )
            return
        if is_locked(settings.lock_path):
            yield Fact(
                "daemon",
                False,
                "the state folder is in use, but no daemon answers",
                "Find the process that holds opsq.lock in it, for example with fuser(1).",
            )
            return
        yield Fact("daemon", False, "not running", "Run: opsq start")
    except OpsqError as error:
        yield Fact("daemon", False, error.message, error.hint)
        return
    if os.path.exists(settings.database_path):
        try:
            Database.open_read_only(Path(settings.database_path)).close()
            yield Fact(
                "database", True, f"{settings.database_path}, {format_roughly(os.path.getsize(settings.database_path))}"
            )
        except OpsqError as error:
            yield Fact("database", False, error.message, error.hint)


def _long_log(state: DaemonState, settings: Settings) -> Fact:
    detail = (
        f"the write-ahead log has {format_roughly(state.wal_bytes)}; for {format_duration(int(state.wal_kept_s))} a"
        " program that reads the database has kept it from starting over"
    )
    return Fact("log", False, detail, f"End that program's transaction; to find it: fuser -v {settings.database_path}")


def _network(settings: Settings) -> Iterator[Fact]:
    if settings.listen:
        tls = "with TLS" if settings.tls_cert_file else "without TLS"
        yield Fact("network", True, f"listens on {settings.listen} {tls}; the token is in {settings.token_file}")
    for path in (settings.token_file, settings.client_token_file, settings.tokens_file):
        if os.path.exists(path) and os.stat(path).st_mode & 0o077:
            yield Fact("token", False, f"other users can read {path}", f"Run: chmod 600 {path}")


def _descriptors(settings: Settings) -> Fact:
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    is_enough = hard == resource.RLIM_INFINITY or hard >= settings.connection_limit
    detail = f"{'no limit' if hard == resource.RLIM_INFINITY else hard} for {settings.connection_limit} connections"
    return Fact(
        "descriptors", is_enough, detail, "" if is_enough else "Raise the limit (ulimit -n), or lower connection_limit."
    )


def _lingering() -> Iterator[Fact]:
    """Check lingering: without it, systemd stops the services of a user at logout."""
    if not _SYSTEMD_DIR.exists() or os.geteuid() == 0:
        return
    try:
        user = pwd.getpwuid(os.geteuid()).pw_name
    except KeyError:
        return
    does_linger = (_LINGER_DIR / user).exists()
    advice = "" if does_linger else f"To keep user services running after logout, run: loginctl enable-linger {user}"
    yield Fact("lingering", True, "on" if does_linger else "off: services of this user stop at logout", advice)

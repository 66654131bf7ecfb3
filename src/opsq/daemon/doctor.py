"""Checks the environment of a daemon, with advice for each problem.

This file only inspects: it must not change anything, nor start or stop a daemon.
"""

from __future__ import annotations

import os
import pwd
import resource
from collections.abc import Iterator
from pathlib import Path

import apsw

from opsq.daemon.control_connection import fetch_state, full_disk
from opsq.daemon.daemon_process import policy_of
from opsq.daemon.doctor_access import Fact, network, socket_file, state_folder
from opsq.daemon.lifecycle import is_locked
from opsq.errors import OpsqError, Unreachable
from opsq.filesystem import network_filesystem, space
from opsq.settings import Settings, config_paths
from opsq.store.database import Database
from opsq.units import counted, format_duration, format_roughly
from opsq.version import __version__
from opsq.wire.messages import UNREACHABLE, DaemonState, ReplicaState, ShardState

_LINGER_DIR = Path("/var/lib/systemd/linger")
_LAG_S = 60.0
"""What a replica may lack; the first copy of a large queue takes longer, and says so."""
_SYSTEMD_DIR = Path("/run/systemd/system")


def examine(settings: Settings) -> list[Fact]:
    """Run every check, most important first.

    Cost: one request to a running daemon; if it is stopped, reads the database file, up to 64 MB of it.
    """
    facts = [Fact("versions", True, f"opsq {__version__}, SQLite {apsw.sqlite_lib_version()}")]
    facts += _files()
    facts.append(state_folder(settings))
    facts += _disk(settings)
    facts.append(socket_file(settings))
    try:
        state = fetch_state(settings, 10.0)
    except OpsqError as error:
        facts += _no_daemon(settings, error)
        facts += network(settings, settings.texts())
    else:
        facts += _daemon(settings, state)
        facts += network(settings, {} if settings.address else state.settings)  # files of another machine tell nothing
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


def _disk(settings: Settings) -> Iterator[Fact]:
    path = settings.state_dir
    if not os.path.isdir(path):
        return
    remote = network_filesystem(Path(path))
    if remote:
        yield Fact(
            "file system",
            settings.allow_network_fs,
            f"{path} is on {remote}",
            "Use a local folder, or set --allow-network-fs.",
        )
    found = space(path)
    if found is None:
        return
    floor_bytes = policy_of(settings).floor_bytes(found.total_bytes)
    is_enough = found.has_inodes and found.free_bytes >= floor_bytes
    advice = "" if is_enough else f"Free some: with less than {format_roughly(floor_bytes)} no submission is accepted."
    detail = f"{format_roughly(found.free_bytes)} free" if found.has_inodes else str(found)
    yield Fact("room", is_enough, detail, advice)


def _shard(shard: ShardState) -> Fact:
    name = "shard" if shard.shard is None else f"shard {shard.shard}"
    if shard.state == UNREACHABLE:
        return Fact(name, False, f"{shard.address} does not answer", "Start it, or take it out of the addresses.")
    advice = "Free some space: it accepts no submissions." if shard.state == "full" else ""
    return Fact(name, not advice, f"{shard.address}, opsq {shard.server}, {shard.state}", advice)


def _daemon(settings: Settings, state: DaemonState) -> Iterator[Fact]:
    advice = full_disk(state).hint if state.state == "full" else ""
    if state.shards:
        yield from map(_shard, state.shards)
    else:
        yield Fact("daemon", not advice, f"process {state.pid}, opsq {state.server}, {state.state}", advice)
    if state.wal_kept_s:
        yield _long_log(state, settings)
    if state.replica is not None:
        yield _replica(state.replica)
    for consumer in state.consumers:
        if consumer.is_unmatched:
            detail = f"{consumer.consumer} waits with {consumer.waiting_strategy}, but nothing that waits is for it"
            yield Fact("consumer", True, detail, "`opsq explain ID` of a submission that waits says why.")


def _no_daemon(settings: Settings, error: OpsqError) -> Iterator[Fact]:
    if not isinstance(error, Unreachable):
        yield Fact("daemon", False, error.message, error.hint)
    elif settings.address:
        yield Fact("daemon", False, error.message, "Check the address, and that the daemon was started with --listen.")
    elif is_locked(settings.lock_path):
        yield Fact(
            "daemon",
            False,
            "the state folder is in use, but no daemon answers",
            "Find the process that holds opsq.lock in it, for example with fuser(1).",
        )
    else:
        yield Fact("daemon", False, "not running", "Run: opsq start")
        yield from _database(settings)


def _database(settings: Settings) -> Iterator[Fact]:
    if not os.path.exists(settings.database_path):
        return
    try:
        Database.open_read_only(Path(settings.database_path)).close()
        detail = f"{settings.database_path}, {format_roughly(os.path.getsize(settings.database_path))}"
        yield Fact("database", True, detail)
    except OpsqError as error:
        yield Fact("database", False, error.message, error.hint)


def _long_log(state: DaemonState, settings: Settings) -> Fact:
    detail = (
        f"the write-ahead log has {format_roughly(state.wal_bytes)}; for {format_duration(int(state.wal_kept_s))} a"
        " program that reads the database has kept it from starting over"
    )
    return Fact("log", False, detail, f"End that program's transaction; to find it: fuser {settings.database_path}")


def _replica(replica: ReplicaState) -> Fact:
    detail = f"{replica.url}, {replica.state}, {format_duration(round(replica.lag_s, 1))} behind"
    if not replica.is_owner:
        advice = "The lease ran out, so nothing is acknowledged or handed out. Check the store and the network."
        return Fact("replica", False, detail, advice)
    if replica.error or replica.lag_s > _LAG_S:
        why = f": {replica.error}" if replica.error else ""
        return Fact("replica", False, f"{detail}{why}", "Check the store, its credentials and the log.")
    return Fact("replica", True, detail)


def _descriptors(settings: Settings) -> Fact:
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    is_enough = hard == resource.RLIM_INFINITY or hard >= settings.connection_limit
    detail = (
        f"{'no limit' if hard == resource.RLIM_INFINITY else hard} for "
        f"{counted(settings.connection_limit, 'connection')}"
    )
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

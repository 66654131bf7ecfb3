"""Brings a replicated queue back on another machine: takes it over, and makes a new state folder of its newest copy.

It must not start a daemon, nor touch a folder that has a database.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from opsq.errors import Conflict, DatabaseDamaged, OpsqError, VersionMismatch
from opsq.fsync import sync_path
from opsq.replica.litestream import find_litestream, newest_at, restore_database
from opsq.replica.owner_marker import Marker, OwnerMarker
from opsq.replica.ownership import Ownership
from opsq.store.database import Database
from opsq.store.database_file import lock
from opsq.store.integrity import problems
from opsq.store.state_folder import make_state_dir
from opsq.units import counted

_PATIENCE_S = 10.0
_TRIES_COUNT = 3
_PARTS = ("", "-wal", "-shm", "-journal")
"""A log that was left alone would be taken for one of the new file."""


class Restored(NamedTuple):
    """What was brought back."""

    size_bytes: int
    newest_at: str
    """When the newest change in it was copied, by the clock of the store (ISO 8601); empty: unknown."""
    former: Marker
    is_checked: bool
    """False: an older opsq wrote it, so it can be checked only once a daemon has migrated it."""


def restore(
    url: str, state_dir: str, database_path: str, *, is_forced: bool, on_wait: Callable[[str], None]
) -> Restored:
    """Take over the queue whose replica is at `url`, and write its newest state into a state folder.

    Args:
        state_dir: is made if it does not exist.
        is_forced: do not wait until the owner has surely stopped.
        on_wait: told in words for what it waits.

    Effects: from the moment the marker is taken, the former owner acknowledges nothing any more. If what follows fails,
    the same call goes on from there.

    Raises:
        Conflict: the folder has a database, or the owner is alive.
        UsageError: there is no whole replica at the URL.
        DatabaseDamaged: what was copied is not sound; it is left beside its place.
        OpsqError: the replica cannot be read, or the folder cannot be written.
    """
    find_litestream()
    path = Path(database_path)
    make_state_dir(state_dir)
    lock_fd = lock(path.with_suffix(".lock"))
    try:
        if any(path.with_name(path.name + part).exists() for part in _PARTS):
            raise Conflict(f"{state_dir} has a database already.", hint="Name a new folder: --state-dir DIR.")
        former = Ownership(OwnerMarker(url, _PATIENCE_S), state_dir, 0.0, "").take_over(
            is_forced=is_forced, on_wait=on_wait
        )
        beside = path.with_name(f"{path.name}.restored")
        newest = _fetch(f"{url.rstrip('/')}/{former.folder}", beside, on_wait)
        is_checked = _check(beside)
        beside.rename(path)
        sync_path(state_dir)
    finally:
        os.close(lock_fd)
    return Restored(path.stat().st_size, newest, former, is_checked)


def _fetch(url: str, path: Path, on_wait: Callable[[str], None]) -> str:
    """Write the copy to `path`; returns when its newest change was copied."""
    work = Path(tempfile.mkdtemp(prefix="restore-", dir=path.parent))
    config = work / "litestream.yml"
    try:
        for tries_left in reversed(range(_TRIES_COUNT)):
            path.unlink(missing_ok=True)
            newest = newest_at(url, path, config)
            try:
                restore_database(url, path, config)
                break
            except OpsqError as error:  # the former owner's Litestream may just have tidied up what was being read
                if not tries_left:
                    raise
                on_wait(f"{error.message} Trying again.")
    finally:
        shutil.rmtree(work)
    path.chmod(0o600)
    return newest


def _check(path: Path) -> bool:
    """Whether the copy could be checked, and is sound."""
    try:
        database = Database.open_read_only(path)
    except VersionMismatch:
        return False
    try:
        found = problems(database)
    finally:
        database.close()
    if found:
        raise DatabaseDamaged(
            f"The check of {path} found {counted(len(found), 'problem')}: {found[0]}",
            hint="The file was left there. Restore a backup in its place.",
        )
    return True

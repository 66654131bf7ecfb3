"""The file of `opsq notify` in the state folder, opened; and the claim of the one process that may deliver from it."""

from __future__ import annotations

import contextlib
import fcntl
import os
from collections.abc import Iterator
from pathlib import Path

import apsw

from opsq.errors import AlreadyRunning, Conflict, DatabaseDamaged, InputUnreadable, Refused, StorageFull
from opsq.settings import Settings
from opsq.store.deliveries import Deliveries
from opsq.store.state_folder import make_state_dir
from opsq.users import open_file


@contextlib.contextmanager
def deliveries(settings: Settings) -> Iterator[Deliveries]:
    """What there is to deliver.

    Raises:
        OpsqError: the file or its folder cannot be used, now or while it is open.
    """
    make_state_dir(settings.state_dir, is_shared=settings.is_shared)
    path = settings.notify_path
    try:
        with contextlib.closing(_opened(path)) as file:
            yield file
    except apsw.FullError as error:
        raise StorageFull(f"There is no room for {path}.", hint="Free some space; no delivery is lost.") from error
    except apsw.BusyError as error:
        raise Conflict(
            f"Another program keeps {path} locked.", hint="Stop that program; no delivery is lost."
        ) from error
    except (apsw.ReadOnlyError, apsw.CantOpenError, apsw.PermissionsError) as error:
        raise InputUnreadable(f"{path} cannot be opened for writing: {error}.", hint="Check who owns it.") from error
    except (apsw.NotADBError, apsw.CorruptError) as error:
        raise DatabaseDamaged(f"{path} is damaged: {error}.", hint="Move it away; what it held is lost.") from error
    except apsw.IOError as error:
        raise Refused(f"Cannot read or write {path}: {error}.", hint="Check whether the disk is full.") from error


def _opened(path: str) -> Deliveries:
    try:
        return Deliveries(Path(path))
    except OSError as error:
        raise InputUnreadable(f"Cannot open {path}: {error.strerror}.") from error


@contextlib.contextmanager
def claimed(settings: Settings) -> Iterator[None]:
    """Be the only one that delivers.

    Raises:
        AlreadyRunning: another process does.
    """
    make_state_dir(settings.state_dir, is_shared=settings.is_shared)
    path = f"{settings.notify_path}.lock"
    try:
        descriptor = open_file(path, os.O_RDWR | os.O_CREAT)
    except OSError as error:
        raise InputUnreadable(f"Cannot open {path}: {error.strerror}.") from error
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise AlreadyRunning(
                f"Another opsq notify delivers for {settings.state_dir}.", hint="One is enough: it does all."
            ) from error
        yield
    finally:
        os.close(descriptor)

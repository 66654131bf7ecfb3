"""The file of `opsq notify` in the state folder, opened; and the claim of the one process that may deliver from it."""

from __future__ import annotations

import contextlib
import fcntl
import os
from collections.abc import Iterator
from pathlib import Path

import apsw

from opsq.errors import AlreadyRunning, InputUnreadable, StorageFull
from opsq.settings import Settings
from opsq.store.deliveries import Deliveries
from opsq.store.state_folder import make_state_dir
from opsq.users import open_file


@contextlib.contextmanager
def deliveries(settings: Settings) -> Iterator[Deliveries]:
    """What there is to deliver.

    Raises:
        OpsqError: the file or its folder cannot be used, or there is no room for it.
    """
    make_state_dir(settings.state_dir, is_shared=settings.is_shared)
    try:
        file = Deliveries(Path(settings.notify_path))
    except OSError as error:
        raise InputUnreadable(f"Cannot open {settings.notify_path}: {error.strerror}.") from error
    try:
        yield file
    except (apsw.FullError, apsw.IOError, apsw.BusyError) as error:
        raise StorageFull(
            f"Cannot write {settings.notify_path}: {error}.", hint="Make room; what is to be delivered is kept."
        ) from error
    finally:
        file.close()


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

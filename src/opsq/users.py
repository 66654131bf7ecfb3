"""Owns what depends on users: whom this process need not fear, who may change a folder, and whose new files are.

It must not know what a folder or a file is for, and must stay cheap to import: each client looks at its daemon.

Root also works in folders of others, whose owners have to go on with what it made there. So what is made belongs to the
owner of the folder that it is made in, as SQLite does it with its log.
"""

from __future__ import annotations

import errno
import os
import stat
from functools import lru_cache

ROOT = 0


def is_trusted(uid: int) -> bool:
    """Whether a user can do everything that this process can: it is the same one, or root."""
    return uid in {os.geteuid(), ROOT}


@lru_cache(maxsize=256)
def user_name(uid: int) -> str:
    """A user of this machine by name, such as `alice`; `uid 1000` if it has none. Each is looked up once."""
    import pwd  # few need it

    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return f"uid {uid}"


def may_others_change(found: os.stat_result) -> bool:
    """Whether users other than its owner can rename and replace what is in a folder."""
    return bool(found.st_mode & 0o022) and not found.st_mode & stat.S_ISVTX


def may_others_plant(folder: os.stat_result) -> bool:
    """Whether a user whom we do not trust can put something into a folder."""
    return not is_trusted(folder.st_uid) or bool(folder.st_mode & 0o022)


def text_of_owner(path: str) -> str:
    """Who has the nearest part of a path that can be looked at, for a message."""
    while True:
        try:
            found = os.stat(path)
            break
        except OSError:
            if path in {"", "/"}:
                return ""
            path = os.path.dirname(path)
    return f": {path} belongs to uid {found.st_uid} and has mode {stat.S_IMODE(found.st_mode):04o}"


# --- what is made in folders of others --------------------------------------------------------------------


def open_file(path: str | os.PathLike[str], flags: int, mode: int = 0o600) -> int:
    """`os.open` of what is to be written, close-on-exec; a file that is made belongs to the owner of its folder.

    Where somebody else may put files, what is there must be a plain file with no other name: a link leads where they
    want it to, and a FIFO or device is not written to.

    Raises:
        PermissionError: it is something else.
        OSError: as `os.open`.
    """
    flags |= os.O_CLOEXEC
    folder = os.stat(os.path.dirname(os.path.abspath(path)))
    if not may_others_plant(folder):
        return os.open(path, flags, mode)
    careful = (flags & ~os.O_TRUNC) | os.O_NOFOLLOW | os.O_NONBLOCK
    if flags & os.O_CREAT:
        try:
            descriptor = os.open(path, careful | os.O_EXCL, mode)
        except FileExistsError:
            if flags & os.O_EXCL:
                raise
        else:
            if (owner := _owner_of(folder)) is not None:
                os.fchown(descriptor, *owner)
            return descriptor
    try:
        descriptor = os.open(path, careful & ~os.O_CREAT)
    except OSError as error:
        if error.errno in {errno.ELOOP, errno.EMLINK, errno.ENXIO}:  # a symbolic link, as BSD has it too; a FIFO
            raise _planted(path) from error
        raise
    found = os.fstat(descriptor)
    if not stat.S_ISREG(found.st_mode) or found.st_nlink != 1:
        os.close(descriptor)
        raise _planted(path)
    if flags & os.O_TRUNC:
        os.ftruncate(descriptor, 0)
    return descriptor


def _planted(path: str | os.PathLike[str]) -> PermissionError:
    text = "it is a link or no plain file, in a folder that others may write to"
    return PermissionError(errno.EPERM, text, os.fspath(path))


def make_folder(path: str | os.PathLike[str], mode: int = 0o700) -> None:
    """`os.mkdir`; the folder belongs to the owner of the folder that it is in."""
    owner = _owner_of(os.stat(os.path.dirname(os.path.abspath(path)))) if os.geteuid() == ROOT else None
    os.mkdir(path, mode)
    if owner is not None:
        descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
        try:
            os.fchown(descriptor, *owner)
        finally:
            os.close(descriptor)


def _owner_of(folder: os.stat_result) -> tuple[int, int] | None:
    """User and group of a folder, if that is not root's and we are root."""
    return None if os.geteuid() != ROOT or folder.st_uid == ROOT else (folder.st_uid, folder.st_gid)

"""Owns what depends on users: whom this process need not fear, who may change a folder, and whose new files are.

It must not know what a folder or a file is for, and must stay cheap to import: each client looks at its daemon.

Root also works in folders of others, whose owners have to go on with what it made there. So what is made belongs to the
owner of the folder that it is made in, as SQLite does it with its log.
"""

from __future__ import annotations

import os
import stat

ROOT = 0


def is_trusted(uid: int) -> bool:
    """Whether a user can do everything that this process can: it is the same one, or root."""
    return uid in {os.geteuid(), ROOT}


def may_others_change(found: os.stat_result) -> bool:
    """Whether users other than its owner can rename and replace what is in a folder."""
    return bool(found.st_mode & 0o022) and not found.st_mode & stat.S_ISVTX


# --- what is made in folders of others --------------------------------------------------------------------


def open_file(path: str | os.PathLike[str], flags: int, mode: int = 0o600) -> int:
    """`os.open`, close-on-exec; a file that is made belongs to the owner of its folder.

    In a folder of somebody else root follows no symbolic link: its owner chose where that leads.
    """
    flags |= os.O_CLOEXEC
    owner = _owner_beside(path)
    if owner is None:
        return os.open(path, flags, mode)
    flags |= os.O_NOFOLLOW
    if not flags & os.O_CREAT:
        return os.open(path, flags)
    try:
        descriptor = os.open(path, flags | os.O_EXCL, mode)
    except FileExistsError:
        if flags & os.O_EXCL:
            raise
        return os.open(path, flags & ~os.O_CREAT)
    os.fchown(descriptor, *owner)
    return descriptor


def make_folder(path: str | os.PathLike[str], mode: int = 0o700) -> None:
    """`os.mkdir`; the folder belongs to the owner of the folder that it is in."""
    owner = _owner_beside(path)
    os.mkdir(path, mode)
    if owner is not None:
        descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
        try:
            os.fchown(descriptor, *owner)
        finally:
            os.close(descriptor)


def give_to_owner(path: str | os.PathLike[str]) -> None:
    """Let what was just made at `path` and cannot be opened, a socket, belong to the owner of its folder."""
    owner = _owner_beside(path)
    if owner is not None:
        os.chown(path, *owner, follow_symlinks=False)


def _owner_beside(path: str | os.PathLike[str]) -> tuple[int, int] | None:
    """User and group of the folder of `path`, if that is not root's and we are root."""
    if os.geteuid() != ROOT:
        return None
    found = os.stat(os.path.dirname(os.path.abspath(path)))
    return None if found.st_uid == ROOT else (found.st_uid, found.st_gid)

"""Regular files: reads ranges by `pread` on cached descriptors, writes whole buffers, and explains failed writes.

This file must not know about stores or chunks. A file submitted in place is identified by its `Identity`.
"""

from __future__ import annotations

import errno
import fcntl
import os
from collections.abc import Callable
from threading import Lock

from opsq.errors import (
    ContentChanged,
    ContentMissing,
    ContentNotPermitted,
    InputUnreadable,
    OpsqError,
    StorageFull,
    StoreNotVisible,
)
from opsq.filesystem import is_no_room, room_left
from opsq.units import counted
from opsq.users import make_folder, open_file, text_of_owner

DESCRIPTORS_LIMIT = 64
_SHARE = "Run this as the user of the daemon, or let a group share the queue: see opsq-security(7)."
SHARED_FOLDER_MODE = 0o2770
SHARED_FILE_MODE = 0o640

Buffer = bytes | bytearray | memoryview

Roots = tuple[bytes, ...]
"""Folders, by their real paths, below which a file must really be, wherever links on its path lead."""

Identity = tuple[int, int, int]
"""(size in bytes, mtime in nanoseconds, inode) of a file at one moment."""


def write_all(descriptor: int, content: Buffer) -> None:
    """Write all of `content`, in as many calls as necessary."""
    done = os.write(descriptor, content)
    if done < len(content):
        view = memoryview(content)
        while done < len(view):
            done += os.write(descriptor, view[done:])


def sync_input(sync: Callable[[], None], name: str) -> None:
    """Sync something of the user's; a file system that has nothing to sync is passed over."""
    try:
        sync()
    except OSError as error:
        if error.errno not in {errno.EINVAL, errno.EROFS, errno.EBADF, errno.ENOTSUP}:
            raise InputUnreadable(f"{name} cannot be made durable: {error.strerror}.") from error


def write_failure(path: str, error: OSError) -> OpsqError:
    """Make the exception that explains a failed write to `path`."""
    if is_no_room(error):
        return StorageFull(
            f"The storage is full: writing {path} failed with {room_left(path)}.",
            hint="Free some space, or remove finished submissions with `opsq rm`, and retry.",
        )
    if isinstance(error, PermissionError):
        return ContentNotPermitted(
            f"{path} may not be written by uid {os.geteuid()}{text_of_owner(os.path.dirname(path))}.", hint=_SHARE
        )
    return StoreNotVisible(f"Writing {path} failed: {error.strerror}.")


def identity_of(descriptor: int) -> Identity:
    """Return size, mtime and inode of an open file."""
    status = os.fstat(descriptor)
    return status.st_size, status.st_mtime_ns, status.st_ino


def roots_of(*folders: str) -> Roots:
    """The roots that are these folders."""
    return tuple(os.fsencode(os.path.realpath(folder)).rstrip(b"/") for folder in folders)


def check_path(path: str | bytes, roots: Roots) -> None:
    """Refuse a path that is not below a root.

    Raises:
        ContentNotPermitted: as it says.
    """
    _check_real_path(path, os.fsencode(os.path.realpath(path)), roots)


def _check_real_path(path: str | bytes, real: bytes, roots: Roots) -> None:
    if not _is_below(real, roots):
        where = ", ".join(os.fsdecode(root) or "/" for root in roots)
        raise ContentNotPermitted(
            f"{os.fsdecode(path)} may not be read here, because another user or machine has submitted it:"
            f" it is not below {where or 'a folder that is allowed'}.",
            hint="The setting in_place_roots allows folders; see opsq-security(7). Or cancel the submission.",
        )


def _is_below(real: bytes, roots: Roots) -> bool:
    return any(real.startswith(root + b"/") for root in roots)


def _real_path(path: str | bytes, descriptor: int) -> bytes:
    """The path of what is open, in which no link is left that somebody could have changed meanwhile."""
    if hasattr(fcntl, "F_GETPATH"):
        return fcntl.fcntl(descriptor, fcntl.F_GETPATH, bytes(1024)).rstrip(b"\0")
    try:
        return os.readlink(b"/proc/self/fd/%d" % descriptor)
    except OSError:  # there is no /proc
        return os.fsencode(os.path.realpath(path))


class _Descriptor:
    """An open descriptor.

    Closed when it is no longer referenced, so that the cache cannot close it while a thread reads.
    """

    __slots__ = ("number",)

    def __init__(self, path: str | bytes, roots: Roots | None) -> None:
        self.number = -1
        if roots is None:
            self.number = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
            return
        self.number = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
        _check_real_path(path, _real_path(path, self.number), roots)

    def __del__(self) -> None:
        if self.number >= 0:
            os.close(self.number)


class FileReader:
    """Reads ranges of files, caching recently used descriptors. Thread-safe."""

    def __init__(self) -> None:
        self._open: dict[tuple[str | bytes, Roots | None], _Descriptor] = {}
        self._lock = Lock()

    def read(
        self,
        path: str | bytes,
        offset: int,
        size: int,
        identity: Identity | None = None,
        roots: Roots | None = None,
    ) -> bytes:
        """Read exactly `size` bytes at `offset`.

        Args:
            path: of the file.
            offset: in bytes.
            size: in bytes.
            identity: what the file must have, also after the read.
            roots: where it must really be; None: anywhere.

        Raises:
            ContentMissing: the file does not exist, or is too short.
            ContentNotPermitted: this user may not read it, or it is not below a root.
            StoreNotVisible: its file system does not work from here.
            ContentChanged: the file does not match `identity`.

        Cost: one system call, two with `identity`; one more to open a file that is not among the last 64.
        """
        descriptor = self._descriptor(path, roots)
        try:
            content = os.pread(descriptor.number, size, offset)
            while len(content) < size and (
                more := os.pread(descriptor.number, size - len(content), offset + len(content))
            ):
                content += more
        except OSError as error:
            raise read_failure(path, error) from error
        if identity is not None:
            _check_identity(path, descriptor.number, identity)
        if len(content) < size:
            end = offset + len(content)
            raise ContentMissing(
                f"{os.fsdecode(path)} ends after {counted(end, 'byte')}, but had {offset + size} or more."
            )
        return content

    def open(self, path: str | bytes, identity: Identity | None = None, roots: Roots | None = None) -> int:
        """Return a descriptor that the caller closes; `identity` and `roots` as for `read`, which it raises as."""
        descriptor = self._descriptor(path, roots)
        if identity is not None:
            _check_identity(path, descriptor.number, identity)
        return os.dup(descriptor.number)

    def forget(self, prefix: str) -> None:
        """Close the descriptors below the folder `prefix`."""
        with self._lock:
            for key in [key for key in self._open if isinstance(key[0], str) and key[0].startswith(prefix + "/")]:
                del self._open[key]

    def close(self) -> None:
        """Close everything."""
        with self._lock:
            self._open.clear()

    def _descriptor(self, path: str | bytes, roots: Roots | None) -> _Descriptor:
        key = (path, roots)
        with self._lock:
            descriptor = self._open.pop(key, None)
            if descriptor is None:
                try:
                    descriptor = _Descriptor(path, roots)
                except OSError as error:
                    raise read_failure(path, error) from error
                if len(self._open) >= DESCRIPTORS_LIMIT:
                    del self._open[next(iter(self._open))]
            self._open[key] = descriptor
        return descriptor


_OF_THIS_PROCESS = frozenset(
    {errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.ESTALE, errno.ENOTCONN, errno.ETIMEDOUT, errno.EHOSTDOWN}
)
"""What another process, or another machine, may not run into: no chunk is to blame for it."""


def read_failure(path: str | bytes, error: OSError) -> OpsqError:
    """Make the exception that explains why `path` cannot be read: is it the content, or this reader?"""
    name = os.fsdecode(path)
    if isinstance(error, PermissionError):
        return ContentNotPermitted(
            f"{name} may not be read by uid {os.geteuid()}{text_of_owner(name)}.",
            hint=_SHARE,
        )
    if error.errno in _OF_THIS_PROCESS:
        return StoreNotVisible(f"{name} cannot be read from here: {error.strerror}.")
    if isinstance(error, FileNotFoundError):
        return ContentMissing(f"{name} is gone.")
    return ContentMissing(f"{name} cannot be read: {error.strerror}.")


def _check_identity(path: str | bytes, descriptor: int, identity: Identity) -> None:
    found = identity_of(descriptor)
    if found == identity:
        return
    names = ("size", "modification time", "inode")
    changed = [f"{name} {was} → {now}" for name, was, now in zip(names, identity, found, strict=True) if was != now]
    raise ContentChanged(
        f"{os.fsdecode(path)} has changed since it was submitted in place ({', '.join(changed)}).",
        hint="Start over with the file as it is now; `opsq submit` without --in-place stores a copy.",
    )


def make_stored_folder(path: str) -> None:
    """Create a folder with mode 0700; in one that a group shares, with its access: 2770."""
    make_folder(path)
    if is_shared(os.path.dirname(path)):
        os.chmod(path, SHARED_FOLDER_MODE)


def open_stored(path: str, flags: int, roots: Roots | None) -> int:
    """Create a file with mode 0600; in a folder that a group shares, 0640.

    Raises:
        PermissionError: a link among its folders leads out of the roots; there is no file then.
    """
    descriptor = open_file(path, flags | os.O_CREAT | os.O_EXCL)
    if roots is not None and not _is_below(_real_path(path, descriptor), roots):
        os.close(descriptor)
        os.unlink(path)
        raise PermissionError(errno.EPERM, "a link on its path leads out of the store", path)
    if is_shared(os.path.dirname(path)):
        os.fchmod(descriptor, SHARED_FILE_MODE)
    return descriptor


def is_shared(folder: str) -> bool:
    """Whether a group writes to a folder, and what is made in it belongs to that group."""
    return os.stat(folder).st_mode & SHARED_FOLDER_MODE == SHARED_FOLDER_MODE


def unlink_if_there(path: str) -> None:
    """Remove a file, if it exists."""
    try:
        os.unlink(path)
    except FileNotFoundError:
        return

"""A store of regular files: writes are synced while they grow, reads use `pread` on cached descriptors.

This file must not know what the bytes mean. Folders have mode 0700 and files 0600, or 2770 and 0640 where
a group shares them, whatever the umask. `open_writer`
writes in place, because no reader knows the folder yet; `write_object` writes a temporary file and renames it.
"""

from __future__ import annotations

import errno
import fcntl
import os
import stat
import time
from collections.abc import Iterator
from functools import cached_property

from opsq.content.content_store import MARKER, ObjectWriter, Store, Version, check_name
from opsq.content.file_io import (
    SHARED_FILE_MODE,
    SHARED_FOLDER_MODE,
    Buffer,
    Roots,
    is_shared,
    make_stored_folder,
    open_stored,
    read_failure,
    roots_of,
    unlink_if_there,
    write_all,
    write_failure,
)
from opsq.errors import Conflict, ContentMissing, NotPermitted, StoreNotVisible
from opsq.fsync import make_folders, sync_descriptor, sync_path
from opsq.users import is_trusted

_LOCK_S = 10.0
_LOCK_STEP_S = 0.01
_SYNC_STEP_BYTES = 64 << 20
"""A background sync starts whenever this much is unsynced, so that the final sync is short."""


class FileWriter(ObjectWriter):
    """Writes one file; a background thread syncs it in steps while it grows."""

    def __init__(self, path: str, roots: Roots, *, is_durable: bool) -> None:
        self.path = path
        self._is_durable = is_durable
        self._unsynced_bytes = 0
        self._syncer: _Syncer | None = None
        try:
            self._descriptor = open_stored(path, os.O_WRONLY, roots)
        except OSError as error:
            raise write_failure(path, error) from error

    def write(self, content: Buffer) -> None:
        try:
            write_all(self._descriptor, content)
        except OSError as error:
            raise write_failure(self.path, error) from error
        self._unsynced_bytes += len(content)
        if self._unsynced_bytes >= _SYNC_STEP_BYTES and self._is_durable:
            if self._syncer is None:
                self._syncer = _Syncer(self._descriptor)
            self._syncer.wake()
            self._unsynced_bytes = 0

    def close(self) -> None:
        try:
            if self._syncer is not None:
                self._syncer.stop()
            if self._is_durable:
                sync_descriptor(self._descriptor)
        except OSError as error:
            raise write_failure(self.path, error) from error
        finally:
            self._let_go()

    def abort(self) -> None:
        if self._descriptor < 0:
            return
        try:
            if self._syncer is not None:
                self._syncer.stop()
        except OSError:  # syncing bytes that are deleted anyway failed: that does not matter
            pass
        finally:
            self._let_go()
        unlink_if_there(self.path)  # its folder may have been deleted

    def _let_go(self) -> None:
        descriptor, self._descriptor = self._descriptor, -1
        os.close(descriptor)


class _Syncer:
    """A thread that syncs one descriptor whenever it is woken, so that the final sync is short."""

    def __init__(self, descriptor: int) -> None:
        from threading import Event, Thread

        self._descriptor = descriptor
        self._wanted = Event()
        self._is_stopping = False
        self._error: OSError | None = None
        self._thread = Thread(target=self._run, name="opsq-sync", daemon=True)
        self._thread.start()

    def wake(self) -> None:
        self._wanted.set()

    def stop(self) -> None:
        """Stop the thread; raises the error of any sync, because the system reports it only once."""
        self._is_stopping = True
        self._wanted.set()
        self._thread.join()
        if self._error is not None:
            raise self._error

    def _run(self) -> None:
        while self._error is None:
            self._wanted.wait()
            self._wanted.clear()
            if self._is_stopping:
                return
            try:
                sync_descriptor(self._descriptor)
            except OSError as error:
                self._error = error


def _lock(folder: int, path: str) -> None:
    """Lock an open folder to write `path`; a process that is stopped, or a lost server, may hold the lock for good."""
    until_s = time.monotonic() + _LOCK_S
    while True:
        try:
            fcntl.flock(folder, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            if time.monotonic() > until_s:
                raise StoreNotVisible(f"Writing {path} failed: another process has locked its folder.") from error
            time.sleep(_LOCK_STEP_S)
        else:
            return


class LocalStore(Store):
    """Files below one folder."""

    def __init__(self, root: str | os.PathLike[str]) -> None:
        self.root = os.path.abspath(root)
        super().__init__(_url_of(self.root))

    @cached_property
    def roots(self) -> Roots:
        """Where its files really are: who may write to a shared store could put links there that lead elsewhere."""
        return roots_of(self.root)

    def is_own(self, name: str) -> bool:
        try:
            found = os.stat(self.path(name), follow_symlinks=False)
        except OSError:
            return False
        return is_trusted(found.st_uid) and not found.st_mode & 0o022

    def set_group(self, gid: int | None) -> None:
        found = os.stat(self.root)
        if gid is None:
            if is_shared(self.root):
                os.chmod(self.root, 0o700)
            return
        if is_shared(self.root) and found.st_gid == gid:
            return
        try:
            for folder, _, names in os.walk(self.root, topdown=False):  # the root last: then all is done
                for name in names:
                    _share(f"{folder}/{name}", gid, SHARED_FILE_MODE)
                _share(folder, gid, SHARED_FOLDER_MODE)
            is_done = is_shared(self.root)
        except PermissionError:
            is_done = False
        if not is_done:
            raise NotPermitted(
                f"{self.root} cannot be shared with group {gid}: uid {os.geteuid()} does not own all that is in it,"
                " or is not in that group.",
                hint="Change the group of the state folder (chgrp), or use socket_mode 0600. A unit of systemd must not"
                " have RestrictSUIDSGID=yes: the folders have the setgid bit.",
            )

    def path(self, name: str) -> str:
        return f"{self.root}/{check_name(name)}"

    def mark(self) -> str:
        try:
            if not os.path.exists(self.path(MARKER)):
                make_folders(self.root, make_stored_folder)
                sync_path(os.path.dirname(self.root))  # in case another process made the root
        except OSError as error:
            raise write_failure(self.root, error) from error
        return super().mark()

    def create_folder(self, folder: str) -> None:
        path = self.path(folder)
        try:
            make_folders(self.root, make_stored_folder)
            make_stored_folder(path)
        except FileExistsError as error:
            raise Conflict(
                f"{path} exists: content with this request key was written before.",
                hint="Repeat the request that sent it, or submit under a new key.",
            ) from error
        except OSError as error:
            raise write_failure(path, error) from error

    def ensure_folder(self, folder: str) -> None:
        path = self.path(folder)
        try:
            make_folders(
                path, make_stored_folder, is_durable=False
            )  # `sync_folder` follows, also for one that was there
        except OSError as error:
            raise write_failure(path, error) from error

    def open_writer(self, name: str, *, is_durable: bool) -> FileWriter:
        return FileWriter(self.path(name), self.roots, is_durable=is_durable)

    def write_object(self, name: str, content: Buffer, *, is_durable: bool) -> None:
        path = self.path(name)
        folder = os.path.dirname(path)
        beside = f"{path}.{os.urandom(4).hex()}.new"
        try:
            make_folders(folder, make_stored_folder, is_durable=is_durable)
            writer = FileWriter(beside, self.roots, is_durable=is_durable)
            try:
                writer.write(content)
                writer.close()
                os.rename(beside, path)
            except BaseException:
                unlink_if_there(beside)
                raise
            if is_durable:
                sync_path(folder)
        except OSError as error:
            raise write_failure(path, error) from error

    def read_version(self, name: str) -> tuple[bytes, Version] | None:
        path = self.path(name)
        try:
            with open(path, "rb") as file:
                content = file.read()
        except FileNotFoundError:
            return None
        except OSError as error:
            raise read_failure(path, error) from error
        return content, _version_of(content)

    def swap_object(self, name: str, content: bytes, version: Version | None) -> Version:
        """Write under the lock of the store's folder, which holds for all machines that see it if its kind has such."""
        path = self.path(name)
        try:
            make_folders(self.root, make_stored_folder)
            folder = os.open(self.root, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
            try:
                _lock(folder, path)
                found = self.read_version(name)
                if (None if found is None else found[1]) != version:
                    raise Conflict(f"{path} is not as it was read.")
                self.write_object(name, content, is_durable=True)
            finally:
                os.close(folder)
        except OSError as error:
            raise write_failure(path, error) from error
        return _version_of(content)

    def sync_folder(self, folder: str) -> None:
        path = self.path(folder)
        try:
            sync_path(path)
            while path != self.root:
                path = os.path.dirname(path)
                sync_path(path)
        except OSError as error:
            raise write_failure(path, error) from error

    def read_range(self, name: str, offset: int, size: int) -> bytes:
        return self.files.read(self.path(name), offset, size, None, self.roots)

    def size_bytes(self, name: str) -> int:
        path = self.path(name)
        try:
            return os.stat(path).st_size
        except FileNotFoundError as error:
            raise ContentMissing(f"{path} cannot be read: {error.strerror}.") from error
        except OSError as error:
            raise read_failure(path, error) from error

    def delete_folder(self, folder: str) -> None:
        path = self.path(folder)
        self.files.forget(path)
        _remove_tree(path)

    def delete_object(self, name: str) -> None:
        path = self.path(name)
        try:
            unlink_if_there(path)
        except OSError as error:
            raise write_failure(path, error) from error

    def objects(self, folder: str) -> Iterator[str]:
        try:
            entries = os.scandir(self.path(folder))
        except FileNotFoundError:
            return
        with entries:
            yield from (entry.name for entry in entries if entry.is_file(follow_symlinks=False))

    def folders(self) -> Iterator[str]:
        try:
            entries = os.scandir(self.root)
        except FileNotFoundError:
            return
        with entries:
            yield from (entry.name for entry in entries if entry.is_dir(follow_symlinks=False))

    def modified_at(self, folder: str) -> float | None:
        path = self.path(folder)
        try:
            return max(_modification_times(path))
        except FileNotFoundError:
            return None


def _version_of(content: bytes) -> Version:
    """What tells contents apart that are never the same twice."""
    return {"e_tag": content.decode("latin-1")}


def _share(path: str, gid: int, mode: int) -> None:
    """Give a group access to a file or folder; what has several names is left alone, as it may not be ours."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError as error:
        if error.errno in {errno.ELOOP, errno.EMLINK, errno.ENXIO}:  # a symbolic link, as BSD has it too; a socket
            return
        raise
    try:
        found = os.fstat(descriptor)
        if stat.S_ISDIR(found.st_mode) or (stat.S_ISREG(found.st_mode) and found.st_nlink == 1):
            os.fchown(descriptor, -1, gid)
            os.fchmod(descriptor, mode)
    finally:
        os.close(descriptor)


def _url_of(path: str) -> str:
    """Convert a path to a URL; imports `urllib` only if it needs quoting."""
    if not path.isascii() or not path.replace("/", "").replace("-", "").replace("_", "").replace(".", "").isalnum():
        from urllib.parse import quote

        path = quote(os.fsencode(path))
    return "file://" + path


def _modification_times(path: str) -> Iterator[float]:
    yield os.stat(path).st_mtime
    with os.scandir(path) as entries:
        for entry in entries:
            if entry.is_dir(follow_symlinks=False):
                yield from _modification_times(entry.path)
            else:
                yield entry.stat(follow_symlinks=False).st_mtime


def _remove_tree(path: str) -> None:
    """Remove a folder and everything in it; entries may come and go while it runs, and links are not followed."""
    while True:
        try:
            entries = os.scandir(path)
        except FileNotFoundError:
            return
        with entries:
            for entry in entries:
                if entry.is_dir(follow_symlinks=False):
                    _remove_tree(entry.path)
                else:
                    unlink_if_there(entry.path)
        try:
            os.rmdir(path)
        except FileNotFoundError:
            return
        except OSError as error:
            if error.errno != errno.ENOTEMPTY:
                raise
        else:
            return

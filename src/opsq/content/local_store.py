"""A store of plain files: writes that are synced while they go on, reads by `pread` on cached descriptors.

This file must not know what the bytes mean. Folders are 0700 and files 0600, whatever the umask. An object under
`open_writer` is written in place, because its folder is named by nobody yet; `write_object` writes beside and renames.
"""

from __future__ import annotations

import os
from collections.abc import Iterator

from opsq.content.content_store import ObjectWriter, Store, check_name
from opsq.content.file_io import (
    Buffer,
    make_folders,
    sync_descriptor,
    sync_path,
    unlink_if_there,
    write_all,
    write_failure,
)
from opsq.errors import Conflict, ContentMissing

_SYNC_STEP_BYTES = 64 << 20
"""A background sync begins whenever this much is unsynced, so that the last one has little left to do."""


class FileWriter(ObjectWriter):
    """Writes one file; while it grows, a thread in the background syncs it in steps."""

    def __init__(self, path: str, *, is_durable: bool) -> None:
        self.path = path
        self._is_durable = is_durable
        self._unsynced_bytes = 0
        self._syncer: _Syncer | None = None
        try:
            self._descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        except OSError as error:
            raise write_failure(path, error) from error

    def write(self, content: Buffer) -> None:
        """See `ObjectWriter.write`."""
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
        """See `ObjectWriter.close`."""
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
        """See `ObjectWriter.abort`."""
        if self._descriptor < 0:
            return
        try:
            if self._syncer is not None:
                self._syncer.stop()
        except OSError:  # a sync of bytes that are thrown away failed: that is no news
            pass
        finally:
            self._let_go()
        os.unlink(self.path)

    def _let_go(self) -> None:
        descriptor, self._descriptor = self._descriptor, -1
        os.close(descriptor)


class _Syncer:
    """A thread that syncs one descriptor each time it is woken, so that the sync at the end has little left to do."""

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
        """End the thread; raise what a sync raised, for the system tells an error of a file only once."""
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


class LocalStore(Store):
    """Files below one folder."""

    def __init__(self, root: str | os.PathLike[str]) -> None:
        self.root = os.path.abspath(root)
        super().__init__(_url_of(self.root))

    def path(self, name: str) -> str:
        """See `Store.path`."""
        return f"{self.root}/{check_name(name)}"

    def create_folder(self, folder: str) -> None:
        """See `Store.create_folder`."""
        path = self.path(folder)
        try:
            if make_folders(self.root):
                sync_path(os.path.dirname(self.root))
            os.mkdir(path, 0o700)
        except FileExistsError as error:
            raise Conflict(
                f"{path} exists: content with this request key was written before.",
                hint="Repeat the request that sent it, or submit under a new key.",
            ) from error
        except OSError as error:
            raise write_failure(path, error) from error

    def ensure_folder(self, folder: str) -> None:
        """See `Store.ensure_folder`."""
        path = self.path(folder)
        try:
            make_folders(path)
        except OSError as error:
            raise write_failure(path, error) from error

    def open_writer(self, name: str, *, is_durable: bool) -> FileWriter:
        """See `Store.open_writer`."""
        return FileWriter(self.path(name), is_durable=is_durable)

    def write_object(self, name: str, content: Buffer, *, is_durable: bool) -> None:
        """See `Store.write_object`."""
        path = self.path(name)
        folder = os.path.dirname(path)
        beside = f"{path}.{os.urandom(4).hex()}.new"
        try:
            make_folders(folder)
            writer = FileWriter(beside, is_durable=is_durable)
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

    def sync_folder(self, folder: str) -> None:
        """See `Store.sync_folder`."""
        path = self.path(folder)
        try:
            sync_path(path)
            while path != self.root:
                path = os.path.dirname(path)
                sync_path(path)
        except OSError as error:
            raise write_failure(path, error) from error

    def read_range(self, name: str, offset: int, size: int) -> bytes:
        """See `Store.read_range`."""
        return self.files.read(self.path(name), offset, size)

    def size_bytes(self, name: str) -> int:
        """See `Store.size_bytes`."""
        path = self.path(name)
        try:
            return os.stat(path).st_size
        except OSError as error:
            raise ContentMissing(f"{path} cannot be read: {error.strerror}.") from error

    def delete_folder(self, folder: str) -> None:
        """See `Store.delete_folder`."""
        path = self.path(folder)
        self.files.forget(path)
        _remove_tree(path)

    def delete_object(self, name: str) -> None:
        """See `Store.delete_object`."""
        path = self.path(name)
        try:
            unlink_if_there(path)
        except OSError as error:
            raise write_failure(path, error) from error

    def objects(self, folder: str) -> Iterator[str]:
        """See `Store.objects`."""
        try:
            entries = os.scandir(self.path(folder))
        except FileNotFoundError:
            return
        with entries:
            yield from (entry.name for entry in entries if entry.is_file(follow_symlinks=False))

    def folders(self) -> Iterator[str]:
        """See `Store.folders`."""
        try:
            entries = os.scandir(self.root)
        except FileNotFoundError:
            return
        with entries:
            yield from (entry.name for entry in entries if entry.is_dir(follow_symlinks=False))

    def modified_at(self, folder: str) -> float | None:
        """See `Store.modified_at`."""
        path = self.path(folder)
        try:
            return max(_modification_times(path))
        except FileNotFoundError:
            return None


def _url_of(path: str) -> str:
    """A path as a URL; a plain one without the cost of the module that quotes."""
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
    """Remove a folder and all in it; what vanishes meanwhile is as good as removed, links are not followed."""
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

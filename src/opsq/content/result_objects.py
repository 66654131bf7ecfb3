"""Writes large results into the store: one growing object per consumer and submission, not one per chunk.

This file must not interpret results, and does not know chunks: the caller keeps the returned location. (Two files per
task brought down a shared file system in another scheduler.)
"""

from __future__ import annotations

import contextlib
import os
import re
import threading
from contextlib import suppress
from typing import NamedTuple

from opsq.content.content_store import Store
from opsq.content.file_io import Buffer, make_stored_folder, open_stored, write_all, write_failure
from opsq.errors import ContentMissing, OpsqError
from opsq.fsync import make_folders, sync_descriptor
from opsq.users import open_file

_BATCH_LIMIT_BYTES = 32 << 20
_READ_BYTES = 1 << 20


class Stored(NamedTuple):
    """Where a result is stored: an object in the submission's folder, and a range in it."""

    object: str
    offset: int
    length: int


class ResultWriter:
    """Appends results of one submission. Its calls may overlap, since one that was given up on may still run.

    Locations returned by `append` may be used by others after the next `sync`. In a store of files there is one file,
    open only from the first append to the sync; in an object store there is one object per sync.

    Attributes:
        lost: objects that could not be synced: no location in them may be used.

    Args:
        store: the destination.
        folder: of the submission.
        consumer: part of the name, so that people can see whose results these are.
        is_durable: synced results survive a power failure.
    """

    def __init__(self, store: Store, folder: str, consumer: str, *, is_durable: bool = True) -> None:
        self.lost: set[str] = set()
        self._store = store
        self._folder = folder
        self._is_durable = is_durable
        self._lock = threading.RLock()
        name = re.sub(r"[^A-Za-z0-9_.-]", "_", consumer)[:64]
        self._stem = f"results/{name}-{os.urandom(6).hex()}"
        self._objects_count = 0
        self._descriptor = -1
        """Open as long as something is not synced."""
        self._is_new = True
        self._batch = bytearray()
        self._begin(f"{self._stem}.part")

    def append(self, result: Buffer) -> Stored:
        """Append a result.

        Raises:
            StorageFull: the storage is full; earlier results are not affected, as after an interrupt.
            ContentMissing: the file of earlier results is gone, as with a submission; the next go to another.
        """
        with self._lock:
            if self._path is None:
                if len(self._batch) >= _BATCH_LIMIT_BYTES:
                    self._upload()
                self._end = len(self._batch)
                self._batch += result
            else:
                self._write(self._path, result)
            stored = Stored(self._object, self._end, len(result))
            self._end += len(result)
            return stored

    def append_file(self, descriptor: int) -> Stored:
        """Append a whole open file, in constant memory (in a store of files).

        Raises:
            StorageFull, ContentMissing: as `append`.
        """
        first: Stored | None = None
        position = 0
        with self._lock:
            while piece := os.pread(descriptor, _READ_BYTES if self._path else os.fstat(descriptor).st_size, position):
                stored = self.append(piece)
                first = first or stored
                position += len(piece)
            return Stored(first.object, first.offset, position) if first else Stored(self._object, self._end, 0)

    def sync(self) -> None:
        """Make appended results durable, and readable by others; after an interrupt it can be called again.

        Raises:
            OpsqError: they could not be written. In a store of files they are `lost` then, and the next go to another
                file: the system drops what it failed to write, and a second sync would succeed without it.

        Cost: one sync; a few the first time.
        """
        with self._lock:
            if self._path is None:
                self._upload()
            elif self._descriptor >= 0:
                self._sync_file(self._path)

    def close(self) -> None:
        """Let go of what was not synced: no location in it may be used. A file with nothing else in it is deleted."""
        with self._lock:
            self._batch.clear()
            is_open = self._descriptor >= 0
            if is_open:
                self._close()
            if self._is_new:
                if is_open:
                    with contextlib.suppress(OpsqError):
                        self._store.delete_object(f"{self._folder}/{self._object}")
                self._begin(self._object)

    def _sync_file(self, path: str) -> None:
        try:
            if self._is_durable:
                sync_descriptor(self._descriptor)
                if self._is_new:
                    self._store.sync_folder(f"{self._folder}/results")
        except OSError as error:
            self._give_up()
            raise write_failure(path, error) from error
        except OpsqError:
            self._give_up()
            raise
        self._is_new = False
        self._close()

    def _give_up(self) -> None:
        self.lost.add(self._object)
        self._close()
        self._begin_next()

    def _close(self) -> None:
        descriptor, self._descriptor = self._descriptor, -1
        os.close(descriptor)

    def _begin_next(self) -> None:
        self._objects_count += 1
        self._begin(f"{self._stem}-{self._objects_count}.part")

    def _begin(self, name: str) -> None:
        self._object = name
        self._path = self._store.path(f"{self._folder}/{name}")
        self._is_new = True
        self._end = 0

    def _write(self, path: str, result: Buffer) -> None:
        if self._descriptor < 0:
            self._descriptor = self._open(path)
        try:
            os.lseek(self._descriptor, self._end, os.SEEK_SET)  # over what an interrupted append has left
            write_all(self._descriptor, result)
        except OSError as error:
            with suppress(OSError):  # only the room is lost
                os.ftruncate(self._descriptor, self._end)
            raise write_failure(path, error) from error

    def _open(self, path: str) -> int:
        flags = os.O_WRONLY
        try:
            if not self._is_new:
                return open_file(path, flags)
            make_folders(os.path.dirname(path), make_stored_folder, is_durable=False)  # the first sync does it
            return open_stored(path, flags, self._store.roots)
        except FileNotFoundError as error:
            self._begin_next()
            raise ContentMissing(f"{path} is gone: the submission was removed.") from error
        except OSError as error:
            raise write_failure(path, error) from error

    def _upload(self) -> None:
        if not self._batch:
            return
        self._store.write_object(f"{self._folder}/{self._object}", bytes(self._batch), is_durable=self._is_durable)
        self._begin_next()  # first: if this is interrupted, the next object repeats the batch, and this one stays
        self._batch.clear()

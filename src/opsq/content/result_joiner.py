"""Joins results into one output, in the order given; `atomic_output` writes a file that is either complete or absent.

This file must not decide which results there are. Memory stays constant whatever the sizes; adjacent ranges of an
object are copied as one, inside the kernel if the output allows it.
"""

from __future__ import annotations

import errno
import io
import os
import stat
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import BinaryIO

from opsq.content.content_store import Store
from opsq.content.file_io import Buffer, unlink_if_there, write_failure
from opsq.errors import ContentMissing, UsageError
from opsq.filesystem import is_no_room
from opsq.fsync import sync_descriptor, sync_path

_GATHER_BYTES = 1 << 20
_SMALL_BYTES = 1 << 16
"""A range up to this size is buffered: system calls to copy it would cost more."""
_COPY_BYTES = 1 << 20
_KERNEL_COPY_BYTES = 1 << 30
_CANNOT = (
    errno.EINVAL,
    errno.ENOSYS,
    errno.EXDEV,
    errno.EBADF,
    errno.EOPNOTSUPP,
    errno.ENOTSOCK,
    errno.EPERM,
    errno.ETXTBSY,
)
"""Error codes by which the kernel refuses to copy between two descriptors; any other is a failure."""

_Copier = Callable[[int, int, int], int]
"""Copies up to `count` bytes from (descriptor, position); returns how many."""

Result = Buffer | tuple[str, int, int]
"""The bytes of a result, or (object, offset, length) in the submission's folder (`result_objects.Stored`)."""


def join_results(results: Iterable[Result], store: Store, folder: str, out: BinaryIO) -> int:
    """Write results one after the other.

    Args:
        results: in the order to write.
        store: holds the large ones.
        folder: of the submission.
        out: a binary file or pipe; flushed on return.

    Returns:
        How many bytes were written.

    Raises:
        ContentMissing: a result is missing; those before it have been written.
        OSError: writing failed.
    """
    joiner = _Joiner(store, folder, out)
    for result in results:
        if isinstance(result, tuple | list):
            joiner.add_range(*result)
        else:
            joiner.add_bytes(result)
    joiner.flush()
    return joiner.written_bytes


class _Joiner:
    """Buffers small results, merges adjacent ranges, and writes everything in order."""

    def __init__(self, store: Store, folder: str, out: BinaryIO) -> None:
        self._store = store
        self._folder = folder
        self._out = out
        self._gathered = bytearray()
        self._object = ""
        self._start = self._end = 0
        self._copiers = _copiers(out)
        self.written_bytes = 0

    def add_bytes(self, result: Buffer) -> None:
        if self._end > self._start:
            self._copy_range()
        self._gathered += result
        if len(self._gathered) >= _GATHER_BYTES:
            self._write_gathered()

    def add_range(self, name: str, offset: int, length: int) -> None:
        if length == 0:
            return
        if name == self._object and offset == self._end > self._start:
            self._end += length
            return
        if self._end > self._start:
            self._copy_range()
        self._object, self._start, self._end = name, offset, offset + length

    def flush(self) -> None:
        if self._end > self._start:
            self._copy_range()
        self._write_gathered()
        self._out.flush()

    def _write_gathered(self) -> None:
        if self._gathered:
            self._write(bytes(self._gathered))
            self._gathered.clear()

    def _write(self, content: bytes) -> None:
        """Write everything: an unbuffered file may write less than requested."""
        view = memoryview(content)
        while view:
            count = self._out.write(view)
            view = view[count:]
        self.written_bytes += len(content)

    def _copy_range(self) -> None:
        name, position, end = f"{self._folder}/{self._object}", self._start, self._end
        self._start = self._end = 0
        if end - position <= _SMALL_BYTES:
            self.add_bytes(self._store.read_range(name, position, end - position))
            return
        self._write_gathered()
        path = self._store.path(name)
        if path is not None and self._copiers:
            self._out.flush()
            descriptor = self._store.files.open(path, roots=self._store.roots)
            try:
                position = self._copy_in_kernel(descriptor, path, position, end)
            finally:
                os.close(descriptor)
        while position < end:
            content = self._store.read_range(name, position, min(_COPY_BYTES, end - position))
            self._write(content)
            position += len(content)

    def _copy_in_kernel(self, source: int, path: str, position: int, end: int) -> int:
        """Copy as far as the kernel can; returns the position reached."""
        while position < end and self._copiers:
            try:
                count = self._copiers[0](source, position, min(end - position, _KERNEL_COPY_BYTES))
            except OSError as error:
                if error.errno not in _CANNOT:
                    raise
                self._copiers.pop(0)
                continue
            if count == 0:
                raise ContentMissing(f"{path} ends after {position} bytes, but had {end} or more.")
            position += count
            self.written_bytes += count
        return position


def _copiers(out: BinaryIO) -> list[_Copier]:
    """Return the ways in which the kernel can copy into `out`, best first; none if it has no descriptor."""
    try:
        target = out.fileno()
    except (OSError, AttributeError, io.UnsupportedOperation):
        return []
    found: list[_Copier] = []
    if sys.platform == "linux":
        if stat.S_ISREG(os.fstat(target).st_mode):
            found.append(lambda source, position, count: os.copy_file_range(source, target, count, position))
        found.append(lambda source, position, count: os.sendfile(target, source, position, count))
    return found


@contextmanager
def atomic_output(path: str | os.PathLike[str], *, is_durable: bool = True) -> Iterator[BinaryIO]:
    """Write a file that appears under its name only if the block succeeds; after an error nothing has changed.

    Args:
        path: of the file; links are followed; anything but a regular file (a device, a pipe) is written to directly.
        is_durable: the file survives a power failure once the block has ended.

    Raises:
        UsageError: the file cannot be created.
        StorageFull: the storage is full.
    """
    place = os.path.realpath(path)
    mode = _mode_of(place)
    try:
        if mode is not None and not stat.S_ISREG(mode):
            with _open_output(place, os.O_WRONLY) as out:
                yield out
        else:
            yield from _beside(place, mode, is_durable=is_durable)
    except OSError as error:
        if is_no_room(error):
            raise write_failure(place, error) from error
        raise


def _beside(place: str, mode: int | None, *, is_durable: bool) -> Iterator[BinaryIO]:
    """Open a new file next to `place`; rename it to that at the end, or remove it after an error."""
    folder, name = os.path.split(place)
    path = os.path.join(folder, f".{name[:60]}.{os.urandom(4).hex()}.new")
    try:
        with _open_output(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL) as out:
            if mode is not None:
                os.fchmod(out.fileno(), stat.S_IMODE(mode))
            yield out
            out.flush()
            if is_durable:
                sync_descriptor(out.fileno())
        os.replace(path, place)
    except BaseException:
        unlink_if_there(path)
        raise
    if is_durable:
        sync_path(folder)


def _mode_of(path: str) -> int | None:
    try:
        return os.stat(path).st_mode
    except FileNotFoundError:
        return None
    except OSError as error:
        raise UsageError(f"{path} cannot be written: {error.strerror}.") from error


def _open_output(path: str, flags: int) -> BinaryIO:
    try:
        return os.fdopen(os.open(path, flags | os.O_CLOEXEC, 0o666), "wb")
    except OSError as error:
        raise UsageError(f"{path} cannot be written: {error.strerror}.") from error

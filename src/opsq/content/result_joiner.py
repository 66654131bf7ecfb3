"""Joins results into one output, in the order given.

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
from typing import BinaryIO

from opsq.content.content_store import Store
from opsq.content.file_io import Buffer
from opsq.errors import ContentMissing, OpsqError
from opsq.units import counted

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


def size_of(result: Result) -> int:
    """The bytes of a result."""
    return result[2] if isinstance(result, tuple | list) else len(result)


def part_of(result: Result, low: int, high: int) -> Result:
    """The bytes `[low, high)` of a result; those of a large one are only named."""
    if isinstance(result, tuple | list):
        return result[0], result[1] + low, high - low
    return result[low:high]


def content_of(result: Result, store: Store, folder: str) -> bytes:
    """All bytes of a result, which may be in `folder` of `store`."""
    if isinstance(result, tuple | list):
        return store.read_range(f"{folder}/{result[0]}", result[1], result[2])
    return bytes(result)


def range_of(results: Iterable[Result], low: int, high: int) -> Iterator[Result]:
    """The bytes `[low, high)` of results that follow each other."""
    position = 0
    for result in results:
        start, position = position, position + size_of(result)
        if low < position:
            yield part_of(result, max(low - start, 0), min(high, position) - start)
        if high <= position:
            return


def join_pieces(results: Iterable[Result], store: Store, folder: str) -> Iterator[bytes]:
    """Results one after the other, in pieces of about 1 MiB, for an output that is no file.

    Args:
        results: in the order to give.
        store: holds the large ones.
        folder: of the submission.

    Raises:
        OpsqError: a result is missing, or as `results`; those before it have been given.
    """
    gathered = bytearray()
    try:
        for result in results:
            for low in range(0, size_of(result), _COPY_BYTES):
                part = part_of(result, low, min(low + _COPY_BYTES, size_of(result)))
                gathered += content_of(part, store, folder)
                if len(gathered) >= _GATHER_BYTES:
                    yield bytes(gathered)
                    gathered.clear()
    except OpsqError:
        yield bytes(gathered)
        raise
    yield bytes(gathered)


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
                raise ContentMissing(f"{path} ends after {counted(position, 'byte')}, but had {end} or more.")
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

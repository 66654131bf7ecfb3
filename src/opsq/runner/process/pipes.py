"""Bytes into and out of one child: the feed of its stdin, the capture of its stdout, the tail of its stderr.

Every call here works on a pipe that does not block, and never waits. This file must not know processes.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import sys
import termios
from collections.abc import Callable, Iterable
from typing import NamedTuple

from opsq.errors import ContentChanged, ContentMissing, Refused, StorageFull, WorkFailed
from opsq.units import counted, format_roughly, format_size

PIPE_BYTES = 1 << 20
"""What a pipe is widened to where the system allows it: a chunk of the default size then needs no second wake-up."""

MEMORY_BYTES = 2 << 20
"""A result up to this length stays in memory: a chunk of the default size, worked on, is written once: by the store."""

TAIL_BYTES = 4096
"""How much of the end of stderr is kept."""

SHARED_MIN_BYTES = 64 << 20
"""What each output may have on any disk, so that a disk that is nearly full fails no program that writes little."""

_READ_BYTES = 1 << 18
_PIPE_DEFAULT_BYTES = 1 << 16
NO_ROOM = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
_NO_SENDFILE = (errno.EINVAL, errno.ENOSYS, errno.EOPNOTSUPP)


class Range(NamedTuple):
    """Bytes of an open file, with bytes to put before them.

    Args:
        fd: a descriptor to read at `offset`; its own position is neither used nor moved. Needed only until the child is
            started (what is left to send then goes through a duplicate).
        length: bytes, ≥ 0.
        header: sent first, such as the header of a CSV file; not counted in `length`.
        path: names the file in messages.
    """

    fd: int
    offset: int
    length: int
    header: bytes = b""
    path: str = ""


def open_pipe(of_reader: list[int], of_writer: list[int]) -> tuple[int, int]:
    """Make a pipe, and note each end with those that its side has to close."""
    read_fd, write_fd = os.pipe()
    of_reader.append(read_fd)
    of_writer.append(write_fd)
    return read_fd, write_fd


def close_all(fds: Iterable[int]) -> None:
    """Close descriptors."""
    for fd in fds:
        os.close(fd)


def waiting_bytes(pipe_fd: int) -> int:
    """How many bytes can be read at once."""
    return int.from_bytes(fcntl.ioctl(pipe_fd, termios.FIONREAD, bytes(4)), sys.byteorder)


def widen(pipe_fd: int) -> None:
    """Let the pipe hold `PIPE_BYTES`, where the system can (Linux) and the user's allowance of pipe memory lasts."""
    if sys.platform == "linux":
        with contextlib.suppress(PermissionError):
            fcntl.fcntl(pipe_fd, fcntl.F_SETPIPE_SZ, PIPE_BYTES)


class Feed:
    """What a child still has to get on its stdin."""

    def __init__(self, source: bytes | Range) -> None:
        self._file = source if isinstance(source, Range) else Range(-1, 0, 0)
        self._name = self._file.path or "The input"
        self._head = memoryview(source.header if isinstance(source, Range) else source)
        self._offset = self._file.offset
        self._left_bytes = self._file.length
        self._owned_fd = -1
        # From the page cache into the pipe without a copy through Python. (macOS sends to sockets only.)
        self._sends_file = sys.platform == "linux"

    @property
    def is_empty(self) -> bool:
        """Nothing (more) to send."""
        return not self._head and not self._left_bytes

    @property
    def is_long(self) -> bool:
        """More to send than a pipe of the usual width holds."""
        return len(self._head) + self._left_bytes > _PIPE_DEFAULT_BYTES

    def send(self, pipe_fd: int) -> bool:
        """Write what the pipe takes now.

        Returns:
            True when there is nothing more to send: all is written, or the child closed its stdin, as it may.

        Raises:
            ContentChanged: the file ends before the range does.
            ContentMissing: the file cannot be read.
        """
        try:
            while self._head:
                self._head = self._head[os.write(pipe_fd, self._head) :]
            while self._left_bytes:
                self._send_file(pipe_fd)
        except BlockingIOError:
            return False
        except BrokenPipeError:
            return True
        except OSError as error:
            raise ContentMissing(f"{self._name} cannot be read: {error.strerror}.") from error
        return True

    def _send_file(self, pipe_fd: int) -> None:
        file = self._file
        if self._sends_file:
            try:
                sent_bytes = os.sendfile(pipe_fd, file.fd, self._offset, self._left_bytes)
            except OSError as error:
                if error.errno not in _NO_SENDFILE:
                    raise
                # Some file systems cannot; they can all be read.
                self._sends_file = False
                return
        else:
            piece = os.pread(file.fd, min(self._left_bytes, _PIPE_DEFAULT_BYTES), self._offset)
            sent_bytes = os.write(pipe_fd, piece) if piece else 0
        if not sent_bytes:
            raise ContentChanged(
                f"{self._name} ends at byte {self._offset}, "
                f"{counted(self._left_bytes, 'byte')} before the end of its chunk:"
                " it has been truncated since it was submitted."
            )
        self._offset += sent_bytes
        self._left_bytes -= sent_bytes

    def keep_file(self) -> None:
        """Hold the file open for what is left, whatever its owner does with the descriptor from now on."""
        if self._left_bytes:
            self._owned_fd = os.dup(self._file.fd)
            self._file = self._file._replace(fd=self._owned_fd)

    def close(self) -> None:
        """Let go of the file."""
        if self._owned_fd >= 0:
            os.close(self._owned_fd)
            self._owned_fd = -1


class Output:
    """All that a child wrote on its stdout: in memory, or in a file without a name when it is long.

    The receiver closes it. The file is never written again, not by a grandchild either.
    """

    def __init__(self, memory: bytes, fd: int = -1, length: int | None = None) -> None:
        self.memory = memory
        """The bytes, when `fd` is -1; else empty."""
        self.fd = fd
        """A descriptor to read the bytes at offset 0…`length`, or -1."""
        self.length = len(memory) if length is None else length

    def close(self) -> None:
        """Free the file; may be called again."""
        if self.fd >= 0:
            os.close(self.fd)
            self.fd = -1


class OutputLimit(NamedTuple):
    """How long the output of a program may become."""

    max_bytes: int | None = None
    """None: half of what is free on the disk where it is kept, divided by `jobs`, but no less than 64 MiB."""
    jobs: int = 1
    """How many programs may write at once."""

    def on_disk(self, file: int | str, taken_bytes: int = 0) -> int:
        """In bytes, for an output in this file, which takes this much of the disk already."""
        if self.max_bytes is not None:
            return self.max_bytes
        disk = os.statvfs(file)
        return max((disk.f_bavail * disk.f_frsize + taken_bytes) // 2 // self.jobs, SHARED_MIN_BYTES)

    def exceeded(self, limit_bytes: int) -> WorkFailed:
        """What to say of a program that has written more."""
        if self.max_bytes is not None:
            return WorkFailed(f"it wrote more than {format_size(limit_bytes)} (--max-result)")
        share = f"{format_roughly(limit_bytes)}, its share of the free disk"
        return WorkFailed(f"it wrote more than {share} (--max-result sets another limit)")


FREE_SHARE = OutputLimit()
"""The limit of who sets none."""


class Capture:
    """Collects one child's stdout.

    A pipe, not a file that the child writes by itself: with a file, `> /dev/stdout` inside the program cuts off what it
    wrote before, and a grandchild goes on writing after the result was taken. Measured (1 MiB chunks through `tr`, two
    at a time): a file of the child's own 1.62 ms a chunk, a pipe spliced into a file 1.71 ms; and for small results a
    file without a name costs 57 µs on ext4, a pipe 4 µs.
    """

    def __init__(self, spool_dir: str, memory_bytes: int, *, may_widen: bool, limit: OutputLimit = FREE_SHARE) -> None:
        self._spool_dir = spool_dir
        self._limit = limit
        # A share of the disk is looked up when there is something on it.
        self._limit_bytes = sys.maxsize if limit.max_bytes is None else limit.max_bytes
        self._memory_bytes = memory_bytes
        self._may_widen = may_widen
        self._pieces: list[bytes] = []
        self._fd = -1
        self.length = 0
        """Bytes taken so far."""

    def take(self, pipe_fd: int) -> bool:
        """Take what is in the pipe now, in one step.

        Returns:
            True at the end of the stream.

        Raises:
            StorageFull: no room for a long result in the spool folder.
            Refused: the spool folder cannot be written for another reason.
            WorkFailed: the output is longer than it may be.
        """
        try:
            if self._fd < 0:
                piece = os.read(pipe_fd, _READ_BYTES)
                taken_bytes = len(piece)
                self._keep(piece)
            else:
                taken_bytes = self._spool(pipe_fd)
        except BlockingIOError:
            return False
        except OSError as error:
            raise self._unkept(error) from error
        self.length += taken_bytes
        self._check_length()
        if self._may_widen and taken_bytes >= _PIPE_DEFAULT_BYTES:
            self._may_widen = False
            widen(pipe_fd)
        return not taken_bytes

    def add(self, piece: bytes) -> None:
        """Take bytes that were read elsewhere.

        Raises:
            StorageFull, Refused, WorkFailed: as `take`.
        """
        try:
            self._keep(piece)
        except OSError as error:
            raise self._unkept(error) from error
        self.length += len(piece)
        self._check_length()

    def _check_length(self) -> None:
        if self.length > self._limit_bytes:
            raise self._limit.exceeded(self._limit_bytes)

    def _keep(self, piece: bytes) -> None:
        if self._fd >= 0:
            _write_all(self._fd, piece)
            return
        if piece:
            self._pieces.append(piece)
        if self.length + len(piece) > self._memory_bytes:
            self._fd = nameless_file(self._spool_dir)
            self._limit_bytes = self._limit.on_disk(self._fd)
            for kept in self._pieces:
                _write_all(self._fd, kept)
            self._pieces.clear()

    def _unkept(self, error: OSError) -> Refused:
        kind = StorageFull if error.errno in NO_ROOM else Refused
        return kind(
            f"Output of a program cannot be kept in {self._spool_dir}: {error.strerror}, at byte {self.length}.",
            hint="Free some space there." if kind is StorageFull else "See that the folder exists and can be written.",
        )

    def _spool(self, pipe_fd: int) -> int:
        if sys.platform == "linux":
            return os.splice(pipe_fd, self._fd, PIPE_BYTES, flags=os.SPLICE_F_MOVE)
        piece = os.read(pipe_fd, _READ_BYTES)
        _write_all(self._fd, piece)
        return len(piece)

    def output(self) -> Output:
        """Hand over what was taken; the capture is empty afterwards."""
        pieces, fd = self._pieces, self._fd
        self._pieces, self._fd = [], -1
        return Output(b"".join(pieces), fd, self.length)


class Tail:
    """Keeps the last `TAIL_BYTES` of what a child says on its stderr.

    Args:
        said: is given each piece as well.
    """

    def __init__(self, said: Callable[[bytes], object] | None = None) -> None:
        self.kept = b""
        self._said = said

    def take(self, pipe_fd: int) -> bool:
        """Take what is in the pipe now, in one step; True at the end of the stream."""
        try:
            piece = os.read(pipe_fd, _PIPE_DEFAULT_BYTES)
        except BlockingIOError:
            return False
        self.kept = (self.kept + piece)[-TAIL_BYTES:]
        if self._said is not None and piece:
            self._said(piece)
        return not piece


def nameless_file(folder: str) -> int:
    """Open a new file in `folder` that has no name, so that nothing is left of it whatever happens."""
    if sys.platform == "linux":
        with contextlib.suppress(OSError):
            return os.open(folder, os.O_TMPFILE | os.O_RDWR | os.O_CLOEXEC, 0o600)
    # Not every file system has O_TMPFILE; one that truly cannot be written says so here.
    import tempfile

    fd, path = tempfile.mkstemp(prefix=".opsq-", dir=folder)
    os.unlink(path)
    return fd


def _write_all(fd: int, piece: bytes) -> None:
    view = memoryview(piece)
    while view:
        view = view[os.write(fd, view) :]

"""Opens what a user names as an input: its bytes, what a compressed file holds, its lines without carriage returns.

It must not cut, and writes nothing.
"""

from __future__ import annotations

import io
import os
import stat
import sys
from collections.abc import Callable
from typing import IO, TYPE_CHECKING, Self

from opsq.errors import ContentChanged, InputUnreadable
from opsq.units import counted

if TYPE_CHECKING:
    from io import BufferedIOBase

STDIN = "-"
RETRY_UNCHANGED = "Retry when nothing writes to it. To take what it has now, give it as stdin: `- < FILE`."
"""The input that stands for standard input."""

COMPRESSED = {".gz": b"\x1f\x8b\x08", ".bz2": b"BZh", ".xz": b"\xfd7zXZ\0", ".zst": b"\x28\xb5\x2f\xfd"}
"""How the names of compressed files end, and how they begin."""


def open_raw(path: str | os.PathLike[str]) -> io.FileIO:
    """Open a file as it is.

    Raises:
        InputUnreadable: it does not exist, is a directory, or may not be read.
    """
    try:
        return io.FileIO(os.fspath(path), "rb")
    except OSError as error:
        raise InputUnreadable(f"{os.fspath(path)} cannot be read: {error.strerror}.") from error
    except ValueError as error:
        raise InputUnreadable(f"{os.fspath(path)!r} is not a valid file name: {error}.") from error


def check_in_place(file: io.FileIO, name: str | os.PathLike[str]) -> None:
    """Refuse what cannot be read in place.

    Raises:
        InputUnreadable: it is not a regular file.
    """
    if not is_regular(file):
        raise InputUnreadable(
            f"{os.fspath(name)} is not a regular file, so it cannot be read in place.", hint="Omit --in-place."
        )


def is_regular(file: io.FileIO) -> bool:
    """Whether it is a regular file: its size is known, and it can be read at any position."""
    return stat.S_ISREG(os.fstat(file.fileno()).st_mode)


def is_compressed(path: str | os.PathLike[str]) -> bool:
    """Whether `InputFile` would decompress a file: a regular one that is named and begins as a compressed one.

    One that cannot be opened is not: the error is for who reads it. Cost: files with other names are not opened.
    """
    name = os.fspath(path)
    if suffix_of(name) not in COMPRESSED or not os.path.isfile(name):  # to open a pipe would take its writer away
        return False
    try:
        with open_raw(name) as file:
            return _compression(name, file) != ""
    except InputUnreadable:
        return False


def suffix_of(path: str) -> str:
    """How a name ends, in lower case: `.gz`; "" for none."""
    return os.path.splitext(path)[1].lower()


def _compression(path: str, file: io.FileIO) -> str:
    """The suffix of the compressed file that it is; "" if it is none."""
    suffix = suffix_of(path)
    magic = COMPRESSED.get(suffix)
    return suffix if magic and os.pread(file.fileno(), len(magic), 0) == magic else ""


def open_input(path: str, *, is_decompressing: bool = True, strips_crlf: bool = False) -> InputFile:
    """Open an input by its path, or standard input.

    Raises:
        InputUnreadable: as `open_raw`.
    """
    if path == STDIN:
        return InputFile(io.FileIO(0, "rb", closefd=False), path, is_decompressing=False, strips_crlf=strips_crlf)
    return InputFile(open_raw(path), path, is_decompressing=is_decompressing, strips_crlf=strips_crlf)


class StrippedStream:
    """A stream without each carriage return before a line feed.

    Args:
        read: fills a part of a buffer, as `readinto` does.
    """

    def __init__(self, read: Callable[[memoryview], int | None]) -> None:
        self._read = read
        self._held = b""
        """A byte that was read and not given: a carriage return whose next byte is not known, or one without room."""

    def forget(self) -> None:
        """What is read next is elsewhere."""
        self._held = b""

    def seekable(self) -> bool:
        """It cannot be moved by itself."""
        return False

    def seek(self, offset: int, whence: int = 0, /) -> int:
        """Not to be called."""
        raise io.UnsupportedOperation

    def readinto(self, buffer: memoryview, /) -> int | None:
        """Fill a part of `buffer`; returns 0 at the end."""
        while True:
            held = len(self._held)
            room = buffer if len(buffer) > held else memoryview(bytearray(held + 1))
            count = self._read(room[held:])
            if count is None:
                return None
            piece = (self._held + bytes(room[held : held + count])).replace(b"\r\n", b"\n")
            known = len(piece) - 1 if count and piece.endswith(b"\r") else len(piece)
            given = min(known, len(buffer))
            buffer[:given] = piece[:given]
            self._held = piece[given:]
            if given or not count:
                return given


class InputFile:
    """An input that is open for reading.

    Args:
        file: positioned at the start; closed with this.
        name: its path, and for messages.
        is_decompressing: give what a compressed file holds.
        strips_crlf: leave out each carriage return before a line feed.
    """

    def __init__(self, file: io.FileIO, name: str, *, is_decompressing: bool, strips_crlf: bool = False) -> None:
        self.raw = file
        self.name = name
        self._before = os.fstat(file.fileno())
        self.is_regular = stat.S_ISREG(self._before.st_mode)
        suffix = _compression(name, file) if is_decompressing and self.is_regular else ""
        self._stripped = StrippedStream(self._read) if strips_crlf else None
        self.is_converted = suffix != "" or strips_crlf
        """Other bytes are given than the file has."""
        self._plain: BufferedIOBase | None = None
        self._errors: tuple[type[Exception], ...] = ()
        if suffix:
            self._plain, self._errors = decompressor(suffix, file)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.raw.close()

    def fileno(self) -> int:
        """The descriptor, for polls."""
        return self.raw.fileno()

    def seekable(self) -> bool:
        """Whether `seek` works."""
        return self.raw.seekable()

    def seek(self, offset: int, whence: int = 0, /) -> int:
        """Move to a position in the bytes that are given, and return it; with `strips_crlf` only to where it began."""
        if self._stripped is not None:
            self._stripped.forget()
        return (self._plain or self.raw).seek(offset, whence)

    def readinto(self, buffer: memoryview, /) -> int | None:
        """Fill a part of `buffer`; returns 0 at the end.

        Raises:
            InputUnreadable: a compressed file is damaged, or ends too early.
        """
        return self._read(buffer) if self._stripped is None else self._stripped.readinto(buffer)

    def _read(self, buffer: memoryview) -> int | None:
        if self._plain is None:
            return self.raw.readinto(buffer)
        try:
            return self._plain.readinto(buffer)
        except self._errors as error:
            raise InputUnreadable(
                f"{self.name} cannot be decompressed: {str(error).rstrip('.')}.",
                hint="--as-is takes compressed files as they are.",
            ) from error

    def check_unchanged(self) -> str:
        """Look at the file again, once all of it has been read.

        Returns:
            A remark on a file that has only grown, or was replaced by another; else "".

        Raises:
            ContentChanged: bytes that had been there may be missing from what was read.
        """
        if not self.is_regular:
            return ""
        before, after = self._before, os.fstat(self.raw.fileno())
        if after.st_size < before.st_size:
            what = f"was cut from {before.st_size} to {counted(after.st_size, 'byte')}"
        elif after.st_size == before.st_size and after.st_mtime_ns != before.st_mtime_ns:
            what = "was written to"
        else:
            return self._growth(after.st_size) or self._replacement()
        raise ContentChanged(f"{self.name} {what} while it was read.", hint=RETRY_UNCHANGED)

    def _growth(self, size: int) -> str:
        if size == self._before.st_size:
            return ""
        return (
            f"{self.name} grew while it was read, of which opsq has the first {counted(self.raw.tell(), 'byte')}: "
            "the last record may not be whole."
        )

    def _replacement(self) -> str:
        if self.name == STDIN:
            return ""
        try:
            is_same = os.path.samestat(os.stat(self.name), self._before)
        except OSError:
            is_same = False
        return "" if is_same else f"{self.name} was replaced or removed while it was read: the old file is used."


def decompressor(
    suffix: str, file: IO[bytes], window_log: int | None = None
) -> tuple[BufferedIOBase, tuple[type[Exception], ...]]:
    """What reads the plain bytes, and what it raises for a damaged file.

    Args:
        suffix: of the kind, as in `COMPRESSED`.
        window_log: bounds the memory that a `.zst` may ask for, as a power of two; None: 128 MiB.
    """
    if suffix == ".gz":
        import gzip
        import zlib

        return gzip.GzipFile(fileobj=file, mode="rb"), (gzip.BadGzipFile, EOFError, zlib.error)
    if suffix == ".bz2":
        import bz2

        return bz2.BZ2File(file), (OSError, EOFError)
    if suffix == ".xz":
        import lzma

        return lzma.LZMAFile(file), (lzma.LZMAError, EOFError)
    if sys.version_info >= (3, 14):
        from compression import zstd
    else:
        from backports import zstd
    options = {} if window_log is None else {int(zstd.DecompressionParameter.window_log_max): window_log}
    return zstd.ZstdFile(file, options=options), (zstd.ZstdError, EOFError)

"""Reads an input, applies a rule to it and names what goes wrong; yields the bytes as they pass, with the chunk ends.

This file must not write anything. `plan` is what `--dry-run` shows: the cuts without the bytes.
"""

from __future__ import annotations

import io
import os
import stat
from collections.abc import Iterable, Iterator
from itertools import islice
from typing import NamedTuple, Protocol, cast

from opsq.content.record_boundaries import RecordCounter
from opsq.content.splitter import DEFAULT_CHUNK_LIMIT_BYTES, OverLimit, Splitter, Splitting, seek_ends
from opsq.errors import ChunkTooLarge, InputUnreadable, UsageError

READ_BYTES = 1 << 20
LIMIT_HINT = "Cut it smaller, or raise the setting chunk_limit_bytes of the daemon: see opsq.toml(5)."
_BATCH_COUNT = 4096
_NOTHING = memoryview(b"")


class InputStream(Protocol):
    """What an input must be able to do: any binary file object can."""

    def readinto(self, buffer: memoryview, /) -> int | None:
        """Fill a part of `buffer`; 0 at the end."""

    def seekable(self) -> bool:
        """True when `seek` works."""

    def seek(self, offset: int, whence: int = 0, /) -> int:
        """Move, and tell the new position."""


class Cut(NamedTuple):
    """A stretch of an input.

    Attributes:
        content: the bytes, from where the last cut ended; valid until the next cut is asked for; empty when only the
            ends are wanted.
        ends: chunk ends that became known, as offsets in the content (the input without its header); an end may lie
            before `content`.
        header: of the input, with its line end.
    """

    content: memoryview
    ends: list[int]
    header: bytes


def open_input(path: str | os.PathLike[str]) -> io.FileIO:
    """Open a file that somebody submits.

    Raises:
        InputUnreadable: it is not there, is a directory, or may not be read.
    """
    try:
        return io.FileIO(os.fspath(path), "rb")
    except OSError as error:
        raise InputUnreadable(f"{os.fspath(path)} cannot be read: {error.strerror}.") from error
    except ValueError as error:
        raise InputUnreadable(f"{os.fspath(path)!r} is not the name of a file: {error}.") from error


def is_regular(file: io.FileIO) -> bool:
    """True for a plain file: its size is known, and any place of it can be read."""
    return stat.S_ISREG(os.fstat(file.fileno()).st_mode)


def cut_stream(
    stream: InputStream, name: str, splitting: Splitting, limit_bytes: int, buffer: bytearray | None = None
) -> Iterator[Cut]:
    """Read a stream to its end and cut it.

    Args:
        stream: read from where it stands.
        name: for messages.
        splitting: the rule.
        limit_bytes: the chunk limit.
        buffer: to work in, when the caller has one of `READ_BYTES`.

    Raises:
        ChunkTooLarge: with the number of the line, record or chunk.
        InputUnreadable: reading fails.

    Cost: memory of one buffer, whatever the size of stream, chunks and records.
    """
    splitting.check_limit(limit_bytes)
    splitter = Splitter(splitting, limit_bytes)
    origin = stream.seek(0, io.SEEK_CUR) if stream.seekable() else None
    counter = RecordCounter(splitting.scanner()) if origin is None and splitting.by == "bytes" else None
    kept, buffer = splitter.keep_bytes, buffer or bytearray(READ_BYTES)
    view = memoryview(buffer)
    base, low, header = -kept, kept, b""
    while True:
        high = _fill(stream, name, view, low)
        try:
            ends = splitter.feed(buffer, base, high)
        except OverLimit as over:
            if counter is not None:
                counter.feed(buffer, base, over.start)
                raise _too_large(name, splitting, limit_bytes, counter.count) from None
            if splitting.by == "records":
                raise _too_large(
                    name, splitting, limit_bytes, over.chunks_before * splitting.count + over.has_header
                ) from None
            if splitting.by == "bytes":
                stream.seek(origin or 0)
            raise _too_large(name, splitting, limit_bytes, _count_before(stream, name, splitting, over.start)) from None
        if counter is not None:
            counter.feed(buffer, base, base + high)
        is_last = high < len(buffer)
        if is_last:
            ends += splitter.finish(base + high)
        start = splitter.content_start
        if start is not None:
            header = header or bytes(splitter.header)
            yield Cut(view[max(low, start - base) : high], [end - start for end in ends] if start else ends, header)
        if is_last:
            return
        buffer[:kept] = buffer[high - kept : high]
        base, low = base + high - kept, kept


def cut_file(file: io.FileIO, name: str, splitting: Splitting, limit_bytes: int) -> Iterator[Cut]:
    """Cut a regular file without giving its bytes; reads only what it must. Otherwise as `cut_stream`."""
    if not splitting.is_seekable:
        for _, ends, header in cut_stream(file, name, splitting, limit_bytes):
            yield Cut(_NOTHING, ends, header)
        return
    splitting.check_limit(limit_bytes)
    ends_found = seek_ends(file.fileno(), os.fstat(file.fileno()).st_size, splitting, limit_bytes)
    try:
        while ends := list(islice(ends_found, _BATCH_COUNT)):
            yield Cut(_NOTHING, ends, b"")
    except OverLimit as over:
        raise _too_large(name, splitting, limit_bytes, _count_before(file, name, splitting, over.start)) from None
    except OSError as error:
        raise InputUnreadable(f"{name} cannot be read: {error.strerror}.") from error


def _fill(stream: InputStream, name: str, view: memoryview, low: int) -> int:
    """Read into `view` from `low` on until it is full or the stream ends; gives where that is."""
    try:
        while low < len(view):
            count = stream.readinto(view[low:])
            if count is None:  # somebody who shares the descriptor has made it non-blocking
                _wait_readable(stream)
            elif count == 0:
                break
            else:
                low += count
    except OSError as error:
        raise InputUnreadable(f"{name} cannot be read: {error.strerror}.") from error
    return low


def _wait_readable(stream: InputStream) -> None:
    import select

    select.select([cast("io.IOBase", stream)], [], [])


def _count_before(stream: InputStream, name: str, splitting: Splitting, stop: int) -> int:
    """Read `stop` bytes, to learn how many records they are."""
    counter = RecordCounter(splitting.scanner())
    kept, buffer = counter.keep_bytes, bytearray(READ_BYTES)
    view = memoryview(buffer)
    base, low = -kept, kept
    while base + low < stop:
        high = _fill(stream, name, view, low)
        counter.feed(buffer, base, min(stop, base + high))
        if high < len(buffer):
            break
        buffer[:kept] = buffer[high - kept : high]
        base += high - kept
    return counter.count


def _too_large(name: str, splitting: Splitting, limit_bytes: int, records_before: int) -> ChunkTooLarge:
    if splitting.by == "file":
        return ChunkTooLarge(f"{name} is larger than the chunk limit of {limit_bytes} bytes.", hint=LIMIT_HINT)
    word = "record" if splitting.csv_header or splitting.delimiter != b"\n" else "line"
    number = records_before + 1
    if splitting.by == "bytes" or splitting.count == 1:
        what = f"{word.capitalize()} {number} of {name} is"
    else:
        what = f"The {splitting.count} {word}s from {word} {number} of {name} on are"
    return ChunkTooLarge(f"{what} longer than the chunk limit of {limit_bytes} bytes.", hint=LIMIT_HINT)


class PlannedChunk(NamedTuple):
    """A chunk as it would be: of which input, from where (behind the header), how long."""

    name: str
    offset_bytes: int
    size_bytes: int


class Plan(NamedTuple):
    """What a submission would be."""

    chunks_count: int
    total_bytes: int
    smallest_bytes: int
    largest_bytes: int
    first: list[PlannedChunk]
    header: bytes


def plan(
    inputs: Iterable[tuple[str, InputStream]],
    splitting: Splitting,
    *,
    chunk_limit_bytes: int = DEFAULT_CHUNK_LIMIT_BYTES,
    first_count: int = 10,
) -> Plan:
    """Cut inputs as a submission would, and write nothing.

    Args:
        inputs: (name for messages, stream) pairs.
        splitting: the rule.
        chunk_limit_bytes: the chunk limit.
        first_count: how many of the first chunks to tell of.

    Raises:
        ChunkTooLarge: as the submission would.
        InputUnreadable: as the submission would.
    """
    count = total = largest = 0
    smallest: int | None = None
    first: list[PlannedChunk] = []
    header = HeaderCheck()
    for name, stream in inputs:
        if isinstance(stream, io.FileIO) and is_regular(stream) and stream.tell() == 0:
            cuts = cut_file(stream, name, splitting, chunk_limit_bytes)
        else:
            cuts = cut_stream(stream, name, splitting, chunk_limit_bytes)
        start = 0
        for cut in cuts:
            header.take(cut.header, name, splitting)
            for end in cut.ends:
                size = end - start
                smallest = size if smallest is None else min(smallest, size)
                largest = max(largest, size)
                if len(first) < first_count:
                    first.append(PlannedChunk(name, start, size))
                start = end
            count += len(cut.ends)
        total += start
    return Plan(count, total, smallest or 0, largest, first, header.header or b"")


class HeaderCheck:
    """Holds the header of the first input and sees that the others have the same."""

    def __init__(self) -> None:
        self.header: bytes | None = None
        self._first_name = ""

    def take(self, header: bytes, name: str, splitting: Splitting) -> None:
        """Compare the header of the input `name` with the first one.

        Raises:
            InputUnreadable: it differs.
            UsageError: inputs with and without headers are mixed.
        """
        if splitting.csv_header and not header:
            return
        if self.header is None:
            self.header, self._first_name = header, name
        elif bool(self.header) != splitting.csv_header:
            raise UsageError("A submission either repeats one CSV header in all chunks or has none.")
        elif header != self.header:
            raise InputUnreadable(
                f"The header of {name} is not that of {self._first_name}.",
                hint="Files with different columns are different submissions.",
            )

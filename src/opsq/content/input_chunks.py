"""Reads an input and cuts it by a rule; yields its bytes with the chunk ends, and locates what is wrong in its errors.

This file must not write anything. `plan` serves `--dry-run`: the chunks without their bytes.
"""

from __future__ import annotations

import io
import os
from collections.abc import Iterable, Iterator
from itertools import islice
from typing import NamedTuple, Protocol, cast

from opsq.content.input_file import InputFile
from opsq.content.manifest import InputRange
from opsq.content.record_boundaries import RecordCounter
from opsq.content.splitter import DEFAULT_CHUNK_LIMIT_BYTES, OpenQuote, OverLimit, Splitter, Splitting, seek_ends
from opsq.errors import ChunkTooLarge, InputUnreadable, UsageError
from opsq.units import counted

READ_BYTES = 1 << 20
LIMIT_HINT = "Use smaller chunks, or raise the daemon's chunk_limit_bytes: see opsq.toml(5)."
_BATCH_COUNT = 4096
_NOTHING = memoryview(b"")


class InputStream(Protocol):
    """What an input must support; any binary file object does."""

    def readinto(self, buffer: memoryview, /) -> int | None:
        """Fill a part of `buffer`; returns 0 at the end."""

    def seekable(self) -> bool:
        """Whether `seek` works."""

    def seek(self, offset: int, whence: int = 0, /) -> int:
        """Move to a position, and return it."""


class Cut(NamedTuple):
    """A stretch of an input.

    Attributes:
        content: the bytes from the end of the last stretch; valid until the next one is requested; empty if only the
            ends are wanted.
        ends: newly found chunk ends, as offsets in the content (the input without its header); an end may be
            before `content`.
        header: of the input, with its line end.
    """

    content: memoryview
    ends: list[int]
    header: bytes


def cut_stream(
    stream: InputStream, name: str, splitting: Splitting, limit_bytes: int, buffer: bytearray | None = None
) -> Iterator[Cut]:
    """Read a whole stream and cut it.

    Args:
        stream: read from its current position.
        name: for messages.
        splitting: the rule.
        limit_bytes: the chunk limit.
        buffer: a work buffer of `READ_BYTES` to reuse.

    Raises:
        ChunkTooLarge: with the number of the line, record or chunk.
        InputUnreadable: reading fails, or a quote of a CSV never closes.

    Cost: the memory of one buffer, whatever the size of the stream, its chunks and records.
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
            try:
                ends += splitter.finish(base + high)
            except OpenQuote as quote:
                raise _open_quote(name, quote.line) from None
        start = splitter.content_start
        if start is not None:
            header = header or bytes(splitter.header)
            yield Cut(view[max(low, start - base) : high], [end - start for end in ends] if start else ends, header)
        if is_last:
            return
        buffer[:kept] = buffer[high - kept : high]
        base, low = base + high - kept, kept


def cut_file(file: io.FileIO, name: str, splitting: Splitting, limit_bytes: int) -> Iterator[Cut]:
    """Cut a regular file as `cut_stream` does, but without its bytes, and reading only what is necessary."""
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
    """Fill `view` from `low` until it is full or the stream ends; returns the end of the data."""
    try:
        while low < len(view):
            count = stream.readinto(view[low:])
            if count is None:  # another process that shares the descriptor has made it non-blocking
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
    """Read `stop` bytes and count their records."""
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


def _open_quote(name: str, line: int) -> InputUnreadable:
    return InputUnreadable(
        f"The quote that opens in line {line} of {name} is never closed.",
        hint="Correct the line, or name the quote and the escape of this file: --csv-quote, --csv-escape.",
    )


def _too_large(name: str, splitting: Splitting, limit_bytes: int, records_before: int) -> ChunkTooLarge:
    if splitting.by == "file":
        return ChunkTooLarge(f"{name} exceeds the chunk limit of {counted(limit_bytes, 'byte')}.", hint=LIMIT_HINT)
    word = "record" if splitting.is_csv or splitting.delimiter != b"\n" else "line"
    number = records_before + 1
    if splitting.by == "bytes" or splitting.count == 1:
        what = f"{word.capitalize()} {number} of {name} exceeds"
    else:
        what = f"The {splitting.count} {word}s of {name} that start at {word} {number} exceed"
    return ChunkTooLarge(f"{what} the chunk limit of {counted(limit_bytes, 'byte')}.", hint=LIMIT_HINT)


class Plan(NamedTuple):
    """What would be submitted."""

    chunks_count: int
    total_bytes: int
    smallest_bytes: int
    largest_bytes: int
    first: list[InputRange]
    header: bytes


def plan(
    inputs: Iterable[tuple[str, InputStream]],
    splitting: Splitting,
    *,
    chunk_limit_bytes: int = DEFAULT_CHUNK_LIMIT_BYTES,
    first_count: int = 10,
) -> Plan:
    """Cut inputs as a submission would, without writing anything.

    Args:
        inputs: (name for messages, stream) pairs.
        splitting: the rule.
        chunk_limit_bytes: the chunk limit.
        first_count: how many of the first chunks to describe.

    Raises:
        ChunkTooLarge: as the submission would.
        InputUnreadable: as the submission would.
    """
    count = total = largest = 0
    smallest: int | None = None
    first: list[InputRange] = []
    header = HeaderCheck()
    for name, stream in inputs:
        if isinstance(stream, InputFile) and stream.is_regular and not stream.is_converted and stream.raw.tell() == 0:
            cuts = cut_file(stream.raw, name, splitting, chunk_limit_bytes)
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
                    first.append(InputRange(name, len(cut.header) + start, size))
                start = end
            count += len(cut.ends)
        total += start
    return Plan(count, total, smallest or 0, largest, first, header.header or b"")


class HeaderCheck:
    """Holds the header of the first input, and checks that all others have the same."""

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
            raise UsageError("Inputs with and without a CSV header cannot be in one submission.")
        elif header != self.header:
            raise InputUnreadable(
                f"The header of {name} differs from that of {self._first_name}.",
                hint="Submit files with different columns separately.",
            )

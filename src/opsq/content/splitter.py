r"""Finds chunk boundaries in a stream of bytes, in constant memory: `Splitting` is the rule, a `Splitter` applies it.

This file must not write anything and knows no store. A *record* ends with the delimiter (or the stream); with
`csv_header`, as CSV records do (`csv_records`), and the first record of each file is the header. A delimiter
that can overlap itself (`\n\n`) is matched leftmost first, as `bytes.split` does.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from operator import sub
from typing import Literal

import msgspec

from opsq.content.csv_records import CsvDialect, CsvScanner
from opsq.content.record_boundaries import LINE_END, Delimited, Scanner, overlaps_itself
from opsq.errors import UsageError
from opsq.units import counted

DEFAULT_CHUNK_BYTES = 1 << 20
DEFAULT_CHUNK_LIMIT_BYTES = 64 << 20

_DELIMITER_LIMIT_BYTES = 1024
_SEEK_BYTES = 4096
"""How far before the latest possible chunk end the search first looks."""
_FORWARD_BYTES = 1 << 16
_WINDOW_BYTES = 1 << 18


class Splitting(msgspec.Struct, frozen=True):
    """The rule by which each file of an input is cut into chunks; a chunk never spans two files.

    Args:
        by: `bytes`: as many whole records as fit in `count` bytes, at least one; `records`: `count` records;
            `file`: one chunk per file, even if empty.
        count: bytes (1 … the chunk limit) or records (≥ 1) per chunk.
        delimiter: ends a record; 1 … 1024 bytes.
        dialect: records are CSV records of this dialect.
        csv_header: records are CSV records, by default of the usual dialect, and the first of each file is repeated in
            front of each chunk instead of being a record of its own.
        decompresses: a compressed file is cut as what it holds.
        strips_crlf: each carriage return before a line feed is left out, in CSV in quotes too.

    Raises:
        UsageError: the values are invalid or contradict each other.
    """

    by: Literal["bytes", "records", "file"] = "bytes"
    count: int = DEFAULT_CHUNK_BYTES
    delimiter: bytes = LINE_END
    csv_header: bool = False
    dialect: CsvDialect | None = None
    decompresses: bool = True
    strips_crlf: bool = False

    def __post_init__(self) -> None:
        if self.count < 1:
            raise UsageError(f"A chunk cannot have {self.count} {self.by}: give 1 or more.")
        if not 1 <= len(self.delimiter) <= _DELIMITER_LIMIT_BYTES:
            raise UsageError(f"A delimiter has 1 to {_DELIMITER_LIMIT_BYTES} bytes, not {len(self.delimiter)}.")
        if self.strips_crlf and b"\r\n" in self.delimiter:
            raise UsageError("Records that end with CRLF have no end once the carriage returns are left out.")
        if self.is_csv and self.delimiter != LINE_END:
            raise UsageError(
                "CSV records end with a line end: a header cannot be combined with a different delimiter.",
                hint="--csv-delimiter sets the character between fields.",
            )
        if self.is_csv and self.by == "file":
            raise UsageError(
                "With one chunk per file, each chunk already has its header: use only one of the two options."
            )

    @property
    def is_csv(self) -> bool:
        """Whether records are CSV records."""
        return self.csv_header or self.dialect is not None

    def check_limit(self, limit_bytes: int) -> None:
        """Refuse a chunk size above the chunk limit.

        Raises:
            UsageError: chunks are cut by bytes and `count` is above `limit_bytes`.
        """
        if self.by == "bytes" and self.count > limit_bytes:
            raise UsageError(
                f"Chunks of {counted(self.count, 'byte')} exceed the chunk limit of "
                f"{counted(limit_bytes, 'byte')}: choose a smaller size."
            )

    def scanner(self) -> Scanner:
        """Return a scanner that finds record ends in one stream."""
        return CsvScanner(self.dialect or CsvDialect()) if self.is_csv else Delimited(self.delimiter)

    @property
    def is_seekable(self) -> bool:
        """Whether chunk ends can be found by reading near them, without reading everything in between."""
        return self.by == "file" or (self.by == "bytes" and not self.is_csv and not overlaps_itself(self.delimiter))


class OverLimit(Exception):
    """The chunk that starts at `start` is larger than the chunk limit.

    Internal to this package: the caller knows the name of the file and raises `ChunkTooLarge`.
    """

    def __init__(self, start: int, chunks_before: int = 0, *, has_header: bool = False) -> None:
        super().__init__(start)
        self.start = start
        self.chunks_before = chunks_before
        self.has_header = has_header


class OpenQuote(Exception):
    """The stream ended inside quotes that opened in `line`.

    Internal to this package, as `OverLimit`.
    """

    def __init__(self, line: int) -> None:
        super().__init__(line)
        self.line = line


class Splitter:
    """Applies a rule to one stream: takes the bytes in order, and returns the chunk ends.

    Positions are offsets in the stream. `content_start` is where the content starts: 0, or after the header once that
    is complete (None before).
    """

    def __init__(self, splitting: Splitting, limit_bytes: int) -> None:
        self._by = splitting.by
        self._count = splitting.count
        self._limit_bytes = limit_bytes
        self._scanner = splitting.scanner()
        self.keep_bytes = self._scanner.keep_bytes
        self.header = bytearray()
        self.content_start = None if splitting.csv_header else 0
        self._start = 0
        """Start of the open chunk."""
        self._record_end = 0
        """End of the last complete record in the open chunk; its start if there is none."""
        self._cursor = 0
        """Everything before it has been scanned."""
        self._missing = self._count
        """Records still missing from the open chunk."""
        self._chunks_count = 0

    def feed(self, buffer: bytearray, base: int, high: int) -> list[int]:
        """Process the stream up to `base + high`.

        Args:
            buffer: holds the stream from `base`, starting at most `keep_bytes` before the end of the last feed.
            base: the offset in the stream of `buffer[0]`.
            high: how much of `buffer` is valid.

        Returns:
            The ends of the chunks that are now complete, ascending; an end may be before `base`.

        Raises:
            OverLimit: a chunk is larger than the chunk limit.
        """
        ends: list[int] = []
        if self.content_start is None and not self._take_header(buffer, base, high):
            return ends
        if self._by == "bytes":
            self._cut_bytes(buffer, base, high, ends)
        elif self._by == "records":
            self._cut_records(buffer, base, high, ends)
        if base + high - self._start > self._limit_bytes:
            raise self._over_limit()
        return ends

    def finish(self, size: int) -> list[int]:
        """End the stream at `size`; an open chunk becomes the last one, with or without a delimiter.

        Raises:
            OpenQuote: a quote never closes.
        """
        if self._scanner.open_line:
            raise OpenQuote(self._scanner.open_line)
        if self.content_start is None:
            self.content_start = self._start = size
        return [size] if self._by == "file" or size > self._start else []

    def _take_header(self, buffer: bytearray, base: int, high: int) -> bool:
        low = self._cursor - base
        found = self._scanner.first(buffer, low, high)
        self.header += buffer[low : found if found >= 0 else high]
        if len(self.header) > self._limit_bytes:
            raise self._over_limit()
        if found < 0:
            self._cursor = base + high
            return False
        self.content_start = base + found
        self._limit_bytes -= len(self.header)
        if self._by == "bytes":
            self._count = max(1, min(self._count, self._limit_bytes))
        self._start = self._record_end = self._cursor = base + found
        return True

    def _close(self, end: int, ends: list[int]) -> None:
        if end - self._start > self._limit_bytes:
            raise self._over_limit()
        ends.append(end)
        self._chunks_count += 1
        self._start = self._record_end = end

    def _over_limit(self) -> OverLimit:
        return OverLimit(self._start, self._chunks_count, has_header=bool(self.content_start))

    def _low(self, base: int) -> int:
        """Where to resume scanning: a delimiter may start before the cursor, but not before the last end."""
        return max(self._cursor - self.keep_bytes, self._record_end) - base

    def _cut_bytes(self, buffer: bytearray, base: int, high: int, ends: list[int]) -> None:
        scanner = self._scanner
        while True:
            wanted = self._start + self._count - base
            stop = min(wanted, high)
            if stop > self._cursor - base:
                found = scanner.last(buffer, self._low(base), stop)
                if found >= 0:
                    self._record_end = base + found
                self._cursor = base + stop
            if high <= wanted:
                return
            if self._record_end > self._start:
                self._close(self._record_end, ends)
                continue
            found = scanner.first(buffer, self._low(base), high)
            if found < 0:
                self._cursor = base + high
                return
            self._cursor = base + found
            self._close(self._cursor, ends)

    def _cut_records(self, buffer: bytearray, base: int, high: int, ends: list[int]) -> None:
        while self._cursor < base + high:
            stop = min(self._cursor - base + _WINDOW_BYTES, high)
            found = self._scanner.all(buffer, self._low(base), stop)
            self._cursor = base + stop
            if not found:
                continue
            self._record_end = base + found[-1]
            closed = [base + end for end in found[self._missing - 1 :: self._count]]
            if closed:
                self._close_all(closed)
                ends += closed
                self._missing = self._count - (len(found) - self._missing) % self._count
            else:
                self._missing -= len(found)

    def _close_all(self, closed: list[int]) -> None:
        if max(map(sub, closed, [self._start, *closed])) > self._limit_bytes:
            for end in closed:
                if end - self._start > self._limit_bytes:
                    raise self._over_limit()
                self._start = end
                self._chunks_count += 1
        self._start = closed[-1]
        self._chunks_count += len(closed)


def seek_ends(descriptor: int, size: int, splitting: Splitting, limit_bytes: int) -> Iterator[int]:
    """Yield the chunk ends of a regular file, reading only a little before each possible end.

    Args:
        descriptor: open for reading; its position is not used.
        size: how many bytes of the file to use.
        splitting: a rule with `is_seekable`.
        limit_bytes: the chunk limit.

    Raises:
        OverLimit: a chunk is larger than the chunk limit.

    Cost: per chunk, a read of about one record, whatever the size of the chunk.
    """
    if splitting.by == "file":
        if size > limit_bytes:
            raise OverLimit(0)
        yield size
        return
    start, window = 0, _SEEK_BYTES
    while size - start > splitting.count:
        end, window = _end_before(descriptor, start, start + splitting.count, splitting.delimiter, window)
        if end < 0:
            end = _end_after(
                descriptor, start, start + splitting.count, min(size, start + limit_bytes + 1), splitting.delimiter
            )
        if end - start > limit_bytes:
            raise OverLimit(start)
        yield end
        start = end
    if start < size:
        yield size


def _end_before(descriptor: int, start: int, high: int, delimiter: bytes, window: int) -> tuple[int, int]:
    """Return the end of the last record in (start, high], or -1, and the window that was wide enough."""
    wanted = window
    while True:
        low = max(start, high - wanted)
        found = os.pread(descriptor, high - low, low).rfind(delimiter)
        if found >= 0:
            return low + found + len(delimiter), max(_SEEK_BYTES, wanted // 2) if wanted > window else window
        if low == start:
            return -1, window
        wanted *= 4


def _end_after(descriptor: int, start: int, low: int, size: int, delimiter: bytes) -> int:
    """Return the end of the first record that ends after `low`; `size` if there is none."""
    position = max(start, low - len(delimiter) + 1)
    while piece := os.pread(descriptor, min(_FORWARD_BYTES, size - position), position):
        found = piece.find(delimiter)
        if found >= 0:
            return position + found + len(delimiter)
        if position + len(piece) >= size:
            break
        position += max(len(piece) - len(delimiter) + 1, 1)
    return size

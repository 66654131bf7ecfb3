"""Finds record ends in a buffer: what every scanner does, and the one for records that end with a delimiter.

This file must not read or write anything, and knows nothing about chunks.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from itertools import accumulate
from operator import add

LINE_END = b"\n"


class Scanner(ABC):
    """Finds record ends between two positions of a buffer; each call continues where the last one stopped."""

    keep_bytes = 0
    """How many bytes before the stopping point must still be in the buffer when scanning continues."""

    @property
    def open_line(self) -> int:
        """The line, from 1, of a quote that opened and has not closed yet; 0 if there is none."""
        return 0

    @abstractmethod
    def first(self, buffer: bytearray, low: int, high: int) -> int:
        """Return the first record end in (low, high], or -1; the next call starts at the end found."""

    @abstractmethod
    def last(self, buffer: bytearray, low: int, high: int) -> int:
        """Return the last record end in (low, high], or -1."""

    @abstractmethod
    def all(self, buffer: bytearray, low: int, high: int) -> list[int]:
        """Return every record end in (low, high], ascending. Cost: about 100 ns per record, and a copy of its bytes."""

    def count(self, buffer: bytearray, low: int, high: int) -> tuple[int, int]:
        """Count the record ends in (low, high]; also returns the last one (-1 if none, or if `keep_bytes` is 0)."""
        found = self.all(buffer, low, high)
        return len(found), found[-1] if found else -1


class Delimited(Scanner):
    """Records end with a delimiter."""

    def __init__(self, delimiter: bytes) -> None:
        self._delimiter = delimiter
        self._overlaps = overlaps_itself(delimiter)
        self.keep_bytes = len(delimiter) - 1

    def first(self, buffer: bytearray, low: int, high: int) -> int:
        found = buffer.find(self._delimiter, low, high)
        return found + len(self._delimiter) if found >= 0 else -1

    def last(self, buffer: bytearray, low: int, high: int) -> int:
        if self._overlaps:
            return self.count(buffer, low, high)[1]
        found = buffer.rfind(self._delimiter, low, high)
        return found + len(self._delimiter) if found >= 0 else -1

    def all(self, buffer: bytearray, low: int, high: int) -> list[int]:
        return ends_in(bytes(memoryview(buffer)[low:high]), self._delimiter, low)

    def count(self, buffer: bytearray, low: int, high: int) -> tuple[int, int]:
        if self.keep_bytes == 0:
            return buffer.count(self._delimiter, low, high), -1
        return super().count(buffer, low, high)


class RecordCounter:
    """Counts records as they pass, so that an error can locate itself in the input."""

    def __init__(self, scanner: Scanner) -> None:
        self._scanner = scanner
        self.keep_bytes = scanner.keep_bytes
        self._cursor = 0
        self._record_end = 0
        self.count = 0

    def feed(self, buffer: bytearray, base: int, stop: int) -> None:
        """Count up to offset `stop` of the stream; `buffer` starts at offset `base`, as for `Splitter.feed`."""
        low = max(self._cursor - self.keep_bytes, self._record_end) - base
        passed, last = self._scanner.count(buffer, low, stop - base)
        self.count += passed
        self._cursor = stop
        if last >= 0:
            self._record_end = base + last


def overlaps_itself(delimiter: bytes) -> bool:
    r"""Whether two occurrences of `delimiter` can share bytes, as with `\n\n`."""
    return any(delimiter.startswith(delimiter[shift:]) for shift in range(1, len(delimiter)))


def ends_in(piece: bytes, delimiter: bytes, offset: int) -> list[int]:
    """Return the position after each delimiter in `piece`, plus `offset`, without a Python loop over the records."""
    records = piece.split(delimiter)
    records.pop()
    width = len(delimiter)
    before = range(offset + width, offset + width * (len(records) + 1), width)
    return list(map(add, accumulate(map(len, records)), before))

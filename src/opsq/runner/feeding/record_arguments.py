"""The records of a chunk, and what is run for them: one as an argument, or as many as fit.

This file reads and makes words; it must not start anything.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Mapping, Sequence

from opsq.errors import ContentChanged, ContentMissing, UsageError, WorkFailed
from opsq.runner.feeding.invocation import RECORD, Template
from opsq.runner.feeding.programs import Feeding
from opsq.runner.process.pipes import Range
from opsq.units import counted

_READ_BYTES = 1 << 18
_POINTER_BYTES = 8
_KEPT_BYTES = 4096
"""What xargs leaves of the limit is 2048; the path of the program counts as well."""
_LIMIT_BYTES = 6 << 20
"""Linux allows no more, whatever the limit of the stack is."""
_WORD_BYTES = (128 << 10) - 1 if sys.platform == "linux" else sys.maxsize
"""The longest that a single argument may be, its end not counted."""


def record_template(command: Sequence[str], feeding: Feeding) -> Template:
    """The command for the records of a chunk.

    Raises:
        UsageError: as `PerRecord`.
    """
    template = Template(command, takes_records=True)
    for name in ("{in}", "{out}"):
        if name in template.names:
            raise UsageError(f"{name} is the file of a whole chunk; with --each or --args records are arguments.")
    words = [word for word in command if RECORD in word]
    if feeding.args_count is not None and (len(words) > 1 or any(word != RECORD for word in words)):
        raise UsageError("With --args, {} stands for all records of a batch: it can only be one word of its own.")
    return template


class RecordRuns:
    """The arguments of run after run.

    Args:
        cut: the words, see `Template.cut`.
        batch_count: how many records a run has at most; None: one, which may stand anywhere.
        room_bytes: how long the arguments may be.
    """

    def __init__(self, records: ChunkRecords, cut: list[list[bytes]], batch_count: int | None, room_bytes: int) -> None:
        self.records = records
        self._program = os.fsdecode(cut[0][0])
        self._cut = cut[1:]
        at = next(at for at, pieces in enumerate(self._cut) if len(pieces) > 1)
        self._before: list[str | bytes] = [self._program, *(pieces[0] for pieces in self._cut[:at])]
        self._after = [pieces[0] for pieces in self._cut[at + 1 :]]
        self._is_plain = self._cut[at:] == [[b"", b""]]
        self._batch_count = batch_count
        fixed = [self._program.encode("utf-8", "surrogateescape"), *(piece for pieces in self._cut for piece in pieces)]
        self._room_bytes = room_bytes - sum(_cost_bytes(word) for word in fixed)
        self._last = 0
        self._count = 0
        """How many records the present run has."""
        self._waiting: bytes | None = None
        """A record that did not fit any more."""

    @property
    def where(self) -> str:
        """Which records the present run has, counted from 1 in the chunk."""
        if self._count > 1:
            return f"records {self._last - self._count + 1} to {self._last}"
        return f"record {self._last}"

    def __iter__(self) -> Iterator[Sequence[str | bytes]]:
        return self

    def __next__(self) -> Sequence[str | bytes]:
        if self._batch_count is not None:
            return [*self._before, *self._batch(self._batch_count), *self._after]
        record = next(self.records)
        self._last += 1
        self._count = 1
        if self._is_plain:
            self._check(record, len(record), _cost_bytes(record))
            return [*self._before, record]
        words = [record.join(pieces) for pieces in self._cut]
        self._check(record, max(map(len, words)), sum(map(_cost_bytes, words)))
        return [self._program, *words]

    def _batch(self, limit_count: int) -> list[bytes]:
        batch: list[bytes] = []
        left_bytes = self._room_bytes
        while len(batch) < limit_count:
            record = self._waiting if self._waiting is not None else next(self.records, None)
            self._waiting = None
            if record is None:
                break
            cost_bytes = _cost_bytes(record)
            if cost_bytes > left_bytes and batch:
                self._waiting = record
                break
            self._last += 1
            self._count = 1
            self._check(record, len(record), cost_bytes)
            left_bytes -= cost_bytes
            batch.append(record)
        if not batch:
            raise StopIteration
        self._count = len(batch)
        return batch

    def _check(self, record: bytes, longest_bytes: int, cost_bytes: int) -> None:
        if longest_bytes > _WORD_BYTES or cost_bytes > self._room_bytes:
            limit = min(_WORD_BYTES, self._room_bytes)
            raise WorkFailed(
                f"it is longer than an argument may be: {counted(limit, 'byte')} at most; use stdin, or {{in}}"
            )
        if b"\0" in record:
            raise WorkFailed("it contains a NUL byte, which no argument can hold; -0 makes NUL the end of records")


class ChunkRecords:
    """The records of a chunk, read piece by piece.

    Args:
        content: the chunk; a range may be closed by its owner.
        separator: ends each; what comes after the last one is a record too.
        header_bytes: how many bytes at the beginning of content in memory are no record.

    Raises:
        OSError: no descriptor is left to hold the range open.
    """

    def __init__(self, content: bytes | Range, separator: bytes, header_bytes: int = 0) -> None:
        self._separator = separator
        self._range: Range | None = None
        if isinstance(content, Range):
            self._range = content._replace(fd=os.dup(content.fd))
            self._at, self._end = content.offset, content.offset + content.length
            self._whole: Iterator[bytes] = iter(())
            self._rest = b""
        else:
            *whole, self._rest = content[header_bytes:].split(separator)
            self._whole = iter(whole)

    def __iter__(self) -> Iterator[bytes]:
        return self

    def __next__(self) -> bytes:
        while True:
            for record in self._whole:
                return record
            if self._range is not None and self._at < self._end and len(self._rest) <= _WORD_BYTES:
                self._read(self._range)
                continue
            record, self._rest = self._rest, b""
            if record:
                return record
            raise StopIteration

    def _read(self, source: Range) -> None:
        try:
            piece = os.pread(source.fd, min(_READ_BYTES, self._end - self._at), self._at)
        except OSError as error:
            raise ContentMissing(f"{source.path or 'The input'} cannot be read: {error.strerror}.") from error
        if not piece:
            raise ContentChanged(
                f"{source.path or 'The input'} ends before its chunk does: "
                "it has been truncated since it was submitted."
            )
        self._at += len(piece)
        *whole, self._rest = (self._rest + piece).split(self._separator)
        self._whole = iter(whole)

    def close(self) -> None:
        """Let go of the file; there are no more records then."""
        if self._range is not None:
            os.close(self._range.fd)
        self._range = None


def _cost_bytes(word: bytes) -> int:
    return len(word) + 1 + _POINTER_BYTES


def room_bytes(environment: Mapping[str, str]) -> int:
    """How many bytes arguments may take beside this environment."""
    limit_bytes = min(os.sysconf("SC_ARG_MAX"), _LIMIT_BYTES)
    taken_bytes = sum(
        len(os.fsencode(key)) + len(os.fsencode(value)) + 2 + _POINTER_BYTES for key, value in environment.items()
    )
    return limit_bytes - taken_bytes - _KEPT_BYTES

"""Writes events for other programs as JSON lines, CSV or Parquet, to stdout, a file or a folder of rotated files.

It must not fetch events; the caller passes them in the order of their seqs. Memory is that of a page, or of a Parquet
row group.
"""

from __future__ import annotations

import contextlib
import csv
import fcntl
import io
import os
import re
import sys
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, NamedTuple, Self

import msgspec

from opsq.content.file_io import write_failure
from opsq.content.manifest import InputRange
from opsq.content.output_file import open_output
from opsq.documents.shape import path_text
from opsq.documents.submissions import EventShape, ranges
from opsq.errors import Conflict, UsageError
from opsq.filesystem import is_no_room
from opsq.fsync import sync_descriptor, sync_path
from opsq.users import open_file
from opsq.wire.messages import HistoryEvent

if TYPE_CHECKING:
    from types import TracebackType

FORMATS = ("jsonl", "csv", "parquet")
ROW_GROUP = 50_000
"""Rows of a Parquet row group: about 20 MB of memory while it is assembled."""
_NAME = re.compile(r"history-([0-9]{19})-([0-9]{19})\.(jsonl|csv|parquet)", re.ASCII)


class Known(NamedTuple):
    """What is known of the chunks of events beside the events."""

    metadata: Mapping[int, dict[str, int | str]]
    """By submission."""
    input_ranges: Mapping[int, InputRange]
    """By seq: the input of the first chunk."""
    titles: Mapping[int, str]
    """By submission."""

    def of(self, event: HistoryEvent) -> tuple[dict[str, int | str], InputRange | None, str | None]:
        """What is known of the chunks of one event."""
        submission_id = event.submission_id
        return self.metadata.get(submission_id, {}), self.input_ranges.get(event.seq), self.titles.get(submission_id)


class Writer(ABC):
    """Writes one file."""

    @abstractmethod
    def write(self, events: Sequence[HistoryEvent], known: Known) -> None:
        """Add rows."""

    def close(self) -> None:  # noqa: B027  # most formats have nothing left
        """Write the rest; the file itself stays open."""


# --- formats ---


class JsonLines(Writer):
    """An object a line, as `EventShape`."""

    def __init__(self, out: BinaryIO) -> None:
        self._out = out
        self._encoder = msgspec.json.Encoder()

    def write(self, events: Sequence[HistoryEvent], known: Known) -> None:
        """Add rows."""
        self._out.write(
            self._encoder.encode_lines([EventShape.from_event(event, *known.of(event)) for event in events])
        )


class Csv(Writer):
    """A header line, then a line per row; unknown fields are empty, metadata is a JSON object."""

    def __init__(self, out: BinaryIO) -> None:
        self._out = out
        self._out.write(",".join(COLUMNS).encode() + b"\n")

    def write(self, events: Sequence[HistoryEvent], known: Known) -> None:
        """Add rows."""
        text = io.StringIO(newline="")
        rows = csv.writer(text, lineterminator="\n")
        objects = {
            submission_id: msgspec.json.encode(pairs).decode() for submission_id, pairs in known.metadata.items()
        }
        for event in events:
            shape = EventShape.from_event(event, {}, *known.of(event)[1:])
            fields = dict(zip(COLUMNS, msgspec.structs.astuple(shape), strict=True))
            rows.writerow((fields | {"metadata": objects.get(event.submission_id, "{}")}).values())
        self._out.write(text.getvalue().encode())


class Parquet(Writer):
    """Typed columns, in row groups; see opsq-history(1)."""

    def __init__(self, out: BinaryIO) -> None:
        self._arrow, parquet = _pyarrow()
        self._schema = _schema(self._arrow)
        self._writer = parquet.ParquetWriter(_Counted(out), self._schema, compression="zstd")
        self._rows: list[tuple[HistoryEvent, dict[str, int | str], InputRange | None, str | None]] = []

    def write(self, events: Sequence[HistoryEvent], known: Known) -> None:
        """Add rows."""
        self._rows += [(event, *known.of(event)) for event in events]
        if len(self._rows) >= ROW_GROUP:
            self._flush()

    def close(self) -> None:
        """Write the last row group and the end of the file."""
        if self._rows:
            self._flush()
        self._writer.close()

    def _flush(self) -> None:
        arrow, rows = self._arrow, self._rows
        columns = [arrow.array([_PARQUET[field.name][1](*row) for row in rows], field.type) for field in self._schema]
        self._writer.write_table(arrow.table(columns, schema=self._schema))
        self._rows = []


def _first_index(event: HistoryEvent) -> int | None:
    return event.block * 64 + (event.mask & -event.mask).bit_length() - 1 if event.mask else None


def _micros(wall_ms: int | None) -> int | None:
    return None if wall_ms is None else wall_ms * 1000


_Value = Callable[[HistoryEvent, dict[str, int | str], InputRange | None, str | None], object]

_PARQUET: dict[str, tuple[str, _Value]] = {
    "seq": ("int64", lambda event, *_: event.seq),
    "at": ("instant", lambda event, *_: _micros(event.at)),
    "event": ("string", lambda event, *_: event.event),
    "submission_id": ("int64", lambda event, *_: event.submission_id),
    "first_index": ("int64", lambda event, *_: _first_index(event)),
    "chunks": ("int32", lambda event, *_: event.mask.bit_count()),
    "indexes": ("string", lambda event, *_: ranges(event.block * 64, event.mask)),
    "attempt": ("int32", lambda event, *_: event.attempt),
    "consumer": ("string", lambda event, *_: event.consumer),
    "started_at": ("instant", lambda event, *_: _micros(event.started_at)),
    "wait_s": ("float64", lambda event, *_: event.wait_s),
    "run_s": ("float64", lambda event, *_: event.run_s),
    "run_max_s": ("float64", lambda event, *_: event.run_max_s),
    "exit_status": ("int32", lambda event, *_: event.exit_status),
    "signal": ("int32", lambda event, *_: event.signal),
    "reason": ("string", lambda event, *_: event.reason),
    "metadata": ("pairs", lambda _, pairs, *__: [(key, str(value)) for key, value in pairs.items()]),
    "input": ("string", lambda *row: None if row[2] is None else path_text(row[2].name)),
    "offset": ("int64", lambda *row: None if row[2] is None else row[2].offset_bytes),
    "title": ("string", lambda *row: row[3]),
}
"""The columns, each with its type and what makes its value of an event and of what is known of it."""
_UNKNOWN = {"first_index", "started_at", "exit_status", "signal", "input", "offset", "title"}
COLUMNS = tuple(_PARQUET)
"""The columns of every format, in their order."""


def _schema(arrow: Any) -> Any:
    own = {"instant": arrow.timestamp("us", tz="UTC"), "pairs": arrow.map_(arrow.string(), arrow.string())}
    return arrow.schema(
        [
            arrow.field(name, own.get(kind) or arrow.type_for_alias(kind), nullable=name in _UNKNOWN)
            for name, (kind, _) in _PARQUET.items()
        ]
    )


def _pyarrow() -> tuple[Any, Any]:
    try:
        import pyarrow as pa
        from pyarrow import parquet
    except ImportError as error:
        raise UsageError(
            "Parquet needs pyarrow, which is not installed.", hint="`pip install 'opsq[spark]'` brings it."
        ) from error
    return pa, parquet


class _Counted:
    """A file that cannot seek, such as a pipe, and knows its position, which the Parquet writer asks for."""

    closed = False

    def __init__(self, out: BinaryIO) -> None:
        self._out = out
        self._bytes = 0

    def write(self, content: bytes) -> int:
        """Write."""
        self._out.write(content)
        self._bytes += len(content)
        return len(content)

    def tell(self) -> int:
        """How much was written."""
        return self._bytes

    def flush(self) -> None:
        """Write what the file has buffered."""
        self._out.flush()

    def close(self) -> None:
        """Does nothing: the caller opened the file and closes it."""


_WRITERS: dict[str, Callable[[BinaryIO], Writer]] = {"jsonl": JsonLines, "csv": Csv, "parquet": Parquet}


# --- targets ---


class Target(ABC):
    """Where an export goes, as a context: the file appears when the context ends without an error.

    Attributes:
        rows_count: written so far.
        files: written so far, by path.
        last_seq: of the last row; None before the first.
    """

    is_stdout = False

    def __init__(self, kind: str) -> None:
        self.rows_count = 0
        self.files: list[str] = []
        self.last_seq: int | None = None
        self._make = _WRITERS[kind]
        self._stack = contextlib.ExitStack()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stack.__exit__(kind, error, trace)

    @abstractmethod
    def write(self, events: Sequence[HistoryEvent], known: Known) -> None:
        """Add rows, in the order of their seqs."""

    def _count(self, events: Sequence[HistoryEvent]) -> None:
        if events:
            self.rows_count += len(events)
            self.last_seq = events[-1].seq


class Stream(Target):
    """Stdout, or one file."""

    def __init__(self, kind: str, path: str) -> None:
        super().__init__(kind)
        self.is_stdout = path == "-"
        self._path = path
        if kind == "parquet":
            _pyarrow()  # fail before any event is fetched

    def __enter__(self) -> Self:
        out = sys.stdout.buffer if self.is_stdout else self._stack.enter_context(open_output(self._path))
        writer = self._writer = self._make(out)

        def finish(kind: type[BaseException] | None, *_: object) -> None:
            if kind is None:
                writer.close()
                out.flush()

        self._stack.push(finish)
        if not self.is_stdout:
            self.files.append(self._path)
        return self

    def write(self, events: Sequence[HistoryEvent], known: Known) -> None:
        """Add rows, in the order of their seqs."""
        self._writer.write(events, known)
        self._count(events)


class Folder(Target):
    """Files in a folder, each with the range of its rows in its name; one export at a time."""

    def __init__(self, kind: str, path: str, rotate: int | None, *, is_going_on: bool) -> None:
        super().__init__(kind)
        if kind == "parquet":
            _pyarrow()
        self._path = Path(path)
        self._kind = kind
        self._rotate = rotate
        self._is_going_on = is_going_on
        self._out: BinaryIO | None = None
        self._writer: Writer | None = None
        self._first_seq = 0
        self._left = 0

    def __enter__(self) -> Self:
        self._lock()
        if self._is_going_on:
            ends = [int(match[2]) for name in os.listdir(self._path) if (match := _NAME.fullmatch(name))]
            self.last_seq = max(ends, default=None)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            if kind is None:
                self._finish()
        finally:
            if self._out is not None:
                self._out.close()
            self._part.unlink(missing_ok=True)
            os.close(self._lock_fd)

    @property
    def _part(self) -> Path:
        """The file that is being written; `history-*` does not match it."""
        return self._path / ".history.part"

    def _lock(self) -> None:
        """Lock other exports out. The file of an export that was killed is overwritten."""
        try:
            self._lock_fd = os.open(self._path, os.O_RDONLY | os.O_DIRECTORY)
        except OSError as error:
            raise UsageError(f"{self._path}: {error.strerror}.") from error
        try:
            fcntl.flock(self._lock_fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            os.close(self._lock_fd)
            raise Conflict(
                f"Another export writes to {self._path}.", hint="Wait for it, or choose another folder."
            ) from error

    def write(self, events: Sequence[HistoryEvent], known: Known) -> None:
        """Add rows, in the order of their seqs."""
        try:
            while events:
                if self._writer is None:
                    self._out = os.fdopen(open_file(self._part, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o666), "wb")
                    self._writer = self._make(self._out)
                    self._first_seq, self._left = events[0].seq, self._rotate or 0
                taken = events if self._rotate is None else events[: self._left]
                self._writer.write(taken, known)
                self._count(taken)
                self._left -= len(taken)
                events = events[len(taken) :]
                if self._rotate is not None and not self._left:
                    self._finish()
        except OSError as error:
            if is_no_room(error):
                raise write_failure(str(self._path), error) from error
            raise UsageError(f"{self._path}: {error.strerror}.") from error

    def _finish(self) -> None:
        """Give the file its name."""
        if self._writer is None or self._out is None:
            return
        self._writer.close()
        self._out.flush()
        sync_descriptor(self._out.fileno())
        self._out.close()
        place = self._path / f"history-{self._first_seq:019}-{self.last_seq:019}.{self._kind}"
        self._part.replace(place)
        sync_path(str(self._path))
        self.files.append(str(place))
        self._writer = self._out = None


def target(path: str, kind: str | None, rotate: int | None, *, is_going_on: bool) -> Target:
    """Where an export goes, as options say.

    Raises:
        UsageError: they contradict each other, or pyarrow is missing.
    """
    is_folder = os.path.isdir(path)
    needs_folder = "--rotate" if rotate is not None else "--after-last" if is_going_on else ""
    if needs_folder and not is_folder:
        raise UsageError(
            f"{needs_folder} needs an existing folder: {path} is none.",
            hint="`mkdir` it, and name it with --output.",
        )
    if is_folder:
        return Folder(kind or "jsonl", path, rotate, is_going_on=is_going_on)
    suffix = Path(path).suffix.lstrip(".")
    return Stream(kind or (suffix if suffix in FORMATS else "jsonl"), path)

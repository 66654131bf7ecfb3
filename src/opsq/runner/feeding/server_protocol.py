"""The two ways in which a server is spoken to: a chunk becomes bytes for its stdin, bytes of its stdout become answers.

THE SERVER PROTOCOL in opsq-consume(1) describes both. This file must not know processes, pipes or slots.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from typing import TYPE_CHECKING, Protocol

import msgspec

from opsq.content.record_boundaries import overlaps_itself
from opsq.errors import ContentChanged, UsageError, WorkFailed
from opsq.runner.process.pipes import Capture, Range
from opsq.units import counted

if TYPE_CHECKING:
    from opsq.client.sync.chunk import Chunk

_LINE_BYTES = 128
"""The longest first line of an answer."""
_KEPT_COUNT = 64


class Question(msgspec.Struct):
    """A chunk as a server gets it, and what has come of its answer."""

    source: bytes | Range
    id: bytes
    records_count: int = 0
    """How many records it has; 0 where they are not counted."""
    ends_open: bool = False
    """Its last record came without a separator, so that of the result goes without one too."""
    answer: Capture | None = None


class Asked(Protocol):
    """The questions of one server."""

    def first(self) -> Question | None:
        """The one that was asked first of those that have no answer; None if there is none."""

    def answered(self, status: int) -> None:
        """It has its answer."""


class AnswerReader(Protocol):
    """How one server is spoken to; `hear` remembers where in an answer it is."""

    def hear(self, piece: bytes) -> None:
        """Take what the server has written.

        Raises:
            WorkFailed: it is no answer, or more than was asked for.
            StorageFull, Refused: an answer cannot be kept.
        """


class FrameWriter:
    """Makes frames: a line with length, id, attempt and a JSON object, then the chunk.

    Bytes of an input's name that are not UTF-8 are lone surrogates in the object.

    Args:
        attachment: gives the path of a submission's attachment, or None.
    """

    def __init__(self, attachment: Callable[[int], str | None]) -> None:
        self._attachment = attachment
        self._kept: dict[int, tuple[str | None, bytes, bytes]] = {}

    def question(self, chunk: Chunk, content: bytes | Range, then: str = "") -> Question:
        """The frame of a chunk.

        Args:
            then: where the server may write its follow-ups; "": nowhere.
        """
        _, submission, more = self._of_submission(chunk)
        if then:
            more = b"%b, %b" % (more[:-1], json.dumps({"then": then}).encode()[1:])
        input_range = chunk.input
        if input_range is not None:
            about = json.dumps({"input": input_range.name, "offset": input_range.offset_bytes})
            more = b"%b, %b" % (more[:-1], about.encode()[1:])
        name = b"%b/%d" % (submission, chunk.index)
        if isinstance(content, Range):
            line = b"%d %b %d %b\n" % (len(content.header) + content.length, name, chunk.attempt, more)
            return Question(content._replace(header=line + content.header), name)
        return Question(b"%d %b %d %b\n%b" % (len(content), name, chunk.attempt, more, content), name)

    def _of_submission(self, chunk: Chunk) -> tuple[str | None, bytes, bytes]:
        submission_id = chunk.submission_id
        path = self._attachment(submission_id)
        kept = self._kept.get(submission_id)
        if kept is None or kept[0] != path:
            more = msgspec.json.encode({"metadata": chunk.metadata, "attachment": path})
            kept = (path, str(submission_id).encode(), more)
            if len(self._kept) >= _KEPT_COUNT:
                del self._kept[next(iter(self._kept))]
            self._kept[submission_id] = kept
        return kept


class FrameReader:
    """Hears answers: a line with length, and perhaps status and id, then the result, or the reason of the failure."""

    def __init__(self, asked: Asked) -> None:
        self._asked = asked
        self._rest = b""
        self._status = 0
        self._left_bytes = -1
        """What is missing of an answer whose line was heard; -1: a line comes next."""

    def hear(self, piece: bytes) -> None:
        heard = self._rest + piece if self._rest else piece
        at = 0
        while True:
            if self._left_bytes < 0:
                end = heard.find(b"\n", at)
                if end < 0:
                    self._rest = heard[at:]
                    if len(self._rest) > _LINE_BYTES or (self._rest and self._asked.first() is None):
                        raise _malformed(self._rest)
                    return
                self._begin(heard[at:end])
                at = end + 1
            question = self._asked.first()
            if question is None or question.answer is None:
                raise _malformed(heard[at:])
            body = heard[at : at + self._left_bytes]
            if body:
                question.answer.add(body)
            at += len(body)
            self._left_bytes -= len(body)
            if self._left_bytes:
                self._rest = b""
                return
            self._left_bytes = -1
            self._asked.answered(self._status)

    def _begin(self, line: bytes) -> None:
        question = self._asked.first()
        fields = line.split()
        if question is None or not 1 <= len(fields) <= 3 or not all(map(bytes.isdigit, fields[:2])):
            raise _malformed(line)
        self._left_bytes = int(fields[0])
        self._status = int(fields[1]) if len(fields) > 1 else 0
        if len(fields) > 2 and fields[2] != question.id:
            raise WorkFailed(f"the server answered {_shown(fields[2])} where {question.id.decode()} was asked")
        if self._status > 255 or self._left_bytes > 1 << 62:
            raise _malformed(line)


class RecordWriter:
    """Makes records: the chunk without its header, its last record ended like all others.

    Args:
        separator: ends each record.

    Raises:
        UsageError: it can overlap itself, so where a record ends would depend on the next one.
    """

    def __init__(self, separator: bytes) -> None:
        if overlaps_itself(separator):
            raise UsageError("A delimiter that can overlap itself does not go with --server records.")
        self._separator = separator

    def question(self, chunk: Chunk, content: bytes | Range) -> Question:
        """The records of a chunk.

        Raises:
            ContentChanged: the range cannot be read to its end.
        """
        if isinstance(content, Range):
            records = os.pread(content.fd, content.length, content.offset)
            if len(records) < content.length:
                raise ContentChanged(
                    f"{content.path or 'The input'} ends before its chunk does: "
                    "it has been truncated since it was submitted."
                )
        else:
            header = chunk.header
            records = content[len(header) :] if header else content
        count = records.count(self._separator)
        ends_open = bool(records) and not records.endswith(self._separator)
        if ends_open:
            records += self._separator
        return Question(records, b"", count + ends_open, ends_open)


class RecordReader:
    """Hears as many records as were asked.

    Args:
        separator: ends each.
    """

    def __init__(self, asked: Asked, separator: bytes) -> None:
        self._asked = asked
        self._separator = separator
        self._rest = b""
        self._heard_count = 0

    def hear(self, piece: bytes) -> None:
        if not piece:
            return
        heard = self._rest + piece if self._rest else piece
        question = self._asked.first()
        if question is None or question.answer is None:
            raise _unasked(heard)
        width = len(self._separator)
        count = heard.count(self._separator)
        self._heard_count += count
        if self._heard_count < question.records_count:
            # The beginning of a separator may be the end of what was heard.
            last = heard.rfind(self._separator) + width if count else 0
            end = max(last, len(heard) - width + 1, 0)
            self._rest = heard[end:]
            question.answer.add(heard[:end])
            return
        end = heard.rfind(self._separator) + width
        if self._heard_count > question.records_count or end < len(heard):
            raise WorkFailed(
                f"the server wrote more than the {counted(question.records_count, 'record')} that it was given"
            )
        question.answer.add(heard[: end - width] if question.ends_open else heard)
        self._rest = b""
        self._heard_count = 0
        self._asked.answered(0)


def _malformed(heard: bytes) -> WorkFailed:
    return WorkFailed(f"the server wrote {_shown(heard)} where the first line of an answer was expected")


def _unasked(heard: bytes) -> WorkFailed:
    return WorkFailed(f"the server wrote {_shown(heard)}, which nobody asked for")


def _shown(heard: bytes) -> str:
    return repr(heard[:40])[1:] + ("…" if len(heard) > 40 else "")

"""How servers are spoken to: what is written for a chunk, and what is heard, however the bytes come in pieces."""

from __future__ import annotations

import itertools
import json
import os
from collections import deque
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from opsq.content.manifest import InputRange
from opsq.errors import ContentChanged, UsageError, WorkFailed
from opsq.runner.feeding.server_protocol import (
    AnswerReader,
    FrameReader,
    FrameWriter,
    Question,
    RecordReader,
    RecordWriter,
)
from opsq.runner.process.pipes import Capture, Range


class FakeChunk:
    """As much of a chunk as is told to a server."""

    def __init__(self, submission_id: int = 7, index: int = 3, header: bytes = b"") -> None:
        self.submission_id, self.index, self.attempt = submission_id, index, 2
        self.metadata = {"kind": "preview", "size": 4}
        self.header = header
        self.input: InputRange | None = None


class FakeServer:
    """Questions in order, and the answers that were heard."""

    def __init__(self, questions: list[Question], memory_bytes: int = 1 << 20) -> None:
        for question in questions:
            question.answer = Capture("/tmp", memory_bytes, may_widen=False)
        self.asked = deque(questions)
        self.answers: list[tuple[int, bytes]] = []

    def first(self) -> Question | None:
        """See `Asked`."""
        return self.asked[0] if self.asked else None

    def answered(self, status: int) -> None:
        """See `Asked`."""
        answer = self.asked.popleft().answer
        assert answer is not None
        output = answer.output()
        content = output.memory if output.fd < 0 else os.pread(output.fd, output.length + 1, 0)
        output.close()
        self.answers.append((status, content))


def _hear(language: AnswerReader, said: bytes, cuts: list[int]) -> None:
    places = sorted({0, len(said), *(cut % (len(said) + 1) for cut in cuts)})
    for low, high in itertools.pairwise(places):
        language.hear(said[low:high])


def _framing(path: str | None = None) -> FrameWriter:
    return FrameWriter(lambda submission_id: path)


def _as_chunk(chunk: FakeChunk) -> Any:
    return chunk


# --- frames -----------------------------------------------------------------------------------------------------------


def test_frame_tells_length_id_attempt_and_more() -> None:
    question = _framing("/tmp/a").question(_as_chunk(FakeChunk()), b"one\ntwo\n")
    assert isinstance(question.source, bytes)
    line, _, content = question.source.partition(b"\n")
    length, name, attempt, more = line.split(b" ", 3)
    assert (int(length), name, attempt, content) == (8, b"7/3", b"2", b"one\ntwo\n")
    assert json.loads(more) == {"metadata": {"kind": "preview", "size": 4}, "attachment": "/tmp/a"}


def test_frame_tells_where_the_chunk_comes_from() -> None:
    chunk = FakeChunk()
    chunk.input = InputRange("caf\udce9", 12, 8)
    question = _framing().question(_as_chunk(chunk), b"one\ntwo\n")
    assert isinstance(question.source, bytes)
    more = json.loads(question.source.partition(b"\n")[0].split(b" ", 3)[3])
    assert (more["input"], more["offset"]) == ("caf\udce9", 12)
    assert more["metadata"] == chunk.metadata


def test_frame_of_a_file_counts_its_header() -> None:
    question = _framing().question(_as_chunk(FakeChunk()), Range(5, 10, 100, b"id,name\n"))
    assert isinstance(question.source, Range)
    assert question.source.header.startswith(b"108 7/3 2 {")
    assert question.source.header.endswith(b"}\nid,name\n")
    assert question.source[:3] == (5, 10, 100)


@given(
    answers=st.lists(st.tuples(st.integers(0, 255), st.binary(max_size=60)), max_size=6),
    cuts=st.lists(st.integers(0, 500), max_size=8),
    memory_bytes=st.sampled_from([0, 20, 1000]),
    echoes=st.booleans(),
)
def test_answers_in_frames_are_heard_whatever_the_pieces(
    answers: list[tuple[int, bytes]], cuts: list[int], memory_bytes: int, echoes: bool
) -> None:
    server = FakeServer([Question(b"", b"7/%d" % number) for number in range(len(answers))], memory_bytes)
    said = b"".join(
        b"%d %d" % (len(content), status) + (b" 7/%d\n" % number if echoes else b"\n") + content
        for number, (status, content) in enumerate(answers)
    )
    _hear(FrameReader(server), said, cuts)
    assert server.answers == answers


def test_status_may_be_left_out() -> None:
    server = FakeServer([Question(b"", b"7/0")])
    FrameReader(server).hear(b"2\nok")
    assert server.answers == [(0, b"ok")]


@pytest.mark.parametrize(
    ("said", "match"),
    [
        (b"hello\n", r"wrote 'hello' where the first line"),
        (b"\n", r"wrote '' where"),
        (b"-1\n", "where the first line"),
        (b"1 2 3 4\n", "where the first line"),
        (b"1 256\nx", "wrote '1 256'"),
        (b"99999999999999999999 0\n", "where the first line"),
        (b"x" * 200, r"wrote 'x{40}'… where"),
        (b"2 0 7/4\nok", "answered '7/4' where 7/3 was asked"),
    ],
)
def test_what_is_no_answer_is_told(said: bytes, match: str) -> None:
    with pytest.raises(WorkFailed, match=match):
        FrameReader(FakeServer([Question(b"", b"7/3")])).hear(said)


@pytest.mark.parametrize("said", [b"2\nok2\nok", b"2\nok2", b"2\nokx"])
def test_more_answers_than_questions_are_told(said: bytes) -> None:
    server = FakeServer([Question(b"", b"7/3")])
    with pytest.raises(WorkFailed, match="the server wrote '"):
        FrameReader(server).hear(said)
    assert server.answers == [(0, b"ok")]


# --- records ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("content", "header", "source", "count", "ends_open"),
    [
        (b"", b"", b"", 0, False),
        (b"a\nb\n", b"", b"a\nb\n", 2, False),
        (b"a\nb", b"", b"a\nb\n", 2, True),
        (b"\n\n", b"", b"\n\n", 2, False),
        (b"id\na\n", b"id\n", b"a\n", 1, False),
        (b"id\n", b"id\n", b"", 0, False),
    ],
)
def test_records_are_counted_without_the_header(
    content: bytes, header: bytes, source: bytes, count: int, ends_open: bool
) -> None:
    question = RecordWriter(b"\n").question(_as_chunk(FakeChunk(header=header)), content)
    assert (question.source, question.records_count, question.ends_open) == (source, count, ends_open)


def test_records_of_a_file_are_read(tmp_path: Path) -> None:
    (tmp_path / "in").write_bytes(b"..a\nb")
    fd = os.open(tmp_path / "in", os.O_RDONLY)
    question = RecordWriter(b"\n").question(_as_chunk(FakeChunk()), Range(fd, 2, 3, b"id\n"))
    assert (question.source, question.records_count) == (b"a\nb\n", 2)
    with pytest.raises(ContentChanged, match="ends before its chunk"):
        RecordWriter(b"\n").question(_as_chunk(FakeChunk()), Range(fd, 2, 30))
    os.close(fd)


def test_separator_that_overlaps_itself_is_refused() -> None:
    with pytest.raises(UsageError, match="overlap itself"):
        RecordWriter(b"\n\n")


@given(
    chunks=st.lists(
        st.lists(
            st.binary(max_size=9).map(lambda record: record.replace(b"\n", b"").replace(b"--", b"")),
            min_size=1,
            max_size=5,
        ),
        max_size=4,
    ),
    ends_open=st.booleans(),
    separator=st.sampled_from([b"\n", b"-+"]),
    cuts=st.lists(st.integers(0, 500), max_size=8),
)
def test_as_many_records_as_were_asked_are_an_answer(
    chunks: list[list[bytes]], ends_open: bool, separator: bytes, cuts: list[int]
) -> None:
    """A server in which each record comes out as it went in; each chunk is written when the one before is answered."""
    clean = [[record.replace(separator, b"").replace(separator[:1], b"") for record in records] for records in chunks]
    server = FakeServer([Question(b"", b"", len(records), ends_open) for records in clean])
    language = RecordReader(server, separator)
    for records in clean:
        _hear(language, b"".join(record + separator for record in records), cuts)
    expected = [separator.join(records) + (b"" if ends_open else separator) for records in clean]
    assert server.answers == [(0, content) for content in expected]


@pytest.mark.parametrize(("first", "last"), [(b"", b"a\nb\nc\n"), (b"", b"a\nb\nc"), (b"a\n", b"b\nc\n")])
def test_a_record_too_many_fails_the_chunk(first: bytes, last: bytes) -> None:
    language = RecordReader(FakeServer([Question(b"", b"", 2)]), b"\n")
    language.hear(first)
    with pytest.raises(WorkFailed, match="more than the 2 records"):
        language.hear(last)


def test_records_that_nobody_asked_for_are_told() -> None:
    server = FakeServer([Question(b"", b"", 1)])
    language = RecordReader(server, b"\n")
    language.hear(b"a\n")
    language.hear(b"")
    with pytest.raises(WorkFailed, match="wrote 'b', which nobody asked for"):
        language.hear(b"b")
    assert server.answers == [(0, b"a\n")]

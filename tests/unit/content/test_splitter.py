"""Where chunks end: every rule against a definition simple enough to be obviously right, on any buffer size."""

import csv
import io
import os
import random
from itertools import pairwise
from pathlib import Path

import pyarrow.csv as pyarrow_csv
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from opsq.content import input_chunks
from opsq.content import splitter as splitting_module
from opsq.content.csv_records import CsvDialect
from opsq.content.input_chunks import cut_file, cut_stream, plan
from opsq.content.input_file import open_raw
from opsq.content.splitter import Splitting
from opsq.errors import ChunkTooLarge, InputUnreadable, UsageError

LIMIT = 1 << 20

TEXTS = st.lists(st.sampled_from([b"\n", b"a", b"b", b"\r\n", b"\0", b"\xff", b'"', b",", b"long field "])).map(
    b"".join
)


def plain_records(text: bytes, delimiter: bytes) -> list[bytes]:
    records = [piece + delimiter for piece in text.split(delimiter)]
    records[-1] = records[-1][: -len(delimiter)]
    return [record for record in records if record]


def csv_rows(text: bytes, dialect: CsvDialect) -> tuple[list[list[str]], list[int]]:
    """The rows that Python's `csv` reads, and how many lines it has read after each."""
    lines = [line + "\n" for line in text.decode("latin-1").split("\n")]
    lines[-1] = lines[-1][:-1]
    reader = csv.reader(
        filter(None, lines),
        delimiter=dialect.delimiter.decode(),
        quotechar=dialect.quote.decode() or None,
        quoting=csv.QUOTE_MINIMAL if dialect.quote else csv.QUOTE_NONE,
        escapechar=dialect.escape.decode() or None,
    )
    rows, ends = [], []
    for row in reader:
        rows.append(row)
        ends.append(reader.line_num)
    return rows, ends


def csv_records(text: bytes, dialect: CsvDialect) -> list[bytes] | None:
    """The records of a CSV; None if a quote never closes: then a line behind it is still in quotes."""
    if csv_rows(text + b"\n\nbehind", dialect)[0][-1] != ["behind"]:
        return None
    lines = plain_records(text, b"\n")
    return [b"".join(lines[low:high]) for low, high in pairwise([0, *csv_rows(text, dialect)[1]])]


def by_bytes(records: list[bytes], count: int) -> list[bytes]:
    chunks: list[bytes] = []
    for record in records:
        if chunks and len(chunks[-1]) + len(record) <= count:
            chunks[-1] += record
        else:
            chunks.append(record)
    return chunks


def by_records(records: list[bytes], count: int) -> list[bytes]:
    return [b"".join(records[first : first + count]) for first in range(0, len(records), count)]


class Pipe(io.BytesIO):
    """A stream that cannot seek and gives at most three bytes at a time."""

    def seekable(self) -> bool:
        return False

    def readinto(self, buffer: memoryview) -> int:
        return super().readinto(buffer[:3])


def chunks_of(
    stream: io.BytesIO, rule: Splitting, limit_bytes: int = LIMIT, buffer_bytes: int = 1 << 16
) -> list[bytes]:
    """All chunks of a stream, through a buffer of the size given."""
    content, ends = bytearray(), []
    buffer = bytearray(buffer_bytes + len(rule.delimiter) - 1)
    for cut in cut_stream(stream, "input", rule, limit_bytes, buffer):
        content += cut.content
        ends += cut.ends
    return [bytes(content[low:high]) for low, high in pairwise([0, *ends])]


@given(
    text=TEXTS,
    count=st.integers(1, 40),
    buffer_bytes=st.integers(1, 20),
    delimiter=st.sampled_from([b"\n", b"\0", b"a", b"\r\n", b"ab"]),
)
@settings(max_examples=400)
def test_chunks_by_bytes_are_the_longest_runs_of_records_that_fit(
    text: bytes, count: int, buffer_bytes: int, delimiter: bytes
) -> None:
    rule = Splitting(count=count, delimiter=delimiter)
    expected = by_bytes(plain_records(text, delimiter), count)
    assert chunks_of(io.BytesIO(text), rule, buffer_bytes=buffer_bytes) == expected
    assert chunks_of(Pipe(text), rule, buffer_bytes=buffer_bytes) == expected


@given(
    text=TEXTS,
    count=st.integers(1, 9),
    buffer_bytes=st.integers(1, 20),
    delimiter=st.sampled_from([b"\n", b"\0", b"\r\n", b"aa", b"aba"]),
)
@example(text=b"a\n" * 9, count=2, buffer_bytes=6, delimiter=b"\n")
@settings(max_examples=400)
def test_chunks_by_records_have_that_many_records(text: bytes, count: int, buffer_bytes: int, delimiter: bytes) -> None:
    rule = Splitting(by="records", count=count, delimiter=delimiter)
    expected = by_records(plain_records(text, delimiter), count)
    assert chunks_of(io.BytesIO(text), rule, buffer_bytes=buffer_bytes) == expected


@given(
    text=st.lists(st.sampled_from([b"\n", b"a"])).map(b"".join), count=st.integers(1, 9), buffer_bytes=st.integers(1, 9)
)
@example(text=b"a\n\n\na", count=3, buffer_bytes=9)
@settings(max_examples=400)
def test_a_delimiter_that_overlaps_itself_is_taken_leftmost_first(text: bytes, count: int, buffer_bytes: int) -> None:
    for delimiter in (b"\n\n", b"\na\n"):
        records = plain_records(text, delimiter)
        by_size = chunks_of(io.BytesIO(text), Splitting(count=count, delimiter=delimiter), buffer_bytes=buffer_bytes)
        assert by_size == by_bytes(records, count)


CSV_TEXTS = st.lists(
    st.sampled_from([b"\n", b"a", b"\r\n", b"\0", b"\xff", b'"', b'"', b",", b'",', b'\n"', b";", b"\\", b"field "]),
    max_size=24,
).map(b"".join)
DIALECTS = [CsvDialect(), CsvDialect(b";", b"'", b"\\"), CsvDialect(escape=b"\\"), CsvDialect(quote=b"")]


@given(
    text=CSV_TEXTS,
    dialect=st.sampled_from(DIALECTS),
    count=st.integers(1, 30),
    buffer_bytes=st.integers(1, 20),
    by=st.sampled_from(["bytes", "records"]),
)
@example(text=b'\\\n"', dialect=DIALECTS[1], count=1, buffer_bytes=9, by="bytes")
@settings(max_examples=600)
def test_csv_records_end_where_python_reads_them_and_the_header_is_set_apart(
    text: bytes, dialect: CsvDialect, count: int, buffer_bytes: int, by: str
) -> None:
    text = text.replace(b'"', dialect.quote or b'"')
    rule = Splitting(by=by, count=count, csv_header=True, dialect=dialect)
    records = csv_records(text, dialect)
    if records is None:
        with pytest.raises(InputUnreadable, match="never closed"):
            chunks_of(io.BytesIO(text), rule, buffer_bytes=buffer_bytes)
        return
    group = by_bytes if by == "bytes" else by_records
    assert chunks_of(io.BytesIO(text), rule, buffer_bytes=buffer_bytes) == group(records[1:], count)
    cuts = list(cut_stream(io.BytesIO(text), "input", rule, LIMIT, bytearray(buffer_bytes)))
    assert cuts[-1].header == b"".join(records[:1])


@pytest.mark.parametrize(("by", "count"), [("bytes", 1), ("bytes", 9), ("records", 1), ("records", 3)])
def test_a_quote_that_never_closes_is_reported_with_its_line(by: str, count: int) -> None:
    rule = Splitting(by=by, count=count, csv_header=True)
    text = b'size,name\n"1\n2",a\n3,5" pipe\n4,"open\n' + b"5,b\n" * 9
    for buffer_bytes in (1, 7, 64, 4096):
        with pytest.raises(InputUnreadable, match="opens in line 5 of input is never closed"):
            chunks_of(Pipe(text), rule, buffer_bytes=buffer_bytes)


@pytest.mark.parametrize("by", ["bytes", "records"])
def test_a_lone_quote_inside_a_field_is_text(by: str) -> None:
    text = b'length "in",name\n5" pipe,a\nb,"6"" pipe"\n"c" "d\ne,f\n'
    rule = Splitting(by=by, count=1, csv_header=True)
    assert chunks_of(io.BytesIO(text), rule) == [b'5" pipe,a\n', b'b,"6"" pipe"\n', b'"c" "d\n', b"e,f\n"]


def test_an_escaped_quote_does_not_close() -> None:
    text = b'a,b\n"x\\"\ny",1\n2,\\"\n'
    rule = Splitting(by="records", count=1, csv_header=True, dialect=CsvDialect(escape=b"\\"))
    assert chunks_of(io.BytesIO(text), rule) == [b'"x\\"\ny",1\n', b'2,\\"\n']


def test_a_field_of_ten_million_bytes_and_a_byte_order_mark_are_read() -> None:
    text = b'\xef\xbb\xbf"a\nb",c\n"' + b"x\n" * 5_000_000 + b'",1\n2,3\n'
    rule = Splitting(by="records", count=1, csv_header=True)
    header = b'\xef\xbb\xbf"a\nb",c\n'
    assert [len(chunk) for chunk in chunks_of(io.BytesIO(text), rule, 64 << 20)] == [10_000_005, 4]
    assert list(cut_stream(io.BytesIO(text), "input", rule, 64 << 20))[-1].header == header


@pytest.mark.parametrize("dialect", DIALECTS[:3])
def test_chunks_of_odd_tables_hold_the_rows_that_pyarrow_reads(dialect: CsvDialect) -> None:
    quote, delimiter = dialect.quote, dialect.delimiter
    fields = [b"a", b"", b"5" + quote + b" pipe", quote + b"x\r\ny" + quote, 3 * quote + b"z" + 3 * quote]
    fields += [quote + delimiter + quote, quote + b"\n" + quote, quote + quote]
    fields += [b"e\\" + delimiter + b"f", quote + b"g\\" + quote + b"\n" + quote] if dialect.escape else []
    choose = random.Random(7)
    rows = [b"one" + delimiter + b"two"]
    rows += [choose.choice(fields) + delimiter + choose.choice(fields) for _ in range(2000)]
    text = b"\n".join(rows) + b"\n"

    def read(table: bytes) -> list[dict[str, str]]:
        parse = pyarrow_csv.ParseOptions(
            delimiter=delimiter.decode(),
            quote_char=quote.decode(),
            escape_char=dialect.escape.decode() or False,
            newlines_in_values=True,
            ignore_empty_lines=False,
        )
        convert = pyarrow_csv.ConvertOptions(column_types={"one": "string", "two": "string"})
        return pyarrow_csv.read_csv(io.BytesIO(table), parse_options=parse, convert_options=convert).to_pylist()

    for rule in (
        Splitting(count=300, csv_header=True, dialect=dialect),
        Splitting(by="records", count=7, csv_header=True, dialect=dialect),
    ):
        chunks = chunks_of(io.BytesIO(text), rule)
        assert len(chunks) > 20
        assert [row for chunk in chunks for row in read(rows[0] + b"\n" + chunk)] == read(text)


@given(
    text=TEXTS,
    count=st.integers(1, 40),
    by=st.sampled_from(["bytes", "records", "file"]),
    delimiter=st.sampled_from([b"\n", b"\r\n", b"\n\n"]),
)
@settings(max_examples=200, deadline=None)
def test_a_file_in_place_is_cut_as_its_copy_would_be(
    tmp_path_factory: pytest.TempPathFactory, text: bytes, count: int, by: str, delimiter: bytes
) -> None:
    path = tmp_path_factory.getbasetemp() / "in_place"
    path.write_bytes(text)
    rule = Splitting(by=by, count=count, delimiter=delimiter)
    with open_raw(path) as file, pytest.MonkeyPatch.context() as patch:
        patch.setattr(splitting_module, "_SEEK_BYTES", 2)
        patch.setattr(splitting_module, "_FORWARD_BYTES", 3)
        found = [end for cut in cut_file(file, "input", rule, LIMIT) for end in cut.ends]
    expected = [end for cut in cut_stream(io.BytesIO(text), "input", rule, LIMIT) for end in cut.ends]
    assert found == expected


def test_per_file_gives_one_chunk_also_for_an_empty_file() -> None:
    assert chunks_of(io.BytesIO(b"a\nb\n"), Splitting(by="file")) == [b"a\nb\n"]
    assert chunks_of(io.BytesIO(b""), Splitting(by="file")) == [b""]


@pytest.mark.parametrize("rule", [Splitting(), Splitting(by="records", count=2), Splitting(csv_header=True)])
def test_an_empty_input_has_no_chunks(rule: Splitting) -> None:
    assert chunks_of(io.BytesIO(b""), rule) == []


def test_a_header_alone_has_no_chunks() -> None:
    assert chunks_of(io.BytesIO(b"a,b"), Splitting(csv_header=True)) == []


@pytest.mark.parametrize("stream", [io.BytesIO, Pipe])
@pytest.mark.parametrize("buffer_bytes", [7, 1 << 16])
def test_a_record_over_the_limit_is_refused_with_its_number(stream: type[io.BytesIO], buffer_bytes: int) -> None:
    text = b"one\ntwo\n" + b"x" * 50 + b"\nfour\n"
    with pytest.raises(ChunkTooLarge, match=r"Line 3 of input exceeds the chunk limit of 40 bytes"):
        chunks_of(stream(text), Splitting(count=8), 40, buffer_bytes)
    with pytest.raises(ChunkTooLarge, match=r"Record 3 of input"):
        chunks_of(stream(text.replace(b"\n", b"\0")), Splitting(count=8, delimiter=b"\0"), 40, buffer_bytes)
    with pytest.raises(ChunkTooLarge, match=r"Line 3 of input"):
        chunks_of(stream(text), Splitting(by="records", count=1), 40, buffer_bytes)
    with pytest.raises(ChunkTooLarge, match=r"The 2 lines of input that start at line 3 exceed"):
        chunks_of(stream(text), Splitting(by="records", count=2), 40, buffer_bytes)
    with pytest.raises(ChunkTooLarge, match=r"input exceeds the chunk limit"):
        chunks_of(stream(text), Splitting(by="file"), 40, buffer_bytes)
    with pytest.raises(ChunkTooLarge, match=r"Record 3 of input"):
        chunks_of(stream(b'h\n"\n"\n"' + b"\n" * 50 + b'"\n'), Splitting(count=8, csv_header=True), 40, buffer_bytes)


def test_a_record_of_exactly_the_limit_is_a_chunk() -> None:
    text = b"x" * 39 + b"\n" + b"y" * 40
    assert chunks_of(io.BytesIO(text), Splitting(count=8), 40) == [b"x" * 39 + b"\n", b"y" * 40]


def test_a_file_in_place_names_the_record_over_the_limit(tmp_path: Path) -> None:
    path = tmp_path / "input"
    path.write_bytes(b"one\ntwo\n" + b"x" * 50 + b"\nfour\n")
    for rule in (Splitting(count=8), Splitting(by="records", count=1)):
        with open_raw(path) as file, pytest.raises(ChunkTooLarge, match="Line 3 of input"):
            list(cut_file(file, "input", rule, 40))
    with open_raw(path) as file, pytest.raises(ChunkTooLarge, match="input exceeds"):
        list(cut_file(file, "input", Splitting(by="file"), 40))


def test_rules_that_make_no_sense_are_refused() -> None:
    for arguments in (
        {"count": 0},
        {"delimiter": b""},
        {"delimiter": b"x" * 2000},
        {"csv_header": True, "delimiter": b"\0"},
        {"csv_header": True, "by": "file"},
    ):
        with pytest.raises(UsageError):
            Splitting(**arguments)
    with pytest.raises(UsageError, match="exceed the chunk limit"):
        chunks_of(io.BytesIO(b"a"), Splitting(count=41), 40)


def test_unreadable_inputs_are_named(tmp_path: Path) -> None:
    for path, reason in (
        (tmp_path / "absent", "No such file"),
        (tmp_path, "directory"),
        ("a\0b", "not a valid file name"),
    ):
        with pytest.raises(InputUnreadable, match=reason):
            open_raw(path)


def test_a_stream_that_became_non_blocking_is_read_to_its_end(monkeypatch: pytest.MonkeyPatch) -> None:
    """Another process that shares a terminal or pipe may switch it; that must not look like the end of the input."""
    reader, writer = os.pipe()
    os.set_blocking(reader, False)
    wait, pieces = input_chunks._wait_readable, [b"a\n", b"b\n"]

    def write_and_wait(stream: io.FileIO) -> None:
        os.write(writer, pieces.pop(0))
        if not pieces:
            os.close(writer)
        wait(stream)

    monkeypatch.setattr(input_chunks, "_wait_readable", write_and_wait)
    with io.FileIO(reader, "rb") as stream:
        assert b"".join(bytes(cut.content) for cut in cut_stream(stream, "input", Splitting(), LIMIT)) == b"a\nb\n"


def test_plan_tells_what_a_submission_would_be(tmp_path: Path) -> None:
    path = tmp_path / "input"
    path.write_bytes(b"h\nabc\nde\n")
    with open_raw(path) as file:
        told = plan(
            [("first", file), ("second", io.BytesIO(b"h\nxyz1\n"))], Splitting(by="records", count=1, csv_header=True)
        )
    assert (told.chunks_count, told.total_bytes, told.smallest_bytes, told.largest_bytes) == (3, 12, 3, 5)
    assert told.first == [("first", 2, 4), ("first", 6, 3), ("second", 2, 5)]
    assert told.header == b"h\n"
    with open_raw(path) as file:
        assert plan([("first", file)], Splitting(count=6), first_count=1).first == [("first", 0, 6)]


def test_inputs_with_different_headers_are_refused() -> None:
    rule = Splitting(csv_header=True)
    with pytest.raises(InputUnreadable, match="The header of second differs from that of first"):
        plan([("first", io.BytesIO(b"a\n1\n")), ("second", io.BytesIO(b"b\n2\n"))], rule)
    assert plan([("first", io.BytesIO(b"a\n1\n")), ("empty", io.BytesIO(b""))], rule).chunks_count == 1

"""One header for all results, and a line end behind each."""

from __future__ import annotations

import csv
import io
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from opsq.content.csv_records import CsvDialect
from opsq.content.local_store import LocalStore
from opsq.content.result_joiner import Result, join_results
from opsq.content.result_objects import ResultWriter
from opsq.content.result_shaping import ResultShaping

FOLDER = "00112233445566778899aabbccddeeff"
CSV = CsvDialect()


@pytest.fixture(params=["in the database", "in the store"])
def kept(request: pytest.FixtureRequest, tmp_path: Path) -> Kept:
    return Kept(LocalStore(tmp_path / "content"), is_stored=request.param == "in the store")


class Kept:
    """Results, kept where small or where large ones are."""

    def __init__(self, store: LocalStore, *, is_stored: bool) -> None:
        self._store = store
        self._is_stored = is_stored

    def shaped(self, shaping: ResultShaping, *contents: bytes) -> bytes:
        """What comes out of results with these contents."""
        results: list[Result] = list(contents)
        if self._is_stored:
            writer = ResultWriter(self._store, FOLDER, "consumer")
            results = [tuple(writer.append(content)) if content else content for content in contents]  # type: ignore[misc]
            writer.sync()
        out = io.BytesIO()
        join_results(shaping.apply(results, self._store, FOLDER), self._store, FOLDER, out)
        return out.getvalue()


@pytest.mark.parametrize(
    ("contents", "expected"),
    [
        ((b"h\n1\n", b"h\n2\n", b"h\n3\n"), b"h\n1\n2\n3\n"),
        ((b"h\r\n1\r\n", b"h\r\n2\r\n"), b"h\r\n1\r\n2\r\n"),
        ((b"h\n1\n", b"h\n\n2\n"), b"h\n1\n\n2\n"),
        ((b"h\n1\n", b"h\n", b"h", b"", b"h\n4\n"), b"h\n1\n4\n"),
        ((b"", b"h\n1\n", b"h\n2\n"), b"h\n1\n2\n"),
        ((b"h\n1\n", b"hh\n2\n", b"2\nh\n"), b"h\n1\nhh\n2\n2\nh\n"),
        ((b'"a\nb",c\n1\n', b'"a\nb",c\n2\n'), b'"a\nb",c\n1\n2\n'),
        ((b"h" * 200_000 + b"\n1\n", b"h" * 200_000 + b"\n2\n"), b"h" * 200_000 + b"\n1\n2\n"),
    ],
)
def test_header_is_written_once(kept: Kept, contents: tuple[bytes, ...], expected: bytes) -> None:
    assert kept.shaped(ResultShaping(header_once=CSV), *contents) == expected


def test_header_is_read_in_its_dialect(kept: Kept) -> None:
    shaping = ResultShaping(header_once=CsvDialect(delimiter=b";", quote=b"'"))
    assert kept.shaped(shaping, b"a;'\n'\n1\n", b"a;'\n'\n2\n") == b"a;'\n'\n1\n2\n"


def test_each_result_ends_with_a_line_end(kept: Kept) -> None:
    shaping = ResultShaping(ends_lines=True)
    assert kept.shaped(shaping, b"a", b"b\n", b"", b"c\r\n", b"d") == b"a\nb\nc\r\nd\n"


def test_nothing_is_done_unless_it_is_asked_for(kept: Kept) -> None:
    assert kept.shaped(ResultShaping(), b"h\n1", b"h\n2") == b"h\n1h\n2"


CELLS = st.text(st.sampled_from('ab",\n;'), max_size=4)


@settings(max_examples=200)
@given(st.data())
def test_rows_of_all_results_come_out_under_one_header(data: st.DataObject) -> None:
    width = data.draw(st.integers(1, 3))
    row = st.lists(CELLS, min_size=width, max_size=width).filter(any)
    header, *tables = data.draw(st.tuples(row, st.lists(row), st.lists(row), st.lists(row)))
    contents = []
    for table in tables:
        out = io.StringIO()
        csv.writer(out, lineterminator="\n").writerows([header, *table])
        contents.append(out.getvalue().encode())
    store = LocalStore(Path("unused"))
    shaping = ResultShaping(header_once=CSV, ends_lines=True)
    whole = b"".join(bytes(piece) for piece in shaping.apply(contents, store, FOLDER) if isinstance(piece, bytes))
    read = list(csv.reader(io.StringIO(whole.decode(), newline="")))
    assert read == [header, *(each for table in tables for each in table)]

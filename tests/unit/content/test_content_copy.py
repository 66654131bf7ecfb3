"""A copied content reads like the one that it was copied from, and its chunks have the same inputs."""

from __future__ import annotations

import io
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from opsq.content.chunk_reader import ChunkReader
from opsq.content.content_copy import copy_chunks, plan_of_copy
from opsq.content.content_writer import ContentWriter
from opsq.content.local_store import LocalStore
from opsq.content.manifest import Content, decode, encode, read_about
from opsq.content.splitter import Splitting

SOURCE, COPY = "00112233445566778899aabbccddeeff", "ffeeddccbbaa99887766554433221100"


@pytest.fixture
def store(tmp_path: Path) -> LocalStore:
    return LocalStore(tmp_path / "content")


def copied(store: LocalStore, content: Content) -> tuple[ChunkReader, ChunkReader]:
    """Readers of a content and of its copy."""
    source = ChunkReader(store, content)
    with ContentWriter(store, COPY, is_durable=False) as writer:
        copy_chunks(source, writer)
        return source, ChunkReader(store, decode(encode(writer.finish())))


def all_of(reader: ChunkReader) -> list[object]:
    """Each chunk with its input."""
    return [(reader.read(index), reader.input_of(index)) for index in range(reader.content.chunks_count)]


@given(
    st.lists(st.tuples(st.sampled_from(["a", "b", "-"]), st.lists(st.binary(max_size=9), max_size=9)), max_size=9),
    st.integers(1, 9),
    st.booleans(),
)
def test_chunks_header_and_inputs_are_those_of_the_source(
    tmp_path_factory: pytest.TempPathFactory, files: list[tuple[str, list[bytes]]], lines: int, has_header: bool
):
    store = LocalStore(tmp_path_factory.mktemp("store"))
    splitting = Splitting("records", lines, csv_header=has_header)
    with ContentWriter(store, SOURCE, is_durable=False) as writer:
        for name, records in files:
            plain = [record.translate(None, b'\n\r"') for record in records]
            stream = io.BytesIO(b"".join(record + b"\n" for record in [b"h", *plain]))
            writer.write_stream(stream, splitting, name)
        content = writer.finish()
    source, copy = copied(store, content)
    assert all_of(copy) == all_of(source)
    assert (copy.header, copy.content.total_bytes) == (source.header, source.content.total_bytes)
    planned = plan_of_copy(source)
    assert (planned.chunks_count, planned.total_bytes) == (content.chunks_count, content.total_bytes)
    assert planned.first == [source.input_of(index) for index in range(min(10, content.chunks_count))]


def test_file_in_place_is_copied_and_named(store: LocalStore, tmp_path: Path):
    (tmp_path / "in").write_bytes(b"1\n22\n")
    with ContentWriter(store, SOURCE) as writer:
        writer.add_in_place(tmp_path / "in", Splitting("records", 1))
        source, copy = copied(store, writer.finish())
        expected = all_of(source)
    (tmp_path / "in").unlink()
    assert all_of(copy) == expected
    assert [(found.name, found.offset_bytes) for _, found in expected] == [  # type: ignore[misc, attr-defined]
        (str(tmp_path / "in"), 0),
        (str(tmp_path / "in"), 2),
    ]


@pytest.mark.parametrize("size", [3, 9_000])
def test_format_and_header_of_any_length_are_kept(store: LocalStore, size: int):
    with ContentWriter(store, SOURCE, is_durable=False) as writer:
        writer.take_format(b"h" * size, b"a" * size)
        writer.add_chunk(b"1")
        source, copy = copied(store, writer.finish())
    assert (copy.read(0), copy.input_of(0)) == (b"h" * size + b"1", None)
    assert read_about(store, copy.content) == read_about(store, source.content) == b"a" * size
    alike = replace(copy.content, folder=SOURCE)
    assert alike == source.content

"""Content written by many processes reads like any other, and no writer touches the part of another."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from opsq.content.chunk_reader import ChunkReader
from opsq.content.local_store import LocalStore
from opsq.content.manifest import decode, encode, read_about
from opsq.content.multipart import PartWriter, WrittenPart, compose, digest_of
from opsq.errors import ChunkTooLarge

FOLDER = "00112233445566778899aabbccddeeff"


@pytest.fixture
def store(tmp_path: Path) -> LocalStore:
    return LocalStore(tmp_path / "content")


def write(store: LocalStore, chunks: list[bytes], stem: str = "part-0") -> WrittenPart | None:
    with PartWriter(store, FOLDER, stem, is_durable=False) as writer:
        for chunk in chunks:
            writer.add_chunk(chunk)
        return writer.finish()


def read_all(store: LocalStore, content: bytes) -> list[bytes]:
    reader = ChunkReader(store, decode(content))
    return [reader.read(index) for index in range(reader.content.chunks_count)]


@given(st.lists(st.lists(st.binary(max_size=40), max_size=8), max_size=6))
def test_parts_come_back_chunk_by_chunk_in_the_order_given(
    tmp_path_factory: pytest.TempPathFactory, parts: list[list[bytes]]
):
    store = LocalStore(tmp_path_factory.mktemp("store"))
    written = [part for chunks in parts if (part := write(store, chunks)) is not None]
    content = encode(compose(store, FOLDER, written, is_durable=False))
    assert read_all(store, content) == [chunk for chunks in parts for chunk in chunks]


def test_many_parts_and_chunks_go_into_tables(store: LocalStore):
    parts = [[b"%d.%d" % (part, chunk) for chunk in range(3)] for part in range(1500)]
    written = [part for chunks in parts if (part := write(store, chunks)) is not None]
    content = compose(store, FOLDER, written, header=b"h" * 9000, about=b"a" * 9000, is_durable=False)
    assert len(encode(content)) < 4096
    assert read_about(store, content) == b"a" * 9000
    assert read_all(store, encode(content)) == [b"h" * 9000 + chunk for chunks in parts for chunk in chunks]


def test_large_chunks_and_small_ones_keep_their_order(store: LocalStore):
    chunks = [b"a", b"b" * (3 << 20), b"", b"c" * 700_000, b"d" * 700_000, b"e"]
    part = write(store, chunks)
    assert part is not None
    assert read_all(store, encode(compose(store, FOLDER, [part], is_durable=False))) == chunks


def test_no_chunks_at_all_need_no_store(store: LocalStore):
    assert write(store, []) is None
    content = compose(store, FOLDER, [], about=b"schema", is_durable=False)
    assert (content.chunks_count, read_about(store, content)) == (0, b"schema")
    assert list(store.folders()) == []


def test_a_part_that_is_not_finished_leaves_nothing(store: LocalStore):
    kept = write(store, [b"kept"])
    with PartWriter(store, FOLDER, "part-0", chunk_limit_bytes=2 << 20, is_durable=False) as writer:
        writer.add_chunk(b"x" * (2 << 20))
        with pytest.raises(ChunkTooLarge, match="exceeds the chunk limit of 2097152 bytes"):
            writer.add_chunk(b"x" * (2 << 20) + b"y")
    assert kept is not None
    assert list(store.objects(FOLDER)) == [kept.name]


def test_attempts_at_the_same_work_never_share_a_name(store: LocalStore):
    first, second = write(store, [b"x"]), write(store, [b"x"])
    assert first is not None
    assert second is not None
    assert first.name != second.name
    assert digest_of([first]) == digest_of([second])


def test_digest_tells_where_chunks_end(store: LocalStore):
    found = {digest_of([part]) for chunks in ([b"ab", b"c"], [b"a", b"bc"], [b"abc"]) if (part := write(store, chunks))}
    assert len(found) == 3


def test_old_descriptions_have_no_about(store: LocalStore):
    import msgspec

    old = msgspec.msgpack.encode(msgspec.msgpack.decode(encode(compose(store, FOLDER, [])))[:12])
    assert read_about(store, decode(old)) == b""

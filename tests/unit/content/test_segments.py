"""A stream that is cut into segments: the same chunks as in one piece, whatever the sizes."""

import io
import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from opsq.content import input_chunks, segments
from opsq.content.chunk_reader import ChunkReader
from opsq.content.content_writer import ContentWriter
from opsq.content.local_store import LocalStore
from opsq.content.segments import cut_segments
from opsq.content.splitter import Splitting
from opsq.errors import InputUnreadable

TEXTS = st.lists(st.sampled_from([b"\n", b"a", b"bc\n", b"\r\n", b"\0", b'"x\ny"', b","])).map(b"".join)
RULES = st.one_of(
    st.builds(
        Splitting,
        by=st.sampled_from(["bytes", "records", "file"]),
        count=st.integers(1, 9),
        delimiter=st.sampled_from([b"\n", b"\0"]),
    ),
    st.builds(Splitting, by=st.sampled_from(["bytes", "records"]), count=st.integers(1, 9), csv_header=st.just(True)),
)


def chunks_of(root: Path, text: bytes, rule: Splitting) -> list[list[bytes]]:
    """The chunks of each segment."""
    store = LocalStore(root)
    found = []
    for content in cut_segments(io.BytesIO(text), "text", rule, lambda: ContentWriter(store, os.urandom(16).hex())):
        reader = ChunkReader(store, content)
        found.append([reader.read(index) for index in range(content.chunks_count)])
        for index, chunk in enumerate(found[-1]):
            place = reader.input_of(index)
            assert place is not None
            _, offset, size = place
            assert reader.header + text[offset : offset + size] == chunk
    return found


@given(text=TEXTS, rule=RULES, leg_bytes=st.integers(1, 12), read_bytes=st.integers(2, 9))
@settings(max_examples=200, deadline=None)
def test_chunks_of_all_legs_are_those_of_the_whole(
    tmp_path_factory: pytest.TempPathFactory, text: bytes, rule: Splitting, leg_bytes: int, read_bytes: int
) -> None:
    root = tmp_path_factory.mktemp("segments")
    [whole] = chunks_of(root, text, rule)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(segments, "FIRST_BYTES", leg_bytes)
        patch.setattr(input_chunks, "READ_BYTES", read_bytes)
        found = chunks_of(root, text, rule)
    assert [chunk for segment in found for chunk in segment] == whole
    assert len(found) == 1 or all(found)


def test_leg_is_given_before_the_stream_is_read_to_its_end(tmp_path: Path) -> None:
    """Whoever reads the segments can begin while the rest is still to come."""
    read: list[int] = []

    class Slow(io.RawIOBase):
        def readinto(self, buffer: memoryview) -> int:  # type: ignore[override]
            if len(read) == 100:
                return 0
            read.append(1)
            buffer[:] = b"x\n" * (len(buffer) // 2) + b"\n" * (len(buffer) % 2)
            return len(buffer)

    store = LocalStore(tmp_path)
    found = cut_segments(Slow(), "slow", Splitting(), lambda: ContentWriter(store, os.urandom(16).hex()))
    first = next(found)
    assert first.total_bytes >= segments.FIRST_BYTES
    assert len(read) < 10
    sizes = [first.total_bytes, *(segment.total_bytes for segment in found)]
    assert sum(sizes) >= 99 << 20
    assert max(sizes) <= segments.LARGEST_BYTES + input_chunks.READ_BYTES


def test_stream_that_breaks_leaves_nothing_of_the_leg_under_way(tmp_path: Path) -> None:
    """What was given stays."""

    class Broken(io.RawIOBase):
        def __init__(self) -> None:
            self.pieces: Iterator[bytes] = iter([b"x\n" * 500_000] * 12)

        def readinto(self, buffer: memoryview) -> int:  # type: ignore[override]
            piece = next(self.pieces, None)
            if piece is None:
                raise OSError(5, "Input/output error")
            piece = piece[: len(buffer)]
            buffer[: len(piece)] = piece
            return len(piece)

    store = LocalStore(tmp_path)
    given = cut_segments(Broken(), "broken", Splitting(), lambda: ContentWriter(store, os.urandom(16).hex()))
    first = next(given)
    with pytest.raises(InputUnreadable):
        next(given)
    assert list(store.folders()) == [first.folder]

"""What goes into a store comes out of it byte for byte, by every way in and every way out."""

import io
import os
from itertools import pairwise
from pathlib import Path

import msgspec
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from contents import in_place
from opsq.content import content_writer, manifest
from opsq.content.chunk_reader import ChunkReader
from opsq.content.content_writer import ContentWriter
from opsq.content.input_file import open_raw
from opsq.content.local_store import LocalStore
from opsq.content.manifest import Content, decode, encode
from opsq.content.splitter import Splitting
from opsq.errors import (
    Bug,
    ChunkTooLarge,
    Conflict,
    ContentChanged,
    ContentMissing,
    InputUnreadable,
    NotFound,
    StorageFull,
    StoreNotVisible,
    UsageError,
    VersionMismatch,
)
from opsq.ids import FULL

FOLDER = "00112233445566778899aabbccddeeff"

BYTES = st.lists(st.sampled_from([b"\n", b"a", b"\r\n", b"\0", b"\xff\xfe", b'"', b","])).map(b"".join)


@pytest.fixture
def store(tmp_path: Path) -> LocalStore:
    return LocalStore(tmp_path / "content")


def read_all(store: LocalStore, content: Content) -> list[bytes]:
    """Every chunk, read in ways that must agree."""
    content = decode(encode(content))
    reader = ChunkReader(store, content)
    one_by_one = [reader.read(index) for index in range(content.chunks_count)]
    blocks = range(-(-content.chunks_count // 64))
    masks = [
        FULL if 64 * block + 64 <= content.chunks_count else (1 << content.chunks_count % 64) - 1 for block in blocks
    ]
    assert [chunk for block in blocks for chunk in reader.read_block(block, masks[block])] == one_by_one
    assert [reader.size(index) for index in range(content.chunks_count)] == [len(chunk) for chunk in one_by_one]
    lengths = [len(chunk) - len(reader.header) for chunk in one_by_one]
    assert [reader.read_short(index, length) for index, length in enumerate(lengths)] == one_by_one
    assert [reader.read_short(index, length - 1) for index, length in enumerate(lengths)] == [None] * len(lengths)
    for index in range(content.chunks_count):
        found = reader.open_range(index)
        if found is not None:
            with os.fdopen(found.descriptor, "rb") as file:
                assert (
                    reader.header + os.pread(file.fileno(), found.size_bytes, found.offset_bytes) == one_by_one[index]
                )
    assert sum(map(len, one_by_one)) == content.total_bytes + len(reader.header) * content.chunks_count
    return one_by_one


def check_inputs(store: LocalStore, content: Content) -> None:
    """Each chunk without its header is what stands at its range of the file that it comes from."""
    reader = ChunkReader(store, decode(encode(content)))
    for index in range(content.chunks_count):
        found = reader.input_of(index)
        assert found is not None
        with open(found.name, "rb") as file:
            file.seek(found.offset_bytes)
            assert reader.header + file.read(found.size_bytes) == reader.read(index)


@given(
    texts=st.lists(BYTES, min_size=1, max_size=3),
    rule=st.builds(
        Splitting,
        by=st.sampled_from(["bytes", "records", "file"]),
        count=st.integers(1, 30),
        delimiter=st.sampled_from([b"\n", b"\0", b"\n\n"]),
    ),
    is_inline=st.booleans(),
    part_bytes=st.integers(1, 50),
    read_bytes=st.integers(2, 20),
)
@example(texts=[b"a\nbbbbbb\nc\n"], rule=Splitting(count=2), is_inline=False, part_bytes=2, read_bytes=3)
@settings(max_examples=150, deadline=None)
def test_joined_chunks_are_the_input(
    tmp_path_factory: pytest.TempPathFactory,
    texts: list[bytes],
    rule: Splitting,
    is_inline: bool,
    part_bytes: int,
    read_bytes: int,
) -> None:
    root = tmp_path_factory.mktemp("roundtrip")
    store = LocalStore(root / "content")
    paths = [root / str(number) for number in range(len(texts))]
    for path, text in zip(paths, texts, strict=True):
        path.write_bytes(text)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(content_writer, "INLINE_LIMIT_BYTES", 4096 if is_inline else 0)
        patch.setattr(content_writer, "READ_BYTES", read_bytes)
        patch.setattr(content_writer, "PART_LIMIT_BYTES", part_bytes)
        patch.setattr(content_writer, "_SMALL_BYTES", part_bytes)
        patch.setattr(content_writer, "_ENDS_GATHER_COUNT", 3)
        patch.setattr(content_writer, "ENDS_LIMIT_COUNT", 2)
        with ContentWriter(store, FOLDER, is_durable=False) as writer:
            for path in paths:
                with open_raw(path) as file:
                    writer.write_stream(file, rule, str(path))
            content = writer.finish()
        check_inputs(store, content)
        copied = read_all(store, content)
        placed = in_place(store, FOLDER[::-1], paths, rule, is_durable=False)
        check_inputs(store, placed)
        in_their_place = read_all(store, placed)
    assert b"".join(copied) == b"".join(texts)
    assert in_their_place == copied


def test_small_content_travels_inline_and_makes_no_folder(store: LocalStore) -> None:
    with ContentWriter(store, FOLDER) as writer:
        for chunk in (b"a\n", b"", b"\0\xff"):
            writer.add_chunk(chunk)
        content = writer.finish()
    assert read_all(store, content) == [b"a\n", b"", b"\0\xff"]
    assert not os.path.exists(store.root)


def test_no_chunks_at_all_are_a_content_too(store: LocalStore) -> None:
    with ContentWriter(store, FOLDER) as writer:
        content = writer.finish()
    assert (content.chunks_count, read_all(store, content)) == (0, [])


def test_many_empty_chunks_need_no_part(store: LocalStore) -> None:
    with ContentWriter(store, FOLDER) as writer:
        for _ in range(2000):
            writer.add_chunk(b"")
        assert read_all(store, writer.finish()) == [b""] * 2000


def test_many_small_chunks_are_gathered_in_one_part(store: LocalStore) -> None:
    chunks = [b"%d" % number for number in range(70_000)]
    with ContentWriter(store, FOLDER) as writer:
        for chunk in chunks:
            writer.add_chunk(chunk)
        content = writer.finish()
    assert sorted(os.listdir(store.path(FOLDER))) == ["manifest", "part-0"]
    assert len(encode(content)) < 200
    reader = ChunkReader(store, content)
    assert [reader.read(index) for index in (0, 1, 511, 512, 69_999)] == [b"0", b"1", b"511", b"512", b"69999"]
    assert list(reader.read_block(1000, 0b1011)) == [b"64000", b"64001", b"64003"]


def test_a_block_of_neighbours_is_read_at_once(store: LocalStore, monkeypatch: pytest.MonkeyPatch) -> None:
    with ContentWriter(store, FOLDER) as writer:
        for number in range(6400):
            writer.add_chunk(b"%5d" % number)
        reader = ChunkReader(store, writer.finish())
    reads = []
    read = store.files.read
    monkeypatch.setattr(store.files, "read", lambda *arguments: reads.append(arguments) or read(*arguments))
    assert len(list(reader.read_block(50, FULL))) == 64
    assert len(reads) == 2, "one of the table, one of the part"


def test_an_index_that_does_not_exist_is_not_found(store: LocalStore) -> None:
    with ContentWriter(store, FOLDER) as writer:
        writer.add_chunk(b"a")
        reader = ChunkReader(store, writer.finish())
    for index in (-1, 1):
        with pytest.raises(NotFound, match="1 chunk,"):
            reader.read(index)


def test_the_csv_header_is_in_front_of_each_chunk(store: LocalStore) -> None:
    rule = Splitting(by="records", count=1, csv_header=True)
    for folder, header in ((FOLDER, b"a,b\r\n"), (FOLDER[::-1], b"a," + b"b" * 20_000 + b"\n")):
        with ContentWriter(store, folder) as writer:
            writer.write_stream(io.BytesIO(header + b'1,"\n"\n2,2'), rule, "first")
            writer.write_stream(io.BytesIO(b""), rule, "empty")
            writer.write_stream(io.BytesIO(header + b"3,3\n"), rule, "second")
            content = writer.finish()
        assert read_all(store, content) == [header + row for row in (b'1,"\n"\n', b"2,2", b"3,3\n")]
        reader = ChunkReader(store, content)
        start = len(header)
        places = [("first", start, 6), ("first", start + 6, 3), ("second", start, 4)]
        assert [reader.input_of(index) for index in range(3)] == places
        assert len(encode(content)) < 16_384
    for second, error in ((rule, InputUnreadable), (Splitting(), UsageError)):
        with ContentWriter(store, "other") as writer:
            writer.write_stream(io.BytesIO(b"a\n1\n"), rule, "first")
            with pytest.raises(error):
                writer.write_stream(io.BytesIO(b"b\n1\n"), second, "second")


def test_a_csv_file_in_place_keeps_its_header_out_of_the_ranges(store: LocalStore, tmp_path: Path) -> None:
    paths = []
    for number in range(2):
        paths.append(tmp_path / f"{number}.csv")
        paths[-1].write_bytes(b"h\n%d\n" % number)
    content = in_place(store, FOLDER, paths, Splitting(csv_header=True))
    assert read_all(store, content) == [b"h\n0\n", b"h\n1\n"]
    check_inputs(store, content)


def test_very_many_files_in_place_need_a_short_description(store: LocalStore, tmp_path: Path) -> None:
    paths = []
    for number in range(1500):
        paths.append(tmp_path / f"{number}.txt")
        paths[-1].write_bytes(b"%d" % number if number % 7 else b"")
    content = in_place(store, FOLDER, paths, Splitting(by="file"), is_durable=False)
    assert content.parts_object == "parts"
    assert len(encode(content)) < 200
    assert read_all(store, content) == [path.read_bytes() for path in paths]
    check_inputs(store, content)


def test_inputs_of_very_many_files_need_a_short_description(store: LocalStore, tmp_path: Path) -> None:
    paths = []
    for number in range(1500):
        paths.append(tmp_path / f"{number}.txt")
        paths[-1].write_bytes(b"%d\n" % number if number % 7 else b"")
    for folder, rule in ((FOLDER, Splitting(by="file")), (FOLDER[::-1], Splitting(by="bytes"))):
        with ContentWriter(store, folder, is_durable=False) as writer:
            for path in paths:
                with open_raw(path) as file:
                    writer.write_stream(file, rule, str(path))
            content = writer.finish()
        assert len(encode(content)) < 200
        check_inputs(store, content)
        reader = ChunkReader(store, content)
        places = [reader.input_of(index) for index in reversed(range(content.chunks_count))]
        wanted = [str(path) for path in reversed(paths) if rule.by == "file" or path.stat().st_size]
        assert [place.name for place in places if place is not None] == wanted


@pytest.mark.parametrize("count", [1, 1000])
def test_a_name_that_is_no_text_or_very_long_is_kept(store: LocalStore, count: int) -> None:
    names = [os.fsdecode(b"\xff\xfe"), "d/" * 2000 + "x", "-"]
    with ContentWriter(store, FOLDER) as writer:
        for number in range(count):
            writer.write_stream(io.BytesIO(b"a\n"), Splitting(), names[number % 3])
        reader = ChunkReader(store, decode(encode(writer.finish())))
    assert [reader.input_of(index) for index in range(count)] == [(names[index % 3], 0, 2) for index in range(count)]


def test_what_is_inline_needs_no_store_for_its_inputs(store: LocalStore) -> None:
    with ContentWriter(store, FOLDER) as writer:
        for number in range(900):
            writer.write_stream(io.BytesIO(b"a\n"), Splitting(), f"a/long/enough/name-{number}")
        content = writer.finish()
    assert content.inline is None
    assert store.size_bytes(f"{FOLDER}/{manifest.INPUTS_OBJECT}") > manifest.INPUTS_LIMIT_BYTES


def test_chunks_that_no_file_gave_have_no_input(store: LocalStore) -> None:
    for folder, size in ((FOLDER, 1), (FOLDER[::-1], 10_000)):
        with ContentWriter(store, folder) as writer:
            writer.add_chunk(b"x" * size)
            reader = ChunkReader(store, writer.finish())
        assert reader.input_of(0) is None
        with pytest.raises(NotFound):
            reader.input_of(1)


def test_a_path_that_is_no_text_can_be_submitted_in_place(store: LocalStore, tmp_path: Path) -> None:
    path = os.path.join(os.fsencode(tmp_path), b"\xff\xfe")
    with open(path, "wb") as file:
        file.write(b"a\n")
    assert read_all(store, in_place(store, FOLDER, [os.fsdecode(path)], Splitting())) == [b"a\n"]


@pytest.mark.parametrize("change", ["grow", "touch", "replace", "remove"])
def test_a_file_in_place_that_changed_is_refused(store: LocalStore, tmp_path: Path, change: str) -> None:
    path = tmp_path / "input"
    path.write_bytes(b"a\nb\n")
    reader = ChunkReader(store, in_place(store, FOLDER, [path], Splitting(count=2)))
    if change == "grow":
        assert reader.read(0) == b"a\n"  # the descriptor is open now: the change must be seen all the same
        with path.open("ab") as file:
            file.write(b"c\n")
    elif change == "touch":
        os.utime(path, ns=(1, 1))
    elif change == "replace":
        status = path.stat()
        other = tmp_path / "other"
        other.write_bytes(b"A\nB\n")
        os.utime(other, ns=(status.st_mtime_ns, status.st_mtime_ns))
        other.replace(path)
    else:
        path.unlink()
    expected, reason = {
        "grow": (ContentChanged, "size 4 → 6"),
        "touch": (ContentChanged, "modification time"),
        "replace": (ContentChanged, r"\(inode"),
        "remove": (ContentMissing, "is gone"),
    }[change]
    for attempt in (reader.read, reader.open_range):
        with pytest.raises(expected, match=rf"{path} .*{reason}"):
            attempt(1)


def test_what_is_no_plain_file_cannot_be_submitted_in_place(store: LocalStore) -> None:
    with pytest.raises(InputUnreadable, match="not a regular file"):
        in_place(store, FOLDER, [os.devnull], Splitting())


def test_a_file_that_changes_while_it_is_cut_is_refused(
    store: LocalStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "input"
    path.write_bytes(b"a\n")
    cut = content_writer.cut_file

    def cut_and_grow(*arguments: object) -> object:
        yield from cut(*arguments)
        with path.open("ab") as file:
            file.write(b"b\n")

    monkeypatch.setattr(content_writer, "cut_file", cut_and_grow)
    with pytest.raises(ContentChanged, match="while it was being split"):
        in_place(store, FOLDER, [path], Splitting())


def test_a_part_that_was_cut_short_is_missing_content(store: LocalStore) -> None:
    with ContentWriter(store, FOLDER) as writer:
        writer.add_chunk(b"x" * 10_000)
        content = writer.finish()
    os.truncate(store.path(f"{FOLDER}/part-0"), 100)
    with pytest.raises(ContentMissing, match="part-0 ends after 100 bytes"):
        ChunkReader(store, content).read(0)


def test_a_chunk_over_the_limit_is_refused_and_nothing_is_left(store: LocalStore) -> None:
    with ContentWriter(store, FOLDER, chunk_limit_bytes=10_000) as writer:
        writer.add_chunk(b"x" * 10_000)
        with pytest.raises(ChunkTooLarge, match="Chunk 1 has 10001 bytes"):
            writer.add_chunk(b"x" * 10_001)
    assert list(store.folders()) == []


def test_a_writer_that_is_not_finished_leaves_nothing(store: LocalStore) -> None:
    with ContentWriter(store, FOLDER) as writer:
        writer.add_chunk(b"x" * 100_000)
        assert list(store.folders()) == [FOLDER]
    assert list(store.folders()) == []
    with pytest.raises(Bug, match="is already finished"):
        writer.add_chunk(b"x")


def test_a_vanished_file_takes_the_whole_submission_with_it(store: LocalStore, tmp_path: Path) -> None:
    (tmp_path / "first").write_bytes(b"x" * 100_000)
    with ContentWriter(store, FOLDER) as writer:
        with open_raw(tmp_path / "first") as file:
            writer.write_stream(file, Splitting(), "first")
        with pytest.raises(InputUnreadable, match="absent"):
            open_raw(tmp_path / "absent")
    assert list(store.folders()) == []


def test_content_under_the_same_key_is_not_overwritten(store: LocalStore) -> None:
    with ContentWriter(store, FOLDER) as writer:
        writer.add_chunk(b"x" * 100_000)
        content = writer.finish()
    with pytest.raises(Conflict, match="written before"), ContentWriter(store, FOLDER) as writer:
        writer.add_chunk(b"y" * 100_000)
    assert read_all(store, content) == [b"x" * 100_000]


def test_a_full_disk_is_named_and_the_submission_is_absent(store: LocalStore, monkeypatch: pytest.MonkeyPatch) -> None:
    with ContentWriter(store, FOLDER) as writer:
        writer.add_chunk(b"x" * 100_000)
        earlier = writer.finish()

    def write(descriptor: int, content: bytes) -> int:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch, ContentWriter(store, "other") as writer:
        patch.setattr("opsq.content.file_io.os.write", write)
        with pytest.raises(StorageFull, match=rf"{store.root}/other/part-0 failed with \d+ bytes free"):
            writer.write_stream(io.BytesIO(b"y" * 100_000), Splitting(by="file"), "input")
    assert list(store.folders()) == [FOLDER]
    assert read_all(store, earlier) == [b"x" * 100_000]


def test_a_sync_that_fails_in_the_background_fails_the_submission(
    store: LocalStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The system reports a failed write-back once, to whoever syncs first; that may be the thread in the background."""
    monkeypatch.setattr("opsq.content.local_store._SYNC_STEP_BYTES", 1000)
    calls = []

    def fail_once(descriptor: int) -> None:
        calls.append(descriptor)
        if len(calls) == 1:
            raise OSError(28, "No space left on device")

    monkeypatch.setattr("opsq.content.local_store.sync_descriptor", fail_once)
    writer = ContentWriter(store, FOLDER)
    for _ in range(50):
        writer.add_chunk(b"x" * 100_000)
    with pytest.raises(StorageFull):
        writer.finish()
    assert list(store.folders()) == []


def test_files_are_private_whatever_the_umask(store: LocalStore) -> None:
    before = os.umask(0)
    try:
        with ContentWriter(store, FOLDER) as writer:
            for _ in range(300):
                writer.add_chunk(b"x" * 100)
            writer.finish()
    finally:
        os.umask(before)
    paths = [store.root, store.path(FOLDER), store.path(f"{FOLDER}/part-0"), store.path(f"{FOLDER}/manifest")]
    assert [oct(os.stat(path).st_mode & 0o777) for path in paths] == ["0o700", "0o700", "0o600", "0o600"]


def test_an_endless_record_stream_is_cut_in_constant_memory(store: LocalStore) -> None:
    import tracemalloc

    class Endless(io.RawIOBase):
        left = 64 << 20

        def readinto(self, buffer: memoryview) -> int:
            size = min(len(buffer), self.left)
            buffer[:size] = (b"record\0" * (size // 7 + 1))[:size]
            self.left -= size
            return size

        def seekable(self) -> bool:
            return False

    tracemalloc.start()
    try:
        with ContentWriter(store, FOLDER, is_durable=False) as writer:
            writer.write_stream(Endless(), Splitting(delimiter=b"\0"), "stdin")
            content = writer.finish()
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert content.total_bytes == 64 << 20
    assert peak < 16 << 20


def test_a_description_of_another_version_is_told_apart() -> None:
    for blob in (b"", b"\x91\xa8content9", encode(Content("f", 0, 0))[:-1], msgspec.msgpack.encode({"folder": "f"})):
        with pytest.raises(VersionMismatch, match="cannot be decoded"):
            decode(blob)


def test_the_longest_description_fits_into_a_submission(store: LocalStore, tmp_path: Path) -> None:
    deep = tmp_path.joinpath(*["d" * 100] * 20)
    deep.mkdir(parents=True)
    paths = []
    for number in range(14):
        paths.append(deep / f"{number}")
        paths[-1].write_bytes(b"h" * (manifest.HEADER_LIMIT_BYTES - 1) + b"\n" + b"a\n" * 18)
    content = in_place(store, FOLDER, paths, Splitting(by="records", count=1, csv_header=True), is_durable=False)
    assert content.ends is not None
    assert content.parts
    assert len(encode(content)) <= 64 << 10


def test_tables_have_the_documented_form(store: LocalStore) -> None:
    """The manifest is a format on disk: ends as little-endian unsigned 64-bit numbers, one after the other."""
    sizes = [number % 50 for number in range(1000)]
    with ContentWriter(store, FOLDER) as writer:
        for size in sizes:
            writer.add_chunk(b"x" * size)
        writer.finish()
    table = store.read_range(f"{FOLDER}/manifest", 0, 8000)
    ends = [0, *(int.from_bytes(table[at : at + 8], "little") for at in range(0, 8000, 8))]
    assert [high - low for low, high in pairwise(ends)] == sizes


def test_chunk_that_is_in_no_part_is_kept_elsewhere(store: LocalStore) -> None:
    """As of a producer that sends names of its own store."""
    with pytest.raises(StoreNotVisible, match="Chunk 1 is not in the content store: its producer keeps it elsewhere"):
        ChunkReader(store, Content(FOLDER, 2, 10)).read(1)

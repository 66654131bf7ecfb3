"""Inputs as they are, what compressed ones hold, and what happens when they change meanwhile."""

from __future__ import annotations

import bz2
import gzip
import io
import itertools
import lzma
import os
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from opsq.content.input_chunks import cut_stream, plan
from opsq.content.input_file import InputFile, is_compressed, open_input
from opsq.content.splitter import Splitting
from opsq.errors import ChunkTooLarge, ContentChanged, InputUnreadable

if sys.version_info >= (3, 14):
    from compression import zstd
else:
    from backports import zstd


def _zstd(content: bytes) -> bytes:
    return zstd.compress(content, options={zstd.CompressionParameter.checksum_flag: 1})


COMPRESS = {".gz": gzip.compress, ".bz2": bz2.compress, ".xz": lzma.compress, ".zst": _zstd}
LINES = b"".join(b"%d\n" % number for number in range(50_000))


def read(file: InputFile) -> bytes:
    """All that it gives, in pieces."""
    buffer, found = bytearray(65_536), bytearray()
    while count := file.readinto(memoryview(buffer)):
        found += buffer[:count]
    return bytes(found)


@pytest.fixture(params=COMPRESS)
def suffix(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def test_a_compressed_file_is_what_it_holds(tmp_path: Path, suffix: str) -> None:
    path = tmp_path / f"lines.TXT{suffix.upper()}"
    path.write_bytes(COMPRESS[suffix](LINES))
    assert is_compressed(path)
    with open_input(str(path)) as file:
        assert read(file) == LINES
        assert file.check_unchanged() == ""
        assert file.seek(0) == 0
        assert read(file) == LINES


def test_files_that_were_compressed_one_by_one_and_joined_are_read_to_the_end(tmp_path: Path, suffix: str) -> None:
    path = tmp_path / f"log{suffix}"
    path.write_bytes(b"".join(map(COMPRESS[suffix], (b"a\n", b"", b"b\n"))))
    with open_input(str(path)) as file:
        assert read(file) == b"a\nb\n"


def test_a_compressed_file_is_taken_as_it_is_if_asked(tmp_path: Path, suffix: str) -> None:
    path = tmp_path / f"lines{suffix}"
    path.write_bytes(COMPRESS[suffix](LINES))
    with open_input(str(path), is_decompressing=False) as file:
        assert read(file) == path.read_bytes()


def test_name_and_content_must_both_say_that_it_is_compressed(tmp_path: Path, suffix: str) -> None:
    (tmp_path / f"plain{suffix}").write_bytes(LINES)
    (tmp_path / "named otherwise").write_bytes(COMPRESS[suffix](LINES))
    (tmp_path / f"empty{suffix}").touch()
    for path in tmp_path.iterdir():
        assert not is_compressed(path)
        with open_input(str(path)) as file:
            assert read(file) == path.read_bytes()
    assert not is_compressed(tmp_path / f"absent{suffix}")
    assert not is_compressed(tmp_path)


def test_a_damaged_file_is_an_error_that_names_it(tmp_path: Path, suffix: str) -> None:
    content = COMPRESS[suffix](os.urandom(200_000))
    half = len(content) // 2
    for name, broken in (("short", content[:half]), ("bad", content[:half] + b"\xaa" * 64 + content[half + 64 :])):
        path = tmp_path / f"{name}{suffix}"
        path.write_bytes(broken)
        with open_input(str(path)) as file, pytest.raises(InputUnreadable, match=f"{path} cannot be decompressed: .+"):
            read(file)


def test_cut_errors_count_lines_of_what_it_holds(tmp_path: Path, suffix: str) -> None:
    path = tmp_path / f"lines{suffix}"
    path.write_bytes(COMPRESS[suffix](b"a\n" * 70_000 + b"x" * 5000 + b"\nb\n"))
    splitting = Splitting("bytes", 1000)
    with open_input(str(path)) as file, pytest.raises(ChunkTooLarge, match="Line 70001 of"):
        plan([(file.name, file)], splitting, chunk_limit_bytes=4000)
    with open_input(str(path)) as file:
        assert plan([(file.name, file)], splitting).total_bytes == 145_003


@pytest.mark.parametrize(
    ("change", "message"),
    [(lambda path: os.truncate(path, 10), "was cut from 288890 to 10 bytes"), (os.utime, "was written to")],
)
def test_a_file_that_lost_bytes_while_it_was_read_is_refused(tmp_path: Path, change, message: str) -> None:
    path = tmp_path / "log"
    path.write_bytes(LINES)
    with open_input(str(path)) as file:
        cuts = cut_stream(file, file.name, Splitting(), 1 << 26)
        next(cuts)
        change(path)
        list(cuts)
        with pytest.raises(ContentChanged, match=f"{path} {message} while it was read"):
            file.check_unchanged()


def test_a_file_that_grew_or_was_replaced_is_remarked_on(tmp_path: Path) -> None:
    path = tmp_path / "log"
    path.write_bytes(b"a\n")
    with open_input(str(path)) as file:
        assert read(file) == b"a\n"
        with path.open("ab") as more:
            more.write(b"b\n")
        assert "of which opsq has the first 2 bytes" in file.check_unchanged()
    with open_input(str(path)) as file:
        (tmp_path / "new").write_bytes(b"c\n")
        os.replace(tmp_path / "new", path)
        assert read(file) == b"a\nb\n"
        assert "the old file is used" in file.check_unchanged()


def test_a_pipe_has_nothing_to_compare(tmp_path: Path) -> None:
    read_end, write_end = os.pipe()
    os.write(write_end, b"a\n")
    os.close(write_end)
    with InputFile(io.FileIO(read_end, "rb"), "-", is_decompressing=True) as file:
        assert read(file) == b"a\n"
        assert file.check_unchanged() == ""


@given(
    pieces=st.lists(st.sampled_from([b"\r", b"\n", b"\r\n", b"a", b"bc"]), max_size=40),
    sizes=st.lists(st.integers(1, 4), min_size=1),
    is_packed=st.booleans(),
)
def test_carriage_returns_before_line_feeds_are_left_out(
    tmp_path_factory: pytest.TempPathFactory, pieces: list[bytes], sizes: list[int], is_packed: bool
) -> None:
    """Wherever reads end, and no others."""
    content = b"".join(pieces)
    path = tmp_path_factory.mktemp("crlf") / ("a.gz" if is_packed else "a")
    path.write_bytes(gzip.compress(content) if is_packed else content)
    with open_input(str(path), strips_crlf=True) as file:
        for _ in range(2):
            found, turn = bytearray(), itertools.cycle(sizes)
            buffer = memoryview(bytearray(next(turn)))
            while count := file.readinto(buffer):
                found += buffer[:count]
                buffer = memoryview(bytearray(next(turn)))
            assert bytes(found) == content.replace(b"\r\n", b"\n")
            file.seek(0)
        found_plan = plan([("a", file)], Splitting("records", 1, strips_crlf=True))
    assert found_plan.total_bytes == len(content.replace(b"\r\n", b"\n"))


def test_a_pipe_that_pauses_within_a_line_end_is_read_on() -> None:
    read_fd, write_fd = os.pipe()
    with InputFile(io.FileIO(read_fd), "pipe", is_decompressing=False, strips_crlf=True) as file:
        buffer = memoryview(bytearray(10))
        os.write(write_fd, b"a\r")
        assert (file.readinto(buffer), bytes(buffer[:1])) == (1, b"a")
        os.write(write_fd, b"\nb\r")
        assert (file.readinto(buffer), bytes(buffer[:2])) == (2, b"\nb")
        os.close(write_fd)
        assert (file.readinto(buffer), bytes(buffer[:1])) == (1, b"\r")
        assert file.readinto(buffer) == 0

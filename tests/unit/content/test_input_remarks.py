"""What is said about inputs that are odd."""

from __future__ import annotations

import gzip
import os
from pathlib import Path

import pytest

from opsq.content.input_remarks import input_remarks
from opsq.content.splitter import Splitting

LINES = Splitting()


def remarks(folder: Path, splitting: Splitting, **files: bytes) -> list[str]:
    """What is said about files with these contents, in that order; `_` in a name stands for a dot."""
    paths = [folder / name.replace("_", ".") for name in files]
    for path, content in zip(paths, files.values(), strict=True):
        path.write_bytes(content)
    return [text.replace(f"{folder}/", "") for text in input_remarks([str(path) for path in paths], splitting)]


@pytest.mark.parametrize(
    ("files", "said"),
    [
        ({"a": b"x", "b": b"y", "c": b"z"}, "a (and 1 more) does not end with a line end"),
        ({"a": "é\n".encode("utf-16")}, "a is UTF-16, it seems"),
        ({"a": b"x\0y\n"}, "a has NUL bytes in its first 4 bytes"),
        ({"a": b"x\r\ny\r\nz\n", "b": b"x\r\n"}, "Lines of a (and 1 more) end with CRLF, and keep the carriage return"),
        ({"a": gzip.compress(b"x\n")}, "a begins as .gz files do"),
        ({"a_gz": b"x\n"}, "a.gz is not what its name says"),
    ],
)
def test_what_is_odd_is_said_once_with_the_first_file(tmp_path: Path, files: dict[str, bytes], said: str) -> None:
    [remark] = remarks(tmp_path, LINES, **files)
    assert remark.startswith(said)


@pytest.mark.parametrize(
    ("files", "splitting"),
    [
        ({"a": b"x\n", "b": b"y"}, LINES),
        ({"a": b"", "b": b"", "c_gz": b""}, LINES),
        ({"a_gz": gzip.compress(b"x"), "b": b"y\n"}, LINES),
        ({"a": b"x\0y\0", "b": b"z"}, Splitting(delimiter=b"\0")),
        ({"a": b"x\0", "b": b"y"}, Splitting("file", 1)),
        ({"a_gz": b"x\n"}, Splitting(decompresses=False)),
        ({"a": b"x\r\ny\nz\r\nz\n"}, LINES),
        ({"a": b"x\r\n"}, Splitting(strips_crlf=True)),
        ({"a": b"x\r\n"}, Splitting(csv_header=True)),
        ({"a": b"x\r\n"}, Splitting(delimiter=b"\r\n")),
    ],
)
def test_what_is_usual_needs_no_word(tmp_path: Path, files: dict[str, bytes], splitting: Splitting) -> None:
    assert remarks(tmp_path, splitting, **files) == []


def test_the_last_file_may_end_as_it_likes_unless_more_is_to_come(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"x")
    path = str(tmp_path / "a")
    assert input_remarks([path], LINES) == []
    assert len(input_remarks([path, "-"], LINES)) == len(input_remarks([path, path], LINES)) == 1


def test_a_pipe_is_not_opened(tmp_path: Path) -> None:
    """Its writer would be let in and lost, and without one this would wait for ever."""
    os.mkfifo(tmp_path / "log.gz")
    assert input_remarks([str(tmp_path / "log.gz")], LINES) == []


def test_inputs_that_cannot_be_looked_at_are_left_to_who_reads_them(tmp_path: Path) -> None:
    assert input_remarks(["-", str(tmp_path), str(tmp_path / "absent")], LINES) == []

"""The parts of running a child that need no child: what is fed, captured and kept, and how an end is told."""

from __future__ import annotations

import fcntl
import os
import resource
import signal
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from opsq.clock import MonoNs
from opsq.errors import Bug, CommandNotExecutable, CommandNotFound, ContentChanged, ContentMissing, Refused, StorageFull
from opsq.runner.process import pipes, spawn, supervisor
from opsq.runner.process.pipes import Capture, Feed, Output, Range, Tail
from opsq.runner.process.supervisor import Child, Finished, Supervisor


@pytest.fixture
def pipe() -> Iterator[tuple[int, int]]:
    """A pipe of which neither end blocks; a test may close either."""
    ends = _pipe()
    yield ends
    for fd in ends:
        try:
            os.close(fd)
        except OSError:
            assert fd not in _open_fds()


def _pipe() -> tuple[int, int]:
    ends = os.pipe()
    for fd in ends:
        os.set_blocking(fd, False)
    return ends


def _open_fds() -> list[int]:
    return [fd for fd in range(256) if _is_open(fd)]


def _is_open(fd: int) -> bool:
    try:
        fcntl.fcntl(fd, fcntl.F_GETFD)
    except OSError:
        return False
    return True


def _bytes_of(output: Output) -> bytes:
    content = output.memory if output.fd < 0 else os.pread(output.fd, output.length + 1, 0)
    output.close()
    return content


def _pass_on(feed: Feed, pipe: tuple[int, int]) -> bytes:
    """Send everything through the pipe, reading whenever it is full."""
    got = b""
    while not feed.send(pipe[1]):
        got += os.read(pipe[0], 1 << 16)
    feed.close()
    os.close(pipe[1])
    while piece := os.read(pipe[0], 1 << 16):
        got += piece
    return got


@pytest.mark.parametrize("sends_file", [True, False])
@given(
    content=st.binary(max_size=500),
    header=st.binary(max_size=20),
    cut=st.tuples(st.integers(0, 500), st.integers(0, 500)),
)
def test_any_range_with_any_header_arrives_unchanged(
    tmp_path_factory: pytest.TempPathFactory, sends_file: bool, content: bytes, header: bytes, cut: tuple[int, int]
) -> None:
    """Header, then exactly the bytes of the range, by sendfile or without it."""
    start, end = (min(number, len(content)) for number in sorted(cut))
    path = tmp_path_factory.mktemp("feed") / "content"
    path.write_bytes(content)
    fd = os.open(path, os.O_RDONLY)
    feed = Feed(Range(fd, start, end - start, header))
    feed._sends_file = feed._sends_file and sends_file
    ends = _pipe()
    assert _pass_on(feed, ends) == header + content[start:end]
    os.close(ends[0])
    os.close(fd)


@pytest.mark.parametrize("sends_file", [True, False])
def test_range_longer_than_the_pipe_goes_on_after_its_owner_closed_the_file(
    tmp_path: Path, pipe: tuple[int, int], sends_file: bool
) -> None:
    content = os.urandom(300_000)
    (tmp_path / "content").write_bytes(content)
    fd = os.open(tmp_path / "content", os.O_RDONLY)
    feed = Feed(Range(fd, 7, len(content) - 7))
    feed._sends_file = feed._sends_file and sends_file
    assert feed.is_long
    assert not feed.send(pipe[1])
    feed.keep_file()
    os.close(fd)
    assert _pass_on(feed, pipe) == content[7:]


def test_reader_that_closes_early_ends_the_feed_without_an_error(pipe: tuple[int, int]) -> None:
    feed = Feed(b"x" * 1_000_000)
    assert not feed.send(pipe[1])
    os.close(pipe[0])
    assert feed.send(pipe[1])


@pytest.mark.parametrize("sends_file", [True, False])
def test_file_shorter_than_its_range_is_named_as_changed(
    tmp_path: Path, pipe: tuple[int, int], sends_file: bool
) -> None:
    (tmp_path / "content").write_bytes(b"12345")
    fd = os.open(tmp_path / "content", os.O_RDONLY)
    feed = Feed(Range(fd, 2, 10, path="/data/in.txt"))
    feed._sends_file = feed._sends_file and sends_file
    with pytest.raises(ContentChanged, match=r"/data/in\.txt ends at byte 5, 7 bytes before"):
        feed.send(pipe[1])
    os.close(fd)


def test_file_that_cannot_be_read_is_missing_content(tmp_path: Path, pipe: tuple[int, int]) -> None:
    fd = os.open(tmp_path, os.O_RDONLY)
    with pytest.raises(ContentMissing, match="The input cannot be read: Is a directory"):
        Feed(Range(fd, 0, 10)).send(pipe[1])
    os.close(fd)


@given(pieces=st.lists(st.binary(min_size=1, max_size=60), max_size=8), memory_bytes=st.integers(0, 200))
def test_capture_keeps_every_byte_in_memory_or_in_a_file(
    tmp_path_factory: pytest.TempPathFactory, pieces: list[bytes], memory_bytes: int
) -> None:
    """The same bytes come out, in a file exactly if they are more than may stay in memory; and the file has no name."""
    folder = tmp_path_factory.mktemp("spool")
    capture = Capture(str(folder), memory_bytes, may_widen=True)
    reader, writer = _pipe()
    for piece in pieces:
        os.write(writer, piece)
        assert not capture.take(reader)
        assert not capture.take(reader)
    os.close(writer)
    assert capture.take(reader)
    os.close(reader)
    output = capture.output()
    assert output.length == len(b"".join(pieces))
    assert (output.fd >= 0) == (output.length > memory_bytes)
    assert output.fd < 0 or not output.memory
    assert not list(folder.iterdir())
    assert _bytes_of(output) == b"".join(pieces)


def test_spool_without_nameless_files_or_splice_keeps_the_same_bytes(
    tmp_path: Path, pipe: tuple[int, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """As on macOS and on file systems without O_TMPFILE."""
    monkeypatch.setattr(sys, "platform", "darwin")
    capture = Capture(str(tmp_path), 10, may_widen=True)
    for _ in range(3):
        os.write(pipe[1], b"0123456789")
        capture.take(pipe[0])
    assert not list(tmp_path.iterdir())
    assert _bytes_of(capture.output()) == b"0123456789" * 3


def test_output_with_no_room_on_disk_is_storage_full(tmp_path: Path, pipe: tuple[int, int]) -> None:
    """The limit of a file's size stands for a full disk; Python ignores its signal."""
    capture = Capture(str(tmp_path), 10, may_widen=False)
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (20, hard))
    try:
        os.write(pipe[1], b"x" * 20)
        assert not capture.take(pipe[0])
        os.write(pipe[1], b"x")
        with pytest.raises(StorageFull, match=f"kept in {tmp_path}: File too large, at byte 20. Free some space"):
            capture.take(pipe[0])
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    capture.output().close()


def test_output_with_no_spool_folder_is_refused_by_name(tmp_path: Path, pipe: tuple[int, int]) -> None:
    capture = Capture(str(tmp_path / "gone"), 10, may_widen=False)
    os.write(pipe[1], b"x" * 100)
    with pytest.raises(Refused, match=r"gone: No such file or directory, at byte 0\. See that the folder exists"):
        capture.take(pipe[0])


@given(pieces=st.lists(st.binary(min_size=1, max_size=3000), max_size=6))
def test_tail_is_the_last_of_all_that_was_said(pieces: list[bytes]) -> None:
    reader, writer = _pipe()
    tail = Tail()
    for piece in pieces:
        os.write(writer, piece)
        assert not tail.take(reader)
    os.close(writer)
    assert tail.take(reader)
    os.close(reader)
    assert tail.kept == b"".join(pieces)[-pipes.TAIL_BYTES :]


def _finished(exit_status: int | None, number: int | None, tail: bytes, error: Refused | None = None) -> Finished:
    child = Child(1, MonoNs(0), Feed(b""), Capture("", 0, may_widen=False), (-1, -1, -1))
    return Finished(child, exit_status, number, Output(b""), tail, 0.0, error)


@pytest.mark.parametrize(
    ("finished", "reason", "is_success"),
    [
        (_finished(0, None, b""), "exit status 0", True),
        (_finished(3, None, b"  no such record\n"), "exit status 3: no such record", False),
        (_finished(None, signal.SIGSEGV, b""), "killed by SIGSEGV", False),
        (_finished(None, 40, b""), "killed by signal 40", False),
        (_finished(1, None, b"caf\xe9"), "exit status 1: caf�", False),
        (_finished(0, None, b"", Refused("No room.", hint="Make some.")), "No room. Make some.", False),
    ],
)
def test_reason_tells_how_it_ended_and_what_it_said(finished: Finished, reason: str, is_success: bool) -> None:
    assert finished.reason == reason
    assert finished.is_success == is_success


@pytest.fixture
def folders(tmp_path: Path) -> list[Path]:
    """Two folders to look for commands in."""
    made = [tmp_path / "first", tmp_path / "second"]
    for folder in made:
        folder.mkdir()
    return made


def _program(path: Path, mode: int = 0o755) -> Path:
    path.write_text("#!/bin/sh\n")
    path.chmod(mode)
    return path


def test_command_is_the_first_in_path_that_can_be_executed(folders: list[Path]) -> None:
    """As a shell does, one without the mode, or a folder, is passed over."""
    first, second = folders
    (first / "tool").mkdir()
    expected = _program(second / "tool")
    assert spawn.find_program("tool", f"{first}:/nowhere:{second}") == str(expected)
    (first / "tool").rmdir()
    _program(first / "tool", 0o644)
    assert spawn.find_program("tool", f"{first}:{second}") == str(expected)


def test_empty_part_of_path_is_the_current_folder(folders: list[Path], monkeypatch: pytest.MonkeyPatch) -> None:
    _program(folders[0] / "tool")
    monkeypatch.chdir(folders[0])
    assert spawn.find_program("tool", "/nowhere:") == "./tool"


def test_command_that_is_nowhere_is_not_found(folders: list[Path]) -> None:
    (folders[0] / "folder").mkdir()
    for command in ("no-such-tool", "folder", "", str(folders[0] / "gone")):
        with pytest.raises(CommandNotFound, match="There is no command"):
            spawn.find_program(command, str(folders[0]))


def test_command_that_may_not_be_executed_is_told_apart_from_a_missing_one(folders: list[Path]) -> None:
    plain = _program(folders[0] / "plain", 0o644)
    with pytest.raises(CommandNotExecutable, match="its mode does not allow it"):
        spawn.find_program("plain", str(folders[0]))
    with pytest.raises(CommandNotExecutable, match="its mode does not allow it"):
        spawn.find_program(str(plain), "")
    with pytest.raises(CommandNotExecutable, match="it is a folder"):
        spawn.find_program(str(folders[0]), "")


def test_process_that_would_die_of_sigpipe_may_not_have_children(tmp_path: Path) -> None:
    before = signal.signal(signal.SIGPIPE, signal.SIG_DFL)
    try:
        with pytest.raises(Bug, match="SIGPIPE"):
            Supervisor(tmp_path)
    finally:
        signal.signal(signal.SIGPIPE, before)


def test_program_that_does_not_end_when_it_is_killed_is_left_behind(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """As one that hangs in the system."""
    with Supervisor(tmp_path) as programs:
        child = programs.start(["sleep", "10"])
        monkeypatch.setattr(supervisor, "LEAVE_AFTER_S", 0.01)
        monkeypatch.setattr(supervisor, "signal_group", lambda *_: True)
    os.kill(child.pid, signal.SIGKILL)
    assert os.waitpid(child.pid, 0)[1] == signal.SIGKILL

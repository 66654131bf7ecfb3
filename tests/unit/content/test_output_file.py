"""What a user may name as an output."""

from __future__ import annotations

import os
import stat
import threading
from pathlib import Path

import pytest

from opsq.content import output_file
from opsq.content.output_file import is_stdout, open_output
from opsq.errors import StorageFull, UsageError


def test_an_output_appears_whole_or_not_at_all(tmp_path: Path) -> None:
    path = tmp_path / "out"
    path.write_bytes(b"old")
    path.chmod(0o640)
    with pytest.raises(TypeError), open_output(path) as out:
        out.write([out.write(b"half")])  # type: ignore[arg-type]
    assert path.read_bytes() == b"old"
    with open_output(path) as out:
        out.write(b"new")
        assert path.read_bytes() == b"old"
    assert path.read_bytes() == b"new"
    assert stat.S_IMODE(path.stat().st_mode) == 0o640
    assert os.listdir(tmp_path) == ["out"]


def test_an_output_through_a_link_keeps_the_link(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to("target")
    with open_output(tmp_path / "link") as out:
        out.write(b"x")
    assert (tmp_path / "link").is_symlink()
    assert (tmp_path / "target").read_bytes() == b"x"


def test_a_device_is_written_to_and_not_replaced() -> None:
    with open_output(os.devnull) as out:
        out.write(b"x")
    assert stat.S_ISCHR(os.stat(os.devnull).st_mode)


def test_a_pipe_with_a_name_is_written_to(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    found: list[bytes] = []
    reader = threading.Thread(target=lambda: found.append(pipe.read_bytes()))
    reader.start()
    with open_output(pipe) as out:
        out.write(b"x")
    reader.join()
    assert found == [b"x"]
    assert pipe.is_fifo()


@pytest.mark.parametrize("folder", ["/dev/fd", "/proc/{pid}/fd", "/proc/self/fd", "/proc/thread-self/fd"])
@pytest.mark.parametrize("is_linked", [False, True])
def test_a_descriptor_is_written_where_it_stands(tmp_path: Path, folder: str, is_linked: bool) -> None:
    folder = folder.format(pid=os.getpid())
    if not os.path.isdir(folder):  # /dev/fd is all that macOS has
        folder = "/dev/fd"
    path = tmp_path / "log"
    path.write_bytes(b"line\n")
    with path.open("ab") as log:
        name = f"{folder}/{log.fileno()}"
        if is_linked:
            (tmp_path / "link").symlink_to(name)
            name = str(tmp_path / "link")
        before = os.fstat(log.fileno()).st_ino
        with open_output(name) as out:
            out.write(b"more\n")
        log.write(b"end\n")
    assert path.read_bytes() == b"line\nmore\nend\n"
    assert path.stat().st_ino == before


def test_a_descriptor_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with (tmp_path / "file").open("rb") as file:
        name = f"/dev/fd/{file.fileno()}"
        with pytest.raises(UsageError, match=f"{name} cannot be written: it is open for reading"), open_output(name):
            pass
    with pytest.raises(UsageError, match="/dev/fd/987 cannot be written"), open_output("/dev/fd/987"):
        pass


def test_names_of_stdout() -> None:
    assert all(map(is_stdout, (None, "-", "/dev/stdout", "/dev/fd/1")))
    assert not any(map(is_stdout, ("/dev/stderr", "out", "./-", "")))


def test_an_output_that_cannot_be_made_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    for path in (tmp_path, tmp_path / "absent" / "out", tmp_path / "file" / "out"):
        with pytest.raises(UsageError, match=f"{path}|{path.parent}"), open_output(path):
            pass


def test_a_full_disk_under_an_output_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def sync(descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("opsq.content.output_file.sync_descriptor", sync)
    with pytest.raises(StorageFull, match=f"writing {tmp_path}/out failed"), open_output(tmp_path / "out") as out:
        out.write(b"x")
    assert os.listdir(tmp_path) == []


def test_output_is_synced_before_it_has_its_name_and_its_folder_after(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A run removes its submissions once their results are written."""
    done: list[str] = []
    replace = os.replace

    def note_replace(source: str, target: str) -> None:
        replace(source, target)
        done.append("name")

    monkeypatch.setattr(os, "replace", note_replace)
    monkeypatch.setattr(output_file, "sync_descriptor", lambda number: done.append(f"{os.fstat(number).st_size} bytes"))
    monkeypatch.setattr(output_file, "sync_path", done.append)
    with open_output(tmp_path / "out") as out:
        out.write(b"results")
    assert done == ["7 bytes", "name", str(tmp_path)]


def test_any_other_error_of_the_disk_under_an_output_is_raised(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def sync(descriptor: int) -> None:
        raise OSError(5, "Input/output error")

    monkeypatch.setattr("opsq.content.output_file.sync_descriptor", sync)
    with pytest.raises(OSError, match="Input/output error"), open_output(tmp_path / "out") as out:
        out.write(b"x")
    assert os.listdir(tmp_path) == []

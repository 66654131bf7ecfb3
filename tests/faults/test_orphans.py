"""What is left of programs when the process that runs them is killed, and cannot end them itself: nothing."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from opsq.runner.process import orphan_guard
from opsq.runner.process.orphan_guard import OrphanGuard
from opsq.runner.process.supervisor import Supervisor
from waiting import wait_until

RUNNER = """
import os, sys
from opsq.runner.feeding.program_kinds import make_programs
from opsq.runner.feeding.programs import Feeding, Setup
class Chunk:
    submission_id, index, attempt, metadata, file_path, header = 7, 3, 0, {}, None, b""
    input = trace_context = None
programs = make_programs(
    sys.argv[3:], Feeding(server=sys.argv[2]), Setup(sys.argv[1], 1000, "x", 2, attachment=lambda _: b"model")
)
for _ in range(2):
    programs.start(Chunk(), b"chunk")
print(programs._scratch.folder, flush=True)
while True:
    programs.poll(1)
"""
# Three levels of shell; the innermost tells the number of each.
DEEP = "sh -c 'sh -c \"echo \\$\\$ >> pids; exec sleep 1000\"; :'; :"


def _is_gone(pid: int) -> bool:
    state = subprocess.run(["ps", "-o", "stat=", "-p", str(pid)], capture_output=True, text=True).stdout
    return not state.strip() or state.startswith("Z")


def _pids(folder: Path) -> list[int]:
    path = folder / "pids"
    return [int(word) for word in path.read_text().split()] if path.exists() else []


@pytest.mark.parametrize("way", ["", "frames"])
@pytest.mark.parametrize("to_group", [False, True], ids=["the process", "its group"])
def test_killed_process_leaves_no_program_and_no_file(runtime_dir: Path, way: str, to_group: bool) -> None:
    """Three levels of shell are gone, and the private folder with what was in it."""
    command = [
        sys.executable,
        "-c",
        RUNNER,
        str(runtime_dir),
        way,
        "sh",
        "-c",
        DEEP,
        *([] if way else ["{in}", "{out}", "{attachment}"]),
    ]
    with subprocess.Popen(command, cwd=runtime_dir, stdout=subprocess.PIPE, text=True, process_group=0) as process:
        assert process.stdout is not None
        scratch = Path(process.stdout.readline().strip())
        wait_until(lambda: len(_pids(runtime_dir)) == 2, 180, "both programs run")
        assert scratch.exists()
        (os.killpg if to_group else os.kill)(process.pid, signal.SIGKILL)
    for pid in _pids(runtime_dir):
        wait_until(lambda pid=pid: _is_gone(pid), 180, "the program has ended")
    wait_until(lambda: not scratch.exists(), 180, "its folder is gone")


def test_groups_that_have_ended_are_not_killed(runtime_dir: Path) -> None:
    """Their numbers may be those of strangers: what is taken out is blank, and its place is used again."""
    made = OrphanGuard(str(runtime_dir))
    made.begin()
    first, second = made.enter(101), made.enter(102)
    made.change(first, 103)
    made.leave(second)
    table = made._table
    assert table is not None
    assert table[:].split() == [b"-103"]
    assert made.enter(104) == second
    assert table[:].split() == [b"-103", b"-104"]
    made.leave(first)
    made.leave(second)
    made.close()
    made.close()


def test_guard_that_cannot_be_started_keeps_nobody_from_working(
    runtime_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> int:
        raise BlockingIOError

    monkeypatch.setattr(orphan_guard.OrphanGuard, "_spawn", refuse)
    before = os.listdir("/dev/fd")
    with Supervisor(runtime_dir) as children:
        child = children.start(["true"])
        assert child._place == -1
        wait_until(lambda: bool(children.poll(1)), 180)
    assert set(os.listdir("/dev/fd")) <= set(before)


def test_table_that_is_full_leaves_further_groups_unguarded(runtime_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(orphan_guard, "_ENTRIES_COUNT", 1)
    made = OrphanGuard(str(runtime_dir))
    made.begin()
    place = made.enter(101)
    assert (place, made.enter(102)) == (0, -1)
    made.change(-1, 103)
    made.leave(-1)
    made.leave(place)
    made.close()


def test_closed_guard_kills_nobody(runtime_dir: Path) -> None:
    """A group that is still entered when the guard is closed is left alone: it was ended, or may not be."""
    pid = os.posix_spawn("/bin/sleep", ["sleep", "1000"], os.environ, setpgroup=0)
    made = OrphanGuard(str(runtime_dir))
    made.begin()
    made.enter(pid)
    made.close()
    assert os.waitpid(pid, os.WNOHANG) == (0, 0)
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)

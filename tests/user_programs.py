"""Programs of a user's for tests: scripts in processes of their own, and what becomes of the processes they start.

It must not know opsq.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

from waiting import wait_until

DEADLINE_S = 180
Script = Callable[..., "subprocess.Popen[str]"]


@contextlib.contextmanager
def scripts(folder: Path) -> Iterator[Script]:
    """Starts a Python program, given its text and arguments, in a session of its own; all are gone at the end."""
    programs = []

    def start(text: str, *arguments: object) -> subprocess.Popen[str]:
        path = folder / "program.py"
        path.write_text(text)
        environ = os.environ | {"PYTHONPATH": str(Path(__file__).parent)}
        command = [sys.executable, str(path), *map(str, arguments)]
        pipe = subprocess.PIPE
        programs.append(
            subprocess.Popen(command, env=environ, stdout=pipe, stderr=pipe, text=True, start_new_session=True)
        )
        return programs[-1]

    yield start
    for program in programs:
        if program.poll() is None:
            os.killpg(program.pid, signal.SIGKILL)
        program.communicate()


def is_there(pid: int) -> bool:
    """Whether a process lives; a zombie does not."""
    state = subprocess.run(["ps", "-o", "stat=", "-p", str(pid)], capture_output=True, text=True).stdout.strip()
    return bool(state) and not state.startswith("Z")


def number_in(path: Path) -> int:
    """What a process wrote when it came so far."""
    return int(wait_until(lambda: path.exists() and path.read_text(), DEADLINE_S, f"a number in {path}"))

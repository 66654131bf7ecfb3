"""The installed `opsq` of the environment that runs the benchmarks, run as a shell runs it.

It only runs the command; what the numbers mean is said where it is used.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from ours.daemon import environment

_LOOK_S = 0.02


def program() -> str:
    """The path of `opsq`, beside the interpreter that runs this.

    Raises:
        RuntimeError: it is not installed there.
    """
    path = Path(sys.executable).parent / "opsq"
    if not path.exists():
        raise RuntimeError(f"{path} is missing; install opsq into this environment: pip install -e .")
    return str(path)


def timed(state_dir: Path, *arguments: str) -> tuple[float, list[str]]:
    """Run a verb to its end, without input; the wall seconds from start to exit, and the lines that it printed.

    Raises:
        RuntimeError: it failed; the message holds what it said.
    """
    command = [program(), *arguments]
    started = time.perf_counter()
    ended = subprocess.run(
        command, env=environment(state_dir), stdin=subprocess.DEVNULL, capture_output=True, check=False
    )
    taken = time.perf_counter() - started
    _check(ended, arguments)
    return taken, ended.stdout.decode().splitlines()


def run(state_dir: Path, *arguments: str) -> float:
    """Run a verb to its end and return the wall seconds; raises as `timed` does."""
    return timed(state_dir, *arguments)[0]


def filtered(state_dir: Path, source: Path | None, target: Path, *arguments: str) -> float:
    """Run a verb with its output into a file, and its input from one (None: no input); raises as `timed` does."""
    command = [program(), *arguments]
    with (source or Path(os.devnull)).open("rb") as lines, target.open("wb") as out:
        started = time.perf_counter()
        ended = subprocess.run(
            command, env=environment(state_dir), stdin=lines, stdout=out, stderr=subprocess.PIPE, check=False
        )
        taken = time.perf_counter() - started
    _check(ended, arguments)
    return taken


def watched(state_dir: Path, *arguments: str) -> int:
    """Run a verb to its end, and give the most memory that it had (VmHWM, in bytes; Linux); raises as `timed` does.

    What the system tells of children that have ended would not do: they are charged with their parent's memory until
    exec.
    """
    highest_kib = 0
    with subprocess.Popen(
        [program(), *arguments], env=environment(state_dir), stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL
    ) as process:
        status = Path(f"/proc/{process.pid}/status")
        while process.poll() is None:
            found = [line for line in status.read_text().splitlines() if line.startswith("VmHWM:")]
            highest_kib = max(highest_kib, *(int(line.split()[1]) for line in found), 0)
            time.sleep(_LOOK_S)
    if process.returncode:
        raise RuntimeError(f"opsq {' '.join(arguments)} exited {process.returncode}")
    return highest_kib * 1024


def printed(state_dir: Path, *arguments: str) -> list[str]:
    """Run a verb and return the lines that it prints; raises as `timed` does."""
    return timed(state_dir, *arguments)[1]


def _check(ended: subprocess.CompletedProcess[bytes], arguments: Sequence[str]) -> None:
    if ended.returncode:
        said = ended.stderr.decode(errors="replace")
        raise RuntimeError(f"opsq {' '.join(arguments)} exited {ended.returncode}: {said}")

"""The installed `opsq` of the environment that runs the benchmarks, run as a shell runs it.

It only runs the command; what the numbers mean is said where it is used.
"""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

from ours.daemon import environment


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
    ended = subprocess.run(command, env=environment(state_dir), stdin=subprocess.DEVNULL, capture_output=True, check=False)
    taken = time.perf_counter() - started
    if ended.returncode:
        said = ended.stderr.decode(errors="replace")
        raise RuntimeError(f"opsq {' '.join(arguments)} exited {ended.returncode}: {said}")
    return taken, ended.stdout.decode().splitlines()


def run(state_dir: Path, *arguments: str) -> float:
    """Run a verb to its end and return the wall seconds; raises as `timed` does."""
    return timed(state_dir, *arguments)[0]


def printed(state_dir: Path, *arguments: str) -> list[str]:
    """Run a verb and return the lines that it prints; raises as `timed` does."""
    return timed(state_dir, *arguments)[1]

"""The installed `opsq` of the environment that runs the benchmarks, run as a shell runs it.

It only runs the command; what the numbers mean is said where it is used.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from ours.daemon import environment
from rivals.shell import run_silently


def program() -> str:
    """The path of `opsq`, beside the interpreter that runs this.

    Raises:
        RuntimeError: it is not installed there.
    """
    path = Path(sys.executable).parent / "opsq"
    if not path.exists():
        raise RuntimeError(f"{path} is missing; install opsq into this environment: pip install -e .")
    return str(path)


def run(state_dir: Path, *arguments: str, exits: int = 0) -> float:
    """Run a verb to its end and return the wall seconds; another exit status than `exits` raises."""
    return run_silently([program(), *arguments], environment=environment(state_dir), exits=exits)


def printed(state_dir: Path, *arguments: str) -> list[str]:
    """Run a verb and return the lines that it prints; a failure raises."""
    ended = subprocess.run([program(), *arguments], env=environment(state_dir), stdin=subprocess.DEVNULL, capture_output=True, check=False)
    if ended.returncode:
        raise RuntimeError(f"opsq {' '.join(arguments)} exited {ended.returncode}: {ended.stderr.decode(errors='replace')}")
    return ended.stdout.decode().splitlines()

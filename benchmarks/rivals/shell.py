"""The rivals that a shell has: cp and sync, GNU parallel, and the start of an empty Python.

Each function runs its program once and returns the wall seconds, as the caller of the program sees them.
"""

from __future__ import annotations

import os
import random
import subprocess
import sys
import time
from pathlib import Path

from rivals.programs import CP, PARALLEL, SYNC, TR

_TEXT_BLOCK_BYTES = 8 << 20


def make_text(path: Path, size_bytes: int) -> None:
    """Write `size_bytes` (≥ 1) of lines of lower-case words to `path`, the same each time, with a last newline."""
    choose = random.Random(1)
    words = ["".join(choose.choices("abcdefghijklmnopqrstuvwxyz", k=choose.randint(1, 11))) for _ in range(2000)]
    block = bytearray()
    while len(block) < _TEXT_BLOCK_BYTES:
        block += " ".join(choose.choices(words, k=choose.randint(2, 20))).encode() + b"\n"
    with path.open("wb") as out:
        left = size_bytes - 1
        while left:
            left -= out.write(block[:left])
        out.write(b"\n")


def settle(path: Path) -> None:
    """Write out what earlier runs left unwritten on the disk of `path`, so that nobody pays for another's pages."""
    subprocess.run([SYNC.find(), "-f", str(path)], check=True)


def copy_and_sync(source: Path, target: Path) -> float:
    """`cp --reflink=never source target && sync -f target`."""
    started = time.perf_counter()
    subprocess.run([CP.find(), "--reflink=never", str(source), str(target)], check=True)
    subprocess.run([SYNC.find(), "-f", str(target)], check=True)
    return time.perf_counter() - started


def parallel_upper_case(source: Path, target: Path, *, jobs_count: int, home: Path) -> float:
    """`parallel --pipe -k --block 1M -j N tr a-z A-Z < source > target`, with `home` for its own files."""
    command = [PARALLEL.find(), "--pipe", "-k", "--block", "1M", f"-j{jobs_count}", TR.find(), "a-z", "A-Z"]
    environment = {**os.environ, "PARALLEL_HOME": str(home), "TMPDIR": str(home)}
    with source.open("rb") as lines, target.open("wb") as out:
        started = time.perf_counter()
        subprocess.run(command, stdin=lines, stdout=out, stderr=subprocess.DEVNULL, env=environment, check=True)
        return time.perf_counter() - started


def empty_python() -> float:
    """`python -c pass`, by the interpreter that runs this, with its output caught as that of our verbs is."""
    started = time.perf_counter()
    subprocess.run([sys.executable, "-c", "pass"], stdin=subprocess.DEVNULL, capture_output=True, check=True)
    return time.perf_counter() - started

"""The rivals that a shell has: cp and sync, xargs, GNU parallel, and the start of an empty Python.

Each function runs its program once and returns the wall seconds, as the caller of the program sees them.
"""

from __future__ import annotations

import os
import random
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from rivals.programs import CP, PARALLEL, SYNC, TR, XARGS

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
    with source.open("rb") as lines, target.open("wb") as out:
        return _timed(command, home, stdin=lines, stdout=out)


def parallel_upper_case_of_file(source: Path, target: Path, *, jobs_count: int, home: Path) -> float:
    """`parallel --pipepart -k --block 1M -j N -a source tr a-z A-Z > target`, with `home` for its own files."""
    command = [
        PARALLEL.find(),
        "--pipepart",
        "-k",
        "--block",
        "1M",
        f"-j{jobs_count}",
        "-a",
        str(source),
        TR.find(),
        "a-z",
        "A-Z",
    ]
    with target.open("wb") as out:
        return _timed(command, home, stdout=out)


def xargs_each(records: Path, *words: str, jobs_count: int, home: Path) -> float:
    """`xargs -P N -n1 WORDS < records`: a run per line."""
    with records.open("rb") as lines:
        return _timed([XARGS.find(), f"-P{jobs_count}", "-n1", *words], home, stdin=lines)


def parallel_each(records: Path, *words: str, jobs_count: int, home: Path) -> float:
    """`parallel -j N WORDS < records`: a run per line."""
    with records.open("rb") as lines:
        return _timed([PARALLEL.find(), f"-j{jobs_count}", *words], home, stdin=lines)


def _timed(
    command: list[str], home: Path, *, stdin: Any = subprocess.DEVNULL, stdout: Any = subprocess.DEVNULL
) -> float:
    environment = {**os.environ, "PARALLEL_HOME": str(home), "TMPDIR": str(home)}
    started = time.perf_counter()
    subprocess.run(command, stdin=stdin, stdout=stdout, stderr=subprocess.DEVNULL, env=environment, check=True)
    return time.perf_counter() - started


def empty_python() -> float:
    """`python -c pass`, by the interpreter that runs this, with its output caught as that of our verbs is."""
    started = time.perf_counter()
    subprocess.run([sys.executable, "-c", "pass"], stdin=subprocess.DEVNULL, capture_output=True, check=True)
    return time.perf_counter() - started

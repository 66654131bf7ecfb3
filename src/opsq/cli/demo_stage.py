"""What both demonstrations use: Python's own sources, a temporary folder, a private daemon, a count to compare with.

It must not submit or process anything.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import shutil
import signal
import sys
import sysconfig
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from opsq.cli.caller import Caller
from opsq.daemon import lifecycle
from opsq.settings import load

_READ_BYTES = 1 << 20


class Direct(NamedTuple):
    """What was counted without opsq."""

    lines_count: int
    size_bytes: int
    digest: str


class Speech:
    """Prints a line per step, with the time since the start."""

    def __init__(self, caller: Caller) -> None:
        self._caller = caller
        self.began = time.monotonic()

    def step(self, text: str) -> None:
        """Print a step that was done."""
        if self._caller.is_quiet or self._caller.is_json:
            return
        mark = f"{time.monotonic() - self.began:5.1f} s  "
        if self._caller.is_rich:
            from rich.text import Text

            self._caller.console.print(Text(mark, style="dim") + Text(text))
        else:
            self._caller.lines([mark + text])
            sys.stdout.flush()


def sources() -> list[str]:
    """The input: the source files of Python's own library, as text sorts them."""
    root = Path(sysconfig.get_path("stdlib"))
    outside = {"site-packages", "dist-packages", "__pycache__"}
    found = [path for path in root.rglob("*.py") if not outside & set(path.relative_to(root).parts) and path.is_file()]
    return sorted(str(path) for path in found if os.access(path, os.R_OK))


def direct_count(paths: Iterator[Path] | Sequence[Path], *, is_upper: bool) -> Direct:
    """Count files one after the other; `is_upper`: as if their letters were capitals."""
    lines_count = size_bytes = 0
    digest = hashlib.sha256()
    for path in paths:
        with path.open("rb") as file:
            while piece := file.read(_READ_BYTES):
                lines_count += piece.count(b"\n")
                size_bytes += len(piece)
                digest.update(piece.upper() if is_upper else piece)
    return Direct(lines_count, size_bytes, digest.hexdigest())


@contextlib.contextmanager
def private_folder(say: Speech, *, is_kept: bool) -> Iterator[Path]:
    """A folder of our own, removed at the end unless it is to be kept."""
    folder = Path(tempfile.mkdtemp(prefix="opsq-demo-"))
    # A termination unwinds as an interrupt does: nothing is left behind.
    terminated: list[int] = []

    def terminate(number: int, _: object) -> None:
        terminated.append(number)
        sys.exit(128 + number)

    before = signal.signal(signal.SIGTERM, terminate)
    try:
        yield folder
        if terminated:  # where nothing can be raised, as while an object is freed, Python goes on
            sys.exit(128 + terminated[0])
    finally:
        signal.signal(signal.SIGTERM, before)
        if is_kept:
            say.step(f"Everything is left in {folder}.")
        else:
            shutil.rmtree(folder)


@contextlib.contextmanager
def private_daemon(caller: Caller, say: Speech, folder: Path) -> Iterator[Caller]:
    """A daemon of our own; yields a caller of it."""
    private = Caller({"quiet": caller.is_quiet, "json": caller.is_json}, frozenset())
    private.settings = load({"state_dir": str(folder / "state")}, {"XDG_CONFIG_HOME": str(folder)})
    result = lifecycle.start(private.settings)
    try:
        say.step(f"A private daemon is ready, process {result.pid}, in {folder}.")
        yield private
    finally:
        lifecycle.stop(private.settings, 0.0)

"""What a disk does by itself while something else is measured: another process syncs a small file of its own."""

from __future__ import annotations

import math
import multiprocessing
import os
import time
from multiprocessing.connection import Connection as Pipe
from pathlib import Path

from opsq.fsync import sync_descriptor

_EVERY_S = 0.01
_BYTES = 4096


class DiskProbe:
    """Writes and syncs a hundred times a second within `with`; what it took can be asked afterwards.

    Args:
        folder: on the disk in question; a file `probe` is made there.
    """

    def __init__(self, folder: Path) -> None:
        self._path = folder / "probe"
        self._syncs: list[tuple[float, float]] = []

    def __enter__(self) -> DiskProbe:
        self._pipe, theirs = multiprocessing.Pipe()
        process = multiprocessing.get_context("spawn").Process(target=_sync_on, args=(self._path, theirs), daemon=True)
        process.start()
        theirs.close()  # so that the end of the process is the end of the pipe
        self._pipe.recv()
        return self

    def __exit__(self, *_: object) -> None:
        self._pipe.send("stop")
        self._syncs = self._pipe.recv()

    def longest_s(self, began: float = 0.0, ended: float = math.inf) -> float:
        """The longest sync of those that took place, at least in part, within a time.

        Args:
            began: by `time.monotonic`, whose clock all processes have in common.
            ended: by the same clock.
        """
        return max((until - since for since, until in self._syncs if since < ended and until > began), default=0.0)


def _sync_on(path: Path, pipe: Pipe) -> None:
    """Sync until told to stop, then tell when each sync began and ended."""
    syncs: list[tuple[float, float]] = []
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT, 0o600)
    os.write(descriptor, bytes(_BYTES))
    sync_descriptor(descriptor)
    pipe.send("begun")
    while not pipe.poll(_EVERY_S):
        since = time.monotonic()
        os.pwrite(descriptor, bytes(_BYTES), 0)
        sync_descriptor(descriptor)
        syncs.append((since, time.monotonic()))
    pipe.send(syncs)

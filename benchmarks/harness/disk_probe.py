"""What a disk does by itself while something else is measured: another process syncs a small file of its own."""

from __future__ import annotations

import math
import multiprocessing
import os
import time
from multiprocessing.connection import Connection as Pipe
from pathlib import Path

_EVERY_S = 0.01
_BYTES = 4096


class DiskProbe:
    """Writes and syncs a hundred times a second, from `with` to `stop`.

    Args:
        folder: on the disk in question; a file `probe` is made there.
    """

    def __init__(self, folder: Path) -> None:
        self._pipe, theirs = multiprocessing.Pipe()
        self._process = multiprocessing.get_context("spawn").Process(
            target=_sync_on, args=(folder / "probe", theirs), daemon=True
        )
        self._syncs: list[tuple[float, float]] = []

    def __enter__(self) -> DiskProbe:
        self._process.start()
        self._pipe.recv()
        return self

    def __exit__(self, *_: object) -> None:
        self._process.terminate()
        self._process.join()

    def stop(self) -> None:
        """Sync no more; `longest_s` can be asked from now on."""
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
    sync = getattr(os, "fdatasync", os.fsync)
    syncs: list[tuple[float, float]] = []
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT, 0o600)
    os.write(descriptor, bytes(_BYTES))
    os.fsync(descriptor)
    pipe.send("begun")
    while not pipe.poll(_EVERY_S):
        since = time.monotonic()
        os.pwrite(descriptor, bytes(_BYTES), 0)
        sync(descriptor)
        syncs.append((since, time.monotonic()))
    pipe.send(syncs)

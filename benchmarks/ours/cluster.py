"""A standalone Spark cluster on loopback, from the package alone, and its processes: executors and tasks.

It only starts, finds and ends processes; what runs on the cluster is said where it is used.
"""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import pyspark

sys.path.append(str(Path(__file__).parents[2] / "tests"))

from spark.clusters import running_cluster
from spark.jvm import Jvm

__all__ = ["Cluster", "cluster", "processes"]

_DEADLINE_S = 120.0
_LOOK_S = 0.05


class _Process(NamedTuple):
    """A line of `ps`."""

    pid: int
    parent: int
    words: str


class Cluster:
    """A master and its workers, one core each. Started by `cluster`.

    Args:
        url: of the master.
        settings: of an application, so that it fits.
        workers: their process ids.
    """

    def __init__(self, url: str, settings: dict[str, str], workers: list[int]) -> None:
        self.url = url
        self.settings = settings
        self._workers = workers

    def executors(self) -> list[int]:
        """The process ids of the executors that run, in the order of the workers."""
        found = {one.parent: one.pid for one in processes() if "CoarseGrainedExecutorBackend" in one.words}
        return [found[worker] for worker in self._workers if worker in found]

    def task_at_work(self) -> int:
        """The process id of a Python worker that runs a program now; waits for one.

        Raises:
            RuntimeError: none runs one within two minutes.
        """
        end = time.monotonic() + _DEADLINE_S
        while time.monotonic() < end:
            table = processes()
            parents = {one.pid: one.parent for one in table}
            executors = set(self.executors())
            for one in table:
                # executor → the process that forks Python workers → worker → program
                worker = one.parent
                if "-m pyspark.daemon" not in one.words and parents.get(parents.get(worker, 0), 0) in executors:
                    return worker
            time.sleep(_LOOK_S)
        raise RuntimeError("no task has run a program for two minutes")


@contextmanager
def cluster(folder: Path) -> Iterator[Cluster]:
    """A master and two workers, whose logs and scratch files lie in `folder`; the same as in the tests.

    Raises:
        AssertionError: the workers are not there in time.
    """
    jvm = Jvm(flags="", home=str(Path(pyspark.__file__).parent))
    with running_cluster(folder, jvm) as started:
        yield Cluster(started.url, started.settings, [worker.pid for worker in started.workers])


def processes() -> list[_Process]:
    """All processes of the machine."""
    told = subprocess.run(
        ["ps", "-ww", "-A", "-o", "pid=,ppid=,args="], capture_output=True, text=True, check=True
    ).stdout
    found = []
    for line in told.splitlines():
        pid, parent, *words = line.split(None, 2)
        if pid.isdigit() and parent.isdigit():  # a program with line ends in its arguments takes several lines
            found.append(_Process(int(pid), int(parent), words[0] if words else ""))
    return found

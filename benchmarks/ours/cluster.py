"""A standalone cluster of Spark on loopback, from the package alone, and the processes under it: which is an executor, which a task.

It only starts, finds and ends processes; what runs on the cluster is said where it is used.
"""

from __future__ import annotations

import os
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

_DEADLINE_S = 120.0
_LOOK_S = 0.05
_JAVA = "-XX:+UseSerialGC -XX:TieredStopAtLevel=1"
_WORKERS_COUNT = 2
CONF = {
    "spark.executor.memory": "700m",
    "spark.executor.cores": "1",
    "spark.cores.max": str(_WORKERS_COUNT),
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
}
"""Settings of an application that has one executor of one core on each worker."""


class _Process(NamedTuple):
    """A line of `ps`."""

    pid: int
    parent: int
    words: str


class Cluster:
    """A master and its workers, one core each. Made by `cluster`."""

    def __init__(self, url: str, workers: list[int]) -> None:
        self.url = url
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
    """A master and two workers, whose logs and scratch files lie in `folder`.

    Raises:
        RuntimeError: the workers are not there within two minutes.
    """
    import pyspark

    from opsq.spark import ensure_java

    ensure_java()
    home = Path(pyspark.__file__).parent
    environ = os.environ | {
        "SPARK_HOME": str(home),
        "SPARK_LOCAL_IP": "127.0.0.1",
        "SPARK_DAEMON_MEMORY": "256m",
        "SPARK_DAEMON_JAVA_OPTS": _JAVA,
        "SPARK_MASTER_OPTS": "-Dspark.master.rest.enabled=false",
    }
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    url, log = f"spark://127.0.0.1:{port}", folder / "master.log"

    def start(name: str, kind: str, *words: str) -> subprocess.Popen[bytes]:
        line = [str(home / "bin" / "spark-class"), f"org.apache.spark.deploy.{kind}", *words, "--host", "127.0.0.1", "--webui-port", "0"]
        with (folder / f"{name}.log").open("wb") as out:
            return subprocess.Popen(line, env=environ, stdin=subprocess.DEVNULL, stdout=out, stderr=out)

    children = [start("master", "master.Master", "--port", str(port))]
    try:
        for number in range(_WORKERS_COUNT):
            words = (url, "--port", "0", "--cores", "1", "--memory", "1g", "--work-dir", str(folder / f"work-{number}"))
            children.append(start(f"worker-{number}", "worker.Worker", *words))
        end = time.monotonic() + _DEADLINE_S
        while log.read_text().count("Registering worker") < _WORKERS_COUNT:
            if time.monotonic() > end:
                raise RuntimeError(f"the workers are not there after {_DEADLINE_S:.0f} s; the logs are in {folder}")
            time.sleep(_LOOK_S)
        yield Cluster(url, [child.pid for child in children[1:]])
    finally:
        for child in reversed(children):
            child.terminate()
        for child in children:
            child.wait(_DEADLINE_S)


def processes() -> list[_Process]:
    """All processes of the machine."""
    told = subprocess.run(["ps", "-ww", "-A", "-o", "pid=,ppid=,args="], capture_output=True, text=True, check=True).stdout
    found = []
    for line in told.splitlines():
        pid, parent, *words = line.split(None, 2)
        if pid.isdigit() and parent.isdigit():  # a program with line ends in its arguments takes several lines
            found.append(_Process(int(pid), int(parent), words[0] if words else ""))
    return found

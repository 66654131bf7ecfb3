"""A real cluster on loopback, from the package alone, and what tests do to it: find the executor of a program, kill it.

It must not know what runs on the cluster.
"""

from __future__ import annotations

import contextlib
import os
import re
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

from spark.jvm import DEADLINE_S, SHORT_RUN, Jvm
from waiting import wait_until

_EXECUTOR = "CoarseGrainedExecutorBackend"


def executors(flags: str) -> dict[str, str]:
    """Settings of an application that has two executors of one core each.

    Args:
        flags: of their JVMs, and of its own.
    """
    return {
        "spark.executor.memory": "600m",
        "spark.executor.cores": "1",
        "spark.cores.max": "2",
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.driver.extraJavaOptions": flags,
        "spark.executor.extraJavaOptions": flags,
    }


class Cluster:
    """A master and two workers of one core each that listen on loopback only.

    Each worker is at an address of its own where loopback has several, as on Linux: Spark repeats no task for
    speculation on the host where it runs already.

    Args:
        folder: where their logs and scratch files are.
        jvm: how they start fast, and applications.
    """

    def __init__(self, folder: Path, jvm: Jvm) -> None:
        self.settings = executors(jvm.flags)
        self.workers: list[subprocess.Popen[bytes]] = []
        self._folder = folder
        self._program = str(Path(jvm.home, "bin", "spark-class"))
        self._environ = os.environ | {
            "SPARK_HOME": jvm.home,
            "SPARK_LAUNCHER_OPTS": SHORT_RUN,
            "SPARK_LOCAL_IP": "127.0.0.1",
            "SPARK_DAEMON_MEMORY": "256m",
            "SPARK_DAEMON_JAVA_OPTS": jvm.flags,
            "SPARK_MASTER_OPTS": "-Dspark.master.rest.enabled=false",
        }
        self._hosts = ("127.0.0.1", "127.0.0.2" if sys.platform == "linux" else "127.0.0.1")
        self._started_count = 0
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        self.url = f"spark://127.0.0.1:{port}"
        self._master = self._start("master", "master.Master", "127.0.0.1", "--port", str(port))

    def restore(self) -> None:
        """Start the workers that are not there, and wait until the master knows of them."""
        for place, host in enumerate(self._hosts):
            if len(self.workers) > place and self.workers[place].poll() is None:
                continue
            self._started_count += 1
            name = f"w{self._started_count}"
            words = (
                self.url,
                "--port",
                "0",
                "--cores",
                "1",
                "--memory",
                "700m",
                "--work-dir",
                str(self._folder / name),
            )
            self.workers[place : place + 1] = [self._start(name, "worker.Worker", host, *words)]
        try:
            wait_until(self._is_complete, DEADLINE_S, "both workers are there")
        except AssertionError as error:
            logs = (f"--- {log.name}\n{log.read_text()[-4000:]}" for log in sorted(self._folder.glob("*.log")))
            raise AssertionError("\n".join((str(error), *logs))) from None

    def stop(self) -> None:
        """End all of it."""
        children = [*self.workers, self._master]
        for child in children:
            child.terminate()
        for child in children:
            child.wait(DEADLINE_S)

    def _is_complete(self) -> bool:
        for child in (self._master, *self.workers):
            assert child.poll() is None, f"a part of the cluster has ended with status {child.returncode}"
        # By address: a worker that waits long for the answer registers again.
        log = (self._folder / "master.log").read_text()
        return len(set(re.findall(r"Registering worker (\S+)", log))) == self._started_count

    def _start(self, name: str, kind: str, host: str, *words: str) -> subprocess.Popen[bytes]:
        line = [self._program, f"org.apache.spark.deploy.{kind}", *words, "--host", host, "--webui-port", "0"]
        with (self._folder / f"{name}.log").open("wb") as out:
            return subprocess.Popen(line, env=self._environ, stdin=subprocess.DEVNULL, stdout=out, stderr=out)


@contextlib.contextmanager
def running_cluster(folder: Path, jvm: Jvm) -> Iterator[Cluster]:
    """A cluster that is gone afterwards."""
    cluster = Cluster(folder, jvm)
    try:
        cluster.restore()
        yield cluster
    finally:
        cluster.stop()


def is_alive(pid: int) -> bool:
    """Whether there is such a process."""
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, 0)
        return True
    return False


def parent_of(pid: int) -> int:
    """The process that started this one."""
    return int(_told("ppid=", pid))


def executor_of(pid: int) -> int:
    """The JVM of the executor under which a process runs, whatever stands between them."""
    while pid > 1:
        if _EXECUTOR in _told("args=", pid):
            return pid
        pid = parent_of(pid)
    raise AssertionError("the process runs under no executor")


def _told(column: str, pid: int) -> str:
    line = ["ps", "-ww", "-o", column, "-p", str(pid)]
    return subprocess.run(line, capture_output=True, text=True, check=True).stdout.strip()

"""A real cluster on loopback, from the package alone, and what tests do to it: find the executor of a program, kill it.

It must not know what runs on the cluster.
"""

from __future__ import annotations

import contextlib
import os
import socket
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from waiting import wait_until

DEADLINE_S = 1200
"""For one command on a cluster: two executors that start on a busy machine take minutes."""
JAVA = "-XX:+UseSerialGC -XX:TieredStopAtLevel=1"
EXECUTORS = {
    "spark.executor.memory": "600m",
    "spark.executor.cores": "1",
    "spark.cores.max": "2",
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.driver.extraJavaOptions": JAVA,
    "spark.executor.extraJavaOptions": JAVA,
}
"""Settings of an application that has two executors of one core each."""
_EXECUTOR = "CoarseGrainedExecutorBackend"


class Cluster(NamedTuple):
    """A master and its workers."""

    url: str
    workers: list[subprocess.Popen[bytes]]


@contextlib.contextmanager
def running_cluster(folder: Path, hosts: tuple[str, str] = ("127.0.0.1", "127.0.0.1")) -> Iterator[Cluster]:
    """A master and two workers of one core each that listen on loopback only.

    Their logs and scratch files lie in `folder`.

    Args:
        hosts: of the workers, addresses of loopback. Spark repeats no task for speculation on the host where it runs
            already.
    """
    import pyspark

    from opsq.spark import ensure_java

    ensure_java()
    home = Path(pyspark.__file__).parent
    environ = os.environ | {
        "SPARK_HOME": str(home),
        "SPARK_LOCAL_IP": "127.0.0.1",
        "SPARK_DAEMON_MEMORY": "256m",
        "SPARK_DAEMON_JAVA_OPTS": JAVA,
        "SPARK_MASTER_OPTS": "-Dspark.master.rest.enabled=false",
    }
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    url, log = f"spark://127.0.0.1:{port}", folder / "master.log"

    def start(name: str, kind: str, host: str, *words: str) -> subprocess.Popen[bytes]:
        line = [
            str(home / "bin" / "spark-class"),
            f"org.apache.spark.deploy.{kind}",
            *words,
            "--host",
            host,
            "--webui-port",
            "0",
        ]
        with (folder / f"{name}.log").open("wb") as out:
            return subprocess.Popen(line, env=environ, stdin=subprocess.DEVNULL, stdout=out, stderr=out)

    children = [start("master", "master.Master", "127.0.0.1", "--port", str(port))]
    try:
        for name, host in zip(("w1", "w2"), hosts, strict=True):
            words = (url, "--port", "0", "--cores", "1", "--memory", "700m", "--work-dir", str(folder / name))
            children.append(start(name, "worker.Worker", host, *words))
        wait_until(lambda: log.read_text().count("Registering worker") == 2, DEADLINE_S, "both workers are there")
        yield Cluster(url, children[1:])
    finally:
        for child in reversed(children):
            child.terminate()
        for child in children:
            child.wait(300)


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

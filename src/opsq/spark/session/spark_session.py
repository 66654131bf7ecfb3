"""Builds Spark sessions for opsq: on any suitable Java, quiet, on loopback if all is local; or of Spark Connect.

This file must not know the data source; users with a session of their own need nothing of it except `hide_tokens`.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import cache
from importlib import resources
from typing import TYPE_CHECKING, Any

from opsq.errors import CommandNotFound, Conflict, Unreachable, UsageError
from opsq.spark.session.java import ensure_java
from opsq.spark.session.pyspark_links import folder_of_process, light_home

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

BATCH_ROWS = 65536
"""Rows in one Arrow batch; Spark's own 10 000 halve the throughput of the source."""

_SQL = {
    "spark.sql.execution.arrow.maxRecordsPerBatch": str(BATCH_ROWS),
    "spark.sql.python.filterPushdown.enabled": "true",
}
_LOCAL = {"spark.driver.bindAddress": "127.0.0.1", "spark.driver.host": "127.0.0.1"}
_ALWAYS = {"spark.ui.enabled": "false", "spark.ui.showConsoleProgress": "false", **_SQL}
JAVA_OPTIONS = "spark.driver.extraJavaOptions"

_SOCKET_PATH_BYTES = 60
"""The most bytes of a folder of sockets: Spark adds 43, and macOS allows 103."""

_MODULES = ("pyspark", "pyarrow", "pandas", "arro3.io")
_CONNECT = "sc://"
_ANSWER_S = 20.0
"""How long a server of Spark Connect may take to answer; PySpark itself would try for ten minutes without a server."""
_REDACTION = "spark.sql.redaction.string.regex"
_OPTION = r'(?i:key: "token"\s*value: "(?:[^"\\]|\\.)*")'
"""The option `token` as a server of Spark Connect prints it."""


def build_session(
    master: str = "local[*]",
    *,
    name: str = "opsq",
    conf: Mapping[str, str] | None = None,
    is_quiet: bool = True,
    is_short: bool = False,
) -> SparkSession:
    """Start a session, or return the one that this process has already, with these settings.

    Args:
        master: as Spark understands it: `local[2]`, `spark://HOST:PORT`, `yarn`, …, or the `sc://HOST:PORT` of a Spark
            Connect server, for which all other arguments but `conf` are ignored.
        name: of the application.
        conf: overrides what is set here.
        is_quiet: log only errors, to stderr, and draw no progress bar.
        is_short: use JVM flags for a faster start and slower computation, for jobs of seconds.

    Raises:
        CommandNotFound: PySpark, what its Spark Connect client needs, or Java is missing; the message says what to
            install.
        Unreachable: no Spark Connect server answers.
        UsageError: the URL of a server is invalid, or it refuses a setting of `conf`, as it does those of its own JVM.
        Conflict: this process has a session that is not of Spark Connect.

    Effects: sets JAVA_HOME, PYSPARK_PYTHON and (for a local master) SPARK_LOCAL_IP if they are not set, and none of
        them for Spark Connect; SPARK_HOME while the JVM of a local master starts, to a temporary folder
        (`pyspark_links`). Makes another for sockets. Both are deleted when this process exits. Options of the driver's
        JVM take effect in the first session of a process only.
    """
    if is_connect(master):
        return _connect(master, conf or {})
    _require("opsq[spark]", _MODULES)
    ensure_java()
    from pyspark.sql import SparkSession

    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    settings = dict(_ALWAYS)
    if master.startswith("local"):
        os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
        settings |= _LOCAL | _unix_sockets(os.environ["PYSPARK_PYTHON"])
    java_options = []
    if is_short:
        java_options.append("-XX:+UseSerialGC -XX:TieredStopAtLevel=1")
    if is_quiet:
        java_options.append(f"-Dlog4j2.configurationFile={resources.files('opsq.spark') / 'log4j2.properties'}")
        settings["spark.log.level"] = "ERROR"
    settings |= conf or {}
    if java_options:
        settings[JAVA_OPTIONS] = " ".join([*java_options, settings.get(JAVA_OPTIONS, "")]).strip()
    builder = SparkSession.builder.master(master).appName(name)
    for key, value in settings.items():
        builder = builder.config(key, value)
    if not master.startswith("local") or "spark.executorEnv.PYTHONPATH" in settings:
        return builder.getOrCreate()
    with light_home(os.environ["PYSPARK_PYTHON"]):
        return builder.getOrCreate()


def _unix_sockets(python: str) -> dict[str, str]:
    """Settings that have a JVM on this machine talk to its Python workers over Unix sockets, in a private folder.

    Over TCP each task waits about 20 ms, whatever it does, for acknowledgements that both kernels delay. A worker
    notices sooner that its JVM has hung up, hence a process of our own that forks it.
    """
    folder = _socket_folder() if python == sys.executable else None
    if folder is None:
        return {}
    return {
        "spark.python.unix.domain.socket.enabled": "true",
        "spark.python.unix.domain.socket.dir": folder,
        "spark.python.daemon.module": "opsq.spark.session.worker_daemon",
    }


@cache
def _socket_folder() -> str | None:
    """The private folder of this process; None: there is no usable temporary folder, or its path is too long."""
    with suppress(OSError):
        folder = folder_of_process("opsq-spark-sockets-")
        return folder if len(os.fsencode(folder)) <= _SOCKET_PATH_BYTES else None
    return None


def is_connect(master: str) -> bool:
    """Whether a master is a Spark Connect server."""
    return master.startswith(_CONNECT)


def shown(master: str) -> str:
    """A master without its parameters, which may contain a token."""
    return master.partition(";")[0].rstrip("/") if is_connect(master) else master


def is_remote(spark: SparkSession) -> bool:
    """Whether a session is one of Spark Connect, whose files and settings are not those of this process."""
    from pyspark.sql import SparkSession as ClassicSession  # Spark Connect has another class

    return not isinstance(spark, ClassicSession)


def hide_tokens(spark: SparkSession) -> None:
    """Make a Spark Connect server redact the option `token` where it shows operations; other sessions never show it.

    The server prints each operation with all options in its UI, in job descriptions and in the event log, and redacts
    only what matches a pattern of the session.
    """
    if not is_remote(spark):
        return
    before = spark.conf.get(_REDACTION, None) or spark.conf.get("spark.redaction.string.regex", None) or ""
    if _OPTION not in before:
        spark.conf.set(_REDACTION, f"{before}|{_OPTION}" if before else _OPTION)


def _connect(master: str, conf: Mapping[str, str]) -> SparkSession:
    _require("opsq[spark-connect]", (*_MODULES, "grpc", "grpc_status", "google.rpc", "zstandard"))
    from pyspark.errors import PySparkException, PySparkRuntimeError, PySparkValueError
    from pyspark.sql import SparkSession
    from pyspark.sql.connect.client import DefaultChannelBuilder

    try:
        _check_answer(DefaultChannelBuilder(master), shown(master))
    except PySparkValueError as error:
        raise UsageError(
            f"{shown(master)} is not an address of Spark Connect: {error.getMessage()}", hint="Write sc://HOST:PORT."
        ) from error
    before = SparkSession.getActiveSession()
    try:
        spark = SparkSession.builder.remote(master).getOrCreate()
    except PySparkRuntimeError as error:
        if error.getCondition() != "SESSION_ALREADY_EXIST":
            raise
        raise Conflict(
            "This process has a session that is not of Spark Connect.", hint="Stop it first, or use another process."
        ) from error
    try:
        for key, value in {**_SQL, **conf}.items():
            try:
                spark.conf.set(key, value)
            except PySparkException as error:
                raise UsageError(
                    f"The server at {shown(master)} does not let a session set {key} to {value!r}: {_reason(error)}",
                    hint="Only settings of SQL belong to a session: leave it out, or start the server with it.",
                ) from error
        hide_tokens(spark)
    except BaseException:
        if before is None:
            spark.stop()
        raise
    return spark


def _reason(error: Any) -> str:
    lines = str(error).strip().splitlines()
    return lines[0] if lines else type(error).__name__


def _check_answer(builder: Any, place: str) -> None:
    """Check that a server answers.

    Raises:
        Unreachable: there is none, or it does not answer in time.
    """
    import queue

    import grpc

    ready, failed = grpc.ChannelConnectivity.READY, grpc.ChannelConnectivity.TRANSIENT_FAILURE
    states: queue.SimpleQueue[Any] = queue.SimpleQueue()
    with builder.toChannel() as channel:
        note = states.put
        channel.subscribe(note, try_to_connect=True)
        try:
            while (state := states.get(timeout=_ANSWER_S)) is not ready:
                if state is failed:
                    break
        except queue.Empty:
            state = failed
        channel.unsubscribe(note)
    if state is not ready:
        raise Unreachable(
            f"No Spark Connect server answers at {place}.",
            hint="Is it started (start-connect-server.sh of Spark), on that host and port, with TLS if the URL asks "
            "for it?",
        )


def _require(extra: str, modules: Sequence[str]) -> None:
    """Check that modules can be imported.

    Raises:
        CommandNotFound: one is missing; the hint names the extra that has it.
    """
    from importlib.util import find_spec

    def is_there(module: str) -> bool:
        try:
            return find_spec(module) is not None
        except ModuleNotFoundError:  # its parent is missing
            return False

    missing = [module for module in modules if not is_there(module)]
    if missing:
        raise CommandNotFound(
            f"Spark cannot be used: {', '.join(missing)} is not installed.", hint=f"pip install '{extra}'"
        )

"""Makes Spark sessions that suit opsq: on whatever Java there is, quiet, on loopback where everything is local.

This file must not know the data source; whoever has a session of their own needs nothing of it.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from importlib import resources
from typing import TYPE_CHECKING

from opsq.errors import CommandNotFound
from opsq.spark.java import ensure_java

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

BATCH_ROWS = 65536
"""Rows in one Arrow batch; Spark's own 10 000 halve what the source reads and writes a second."""

_LOCAL = {
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.driver.host": "127.0.0.1",
}
_ALWAYS = {
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.sql.execution.arrow.maxRecordsPerBatch": str(BATCH_ROWS),
}
JAVA_OPTIONS = "spark.driver.extraJavaOptions"


def build_session(
    master: str = "local[*]",
    *,
    name: str = "opsq",
    conf: Mapping[str, str] | None = None,
    is_quiet: bool = True,
    is_short: bool = False,
) -> SparkSession:
    """A session, or the one that this process has already, with these settings.

    Args:
        master: as Spark understands it: `local[2]`, `spark://HOST:PORT`, `yarn`, …
        name: of the application.
        conf: goes before what is set here.
        is_quiet: only errors are logged, to stderr, and no progress bar is drawn.
        is_short: flags that make the JVM start sooner and compute slower, for jobs of seconds.

    Raises:
        CommandNotFound: PySpark or Java is missing; the message says what to install.

    Effects: sets JAVA_HOME, PYSPARK_PYTHON and (for a local master) SPARK_LOCAL_IP if they are not set. Options of the
        driver's JVM take effect in the first session of a process only.
    """
    require_pyspark()
    ensure_java()
    from pyspark.sql import SparkSession

    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    settings = dict(_ALWAYS)
    if master.startswith("local"):
        os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
        settings |= _LOCAL
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
    return builder.getOrCreate()


def require_pyspark() -> None:
    """See to it that PySpark and what it needs can be imported.

    Raises:
        CommandNotFound: something is missing.
    """
    from importlib.util import find_spec

    missing = [module for module in ("pyspark", "pyarrow", "pandas") if find_spec(module) is None]
    if missing:
        raise CommandNotFound(f"Spark cannot be used: {', '.join(missing)} is not installed.", hint="pip install 'opsq[spark]'")

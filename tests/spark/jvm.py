"""Owns how fast a JVM of the tests starts: an archive of Spark's classes halves the processor time of each start.

It must not change what a JVM computes: one that cannot use an archive runs without it.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import NamedTuple

DEADLINE_S = 600
"""For whatever starts JVMs, or waits for them: seconds alone, minutes on a busy machine. It costs time only when a test
fails."""

SHORT_RUN = "-XX:+UseSerialGC -XX:TieredStopAtLevel=1"
"""Flags that make a JVM start sooner and compute slower."""

_WARM_UP = """
import sys
import pyarrow as pa
from opsq.spark import build_session
from pyspark import SparkContext

archive, folder = sys.argv[1:]
conf = {"spark.driver.extraJavaOptions": f"-XX:ArchiveClassesAtExit={archive}", "spark.sql.warehouse.dir": folder}
spark = build_session("local[2]", conf=conf, is_short=True)
rows = spark.range(200).selectExpr("id", "'row ' || id AS text", "id % 7 AS k", "named_struct('a', id) AS part")
for kind in ("parquet", "json"):
    rows.write.format(kind).save(f"{folder}/{kind}")
    spark.read.format(kind).load(f"{folder}/{kind}").where("id > 3").groupBy("k").count().orderBy("k").collect()
rows.select("id").mapInArrow(lambda batches: batches, "id long").repartition(2).collect()
spark.createDataFrame(pa.table({"n": [1, 2]})).toArrow()
gateway = SparkContext._gateway
spark.stop()
gateway.shutdown()
gateway.proc.stdin.close()
sys.exit(gateway.proc.wait())
"""


class Jvm(NamedTuple):
    """How to start JVMs fast.

    Attributes:
        flags: of a JVM.
        home: the installed PySpark. A JVM takes an archive only with the class path that made it, so this is the home
            of all.
    """

    flags: str
    home: str

    @property
    def environ(self) -> dict[str, str]:
        """The variables of a process that starts a local session."""
        return {"SPARK_HOME": self.home, "SPARK_LAUNCHER_OPTS": SHORT_RUN, "SPARK_SUBMIT_OPTS": self.flags}


def fast_jvm(java_home: str, folder: Path) -> Jvm:
    """Find the archive in a folder, or make it there; of processes that ask at once, one makes it.

    Args:
        java_home: the Java that Spark runs on.
        folder: where it is kept from one run to the next.
    """
    import pyspark

    home = str(Path(pyspark.__file__).parent)
    java = Path(java_home, "bin", "java").resolve()
    made_of = f"{java} {java.stat().st_mtime_ns} {home} {pyspark.__version__}"
    archive = folder / f"{hashlib.sha256(made_of.encode()).hexdigest()[:16]}.jsa"
    with (folder / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not archive.exists():
            _make(archive, home)
    if not archive.exists():
        return Jvm(SHORT_RUN, home)
    flags = f"-XX:SharedArchiveFile={archive} -Xshare:auto -Xlog:cds=off,cds+dynamic=off,class+path=off"
    return Jvm(f"{SHORT_RUN} {flags}", home)


def _make(archive: Path, home: str) -> None:
    """Make an archive of what a short session loads; where that fails, there is none."""
    beside = archive.with_suffix(".new")
    beside.unlink(missing_ok=True)
    with tempfile.TemporaryDirectory() as scratch:
        words = [sys.executable, "-c", _WARM_UP, str(beside), f"{scratch}/data"]
        environ = os.environ | {"SPARK_HOME": home, "SPARK_LAUNCHER_OPTS": SHORT_RUN}
        done = subprocess.run(words, env=environ, stdin=subprocess.DEVNULL, capture_output=True)
    if done.returncode == 0 and beside.exists():
        beside.rename(archive)

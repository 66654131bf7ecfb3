"""opsq on PySpark: DataFrames become submissions, results become DataFrames.

Nothing of PySpark or Arrow is loaded before it is used, so that importing this package costs next to nothing and fails
nowhere. `format("opsq")` needs no call: Spark finds the package `pyspark_opsq` by its name.

    df.write.format("opsq").mode("append").option("rowsPerChunk", 1000).save()
    spark.read.format("opsq").load(submission_id)

- `consume`: work off chunks on the executors, with a program or a function.
- `register`: tell a session of the data source, where Spark did not find it by itself.
- `results`: the results of a submission as a DataFrame, by the fastest way there is.
- `submission_of`: which submission a write with an `idempotencyKey` made.
- `sweep`: delete what attempts that lost have left beside the content of submissions.
- `build_session`, `ensure_java`: a quiet session, on whatever Java there is.

`opsq.spark.report` has what the history of a queue tells, as functions on DataFrames.
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from opsq.spark.fleet.driver import consume
    from opsq.spark.notebook import register, results, submission_of, sweep
    from opsq.spark.session.java import ensure_java
    from opsq.spark.session.spark_session import build_session

__all__ = ["build_session", "consume", "ensure_java", "register", "results", "submission_of", "sweep"]

_PLACES = {
    "build_session": "opsq.spark.session.spark_session",
    "consume": "opsq.spark.fleet.driver",
    "ensure_java": "opsq.spark.session.java",
    "register": "opsq.spark.notebook",
    "results": "opsq.spark.notebook",
    "submission_of": "opsq.spark.notebook",
    "sweep": "opsq.spark.notebook",
}


def __getattr__(name: str) -> object:
    from importlib import import_module

    if name not in _PLACES:
        raise AttributeError(f"module 'opsq.spark' has no attribute {name!r}")
    found: object = getattr(import_module(_PLACES[name]), name)
    globals()[name] = found
    return found


def __dir__() -> list[str]:
    return sorted(__all__)

"""opsq on PySpark: DataFrames become submissions, results become DataFrames.

PySpark and Arrow are loaded when they are first used, so that importing this package is cheap and cannot fail.
`format("opsq")` needs no registration: Spark finds the package `pyspark_opsq` by its name.

    submission_id = opsq.spark.write(df, rows_per_chunk=1000)
    spark.read.format("opsq").load(submission_id)

- `consume`: process chunks on the executors, with a program or a function.
- `register`: register the data source with a session in which Spark did not find it by itself.
- `results`: the results of a submission as a DataFrame, read in the fastest way.
- `submission_of`: the submission that a write with an `idempotencyKey` made.
- `write`: a DataFrame as a submission, whose id comes back.
- `sweep`: delete what losing attempts left beside the content of submissions.
- `build_session`, `ensure_java`: a quiet session, on any suitable Java.

`opsq.spark.report` has measures of a queue's history, as functions on DataFrames.
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from opsq.runner.polled_consumer import Until
    from opsq.runner.pool_options import ConsumeOptions
    from opsq.spark.fleet.chunk_function import Frames
    from opsq.spark.fleet.driver import FleetSummary, consume
    from opsq.spark.notebook import register, results, submission_of, sweep, write
    from opsq.spark.session.java import Java, ensure_java
    from opsq.spark.session.spark_session import build_session
    from opsq.spark.source.source_options import ReadKeywords, WriteKeywords

__all__ = [
    "ConsumeOptions",
    "FleetSummary",
    "Frames",
    "Java",
    "ReadKeywords",
    "Until",
    "WriteKeywords",
    "build_session",
    "consume",
    "ensure_java",
    "register",
    "results",
    "submission_of",
    "sweep",
    "write",
]

_PLACES = {
    "ConsumeOptions": "opsq.runner.pool_options",
    "FleetSummary": "opsq.spark.fleet.driver",
    "Frames": "opsq.spark.fleet.chunk_function",
    "Java": "opsq.spark.session.java",
    "ReadKeywords": "opsq.spark.source.source_options",
    "Until": "opsq.runner.polled_consumer",
    "WriteKeywords": "opsq.spark.source.source_options",
    "build_session": "opsq.spark.session.spark_session",
    "consume": "opsq.spark.fleet.driver",
    "ensure_java": "opsq.spark.session.java",
    "register": "opsq.spark.notebook",
    "results": "opsq.spark.notebook",
    "submission_of": "opsq.spark.notebook",
    "sweep": "opsq.spark.notebook",
    "write": "opsq.spark.notebook",
}


def _load(name: str) -> object:
    from importlib import import_module

    if name not in _PLACES:
        raise AttributeError(f"module 'opsq.spark' has no attribute {name!r}")
    found: object = getattr(import_module(_PLACES[name]), name)
    globals()[name] = found
    return found


if not TYPE_CHECKING:  # which would take any misspelt name for one of the package
    __getattr__ = _load


def __dir__() -> list[str]:
    return sorted(__all__)

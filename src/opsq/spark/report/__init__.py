"""What the history of a queue says, as functions on DataFrames; how a report is computed and drawn.

PySpark is loaded when one of these names is first used, not when this package is imported.
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from opsq.spark.report.measures import (
        ACCURACY,
        PERCENTS,
        failures,
        fairness,
        histogram,
        jain,
        load_history,
        percentiles,
        service,
        shares,
        span,
        step_for,
        summary,
        throughput,
        utilisation,
    )

__all__ = [
    "ACCURACY",
    "PERCENTS",
    "failures",
    "fairness",
    "histogram",
    "jain",
    "load_history",
    "percentiles",
    "service",
    "shares",
    "span",
    "step_for",
    "summary",
    "throughput",
    "utilisation",
]


def __getattr__(name: str) -> object:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from opsq.spark.report import measures

    found: object = getattr(measures, name)
    return found

"""What the history of a queue tells, as functions on DataFrames; how a report is computed and drawn."""

from opsq.spark.report.measures import (
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

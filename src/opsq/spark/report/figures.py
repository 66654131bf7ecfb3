"""All figures of a report, computed and collected: what a page or a terminal shows of a history.

It must not show anything.
"""

from __future__ import annotations

from typing import Any, NamedTuple, TypeVar

import msgspec
from pyspark.sql import DataFrame
from pyspark.sql import functions as sf

from opsq.spark.report import measures
from opsq.spark.report.rows import (
    ReportConsumer,
    ReportDocument,
    ReportFailure,
    ReportShare,
    ReportSummary,
    ReportWindow,
)
from opsq.spark.report.spans import SUBMISSION
from opsq.units import format_instant

DRAWN_COUNT = 6
"""The number of values that get a line of their own over time."""
_KINDS_COUNT = 20

R = TypeVar("R", bound=msgspec.Struct)


class Figures(NamedTuple):
    """A report, and what is only drawn."""

    report: ReportDocument
    drawn: list[ReportWindow]
    """Of the `DRAWN_COUNT` values with the most chunks."""


def gather(history: DataFrame, by: str = SUBMISSION, *, limit: int = 20, step_s: int | None = None) -> Figures | None:
    """The figures of a history, a dozen jobs; None if it is empty.

    Args:
        limit: the most values and consumers, those with the most chunks and run time.
        step_s: the length of windows; by default a round one so that at most 60 cover the history.
    """
    [whole] = _collected(measures.span(history), "rows", "first_at", "last_at")
    rows_count, first_at, last_at = whole
    if not rows_count:
        return None
    step_s = step_s or measures.step_for((last_at - first_at) / 1000)
    [total] = _of(ReportSummary, measures.summary(history, None))
    ended = sf.col("completed") + sf.col("failed") + sf.col("lost") + sf.col("dead")
    summaries = measures.summary(history, by).persist()
    values = _of(ReportSummary, summaries.orderBy(ended.desc(), sf.col("value").asc_nulls_last()).limit(limit))
    values_count = summaries.count()
    summaries.unpersist()
    used = measures.utilisation(history, step_s).persist()
    consumers = _of(ReportConsumer, used.orderBy(sf.desc("busy_s"), "consumer").limit(limit))
    consumers_count = used.count()
    used.unpersist()
    fair = measures.fairness(history, by, step_s).persist()
    shares = _of(ReportShare, fair.orderBy(sf.desc("demand_s"), sf.col("value").asc_nulls_last()).limit(limit))
    [(jain, _)] = _collected(measures.jain(fair), "jain", "values")
    fair.unpersist()
    found = measures.throughput(history, by, step_s)
    named = [summary.value for summary in values[:DRAWN_COUNT]]
    is_drawn = sf.col("value").isin([name for name in named if name is not None])
    if None in named:
        is_drawn |= sf.col("value").isNull()
    kinds = measures.failures(history, None).orderBy(sf.desc("chunks"), "kind").limit(_KINDS_COUNT)
    report = ReportDocument(
        by=by,
        rows=rows_count,
        first_at=format_instant(first_at),
        last_at=format_instant(last_at),
        step_s=step_s,
        total=total,
        values=values,
        values_count=values_count,
        throughput=_of(ReportWindow, measures.throughput(history, None, step_s).orderBy("window_at")),
        consumers=consumers,
        consumers_count=consumers_count,
        fairness=shares,
        jain=jain,
        failures=_of(ReportFailure, kinds),
    )
    return Figures(report, _of(ReportWindow, found.where(is_drawn).orderBy("value", "window_at")))


def _of(kind: type[R], frame: DataFrame) -> list[R]:
    names = kind.__struct_fields__
    instants = [place for place, name in enumerate(names) if name.endswith("_at")]
    rows = _collected(frame, *names)
    for row in rows:
        for place in instants:
            row[place] = None if row[place] is None else format_instant(row[place])
    return [kind(*row) for row in rows]


def _collected(frame: DataFrame, *names: str) -> list[list[Any]]:
    """The rows, instants as milliseconds since 1970: a datetime would come in the time zone of this process."""
    columns = [sf.unix_millis(name).alias(name) if name.endswith("_at") else sf.col(name) for name in names]
    return [list(row) for row in frame.select(*columns).collect()]

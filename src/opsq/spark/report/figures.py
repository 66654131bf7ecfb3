"""All figures of a report, computed and collected: what a page or a terminal shows of a history.

It must not show anything. Instants are milliseconds since 1970; what is not known, or would be divided by nothing, is None.
"""

from __future__ import annotations

from typing import Any, NamedTuple, TypeVar

from pyspark.sql import DataFrame
from pyspark.sql import functions as sf

from opsq.spark import report
from opsq.spark.report.spans import SUBMISSION

DRAWN_COUNT = 6
"""So many values get a line of their own over time."""
_KINDS_COUNT = 20

R = TypeVar("R", bound=tuple[object, ...])


class Summary(NamedTuple):
    """A row of `report.summary`."""

    value: str | None
    completed: int
    failed: int
    lost: int
    dead: int
    requeued: int
    dropped: int
    retry_rate: float | None
    attempts_per_chunk: float | None
    dead_rate: float | None
    busy_s: float
    first_at: int | None
    last_at: int | None
    per_s: float | None
    wait_p50_s: float | None
    wait_p90_s: float | None
    wait_p99_s: float | None
    run_p50_s: float | None
    run_p90_s: float | None
    run_p99_s: float | None


class Window(NamedTuple):
    """A row of `report.throughput`."""

    value: str | None
    window_at: int
    completed: int
    failed: int
    dead: int
    per_s: float


class Consumer(NamedTuple):
    """A row of `report.utilisation`."""

    consumer: str
    first_at: int
    last_at: int
    completed: int
    failed: int
    busy_s: float
    load: float | None
    peak_load: float | None
    utilisation: float | None


class Share(NamedTuple):
    """A row of `report.fairness`."""

    value: str | None
    service_s: float
    demand_s: float
    entitled_s: float
    service_share: float | None
    demand_share: float | None
    satisfaction: float | None


class Failure(NamedTuple):
    """A row of `report.failures`, of all values together."""

    kind: str
    chunks: int
    reason: str


class Figures(NamedTuple):
    """A report; lists are cut to the largest, and `…_count` tells how many there were."""

    by: str
    rows_count: int
    first_at: int
    last_at: int
    step_s: int
    total: Summary
    values: list[Summary]
    values_count: int
    windows: list[Window]
    """Of all values together; where nothing ended there is none."""
    drawn: list[Window]
    """Of the `DRAWN_COUNT` values with the most chunks."""
    consumers: list[Consumer]
    consumers_count: int
    shares: list[Share]
    jain: float | None
    failures: list[Failure]


def gather(history: DataFrame, by: str = SUBMISSION, *, limit: int = 20, step_s: int | None = None) -> Figures | None:
    """The figures of a history, a dozen jobs; None if it is empty.

    Args:
        limit: so many values and consumers at most, those with the most chunks and run time.
        step_s: the length of windows; by default a round one of which at most 60 cover the history.
    """
    [whole] = _collected(report.span(history), "rows", "first_at", "last_at")
    rows_count, first_at, last_at = whole
    if not rows_count:
        return None
    step_s = step_s or report.step_for((last_at - first_at) / 1000)
    [total] = _of(Summary, report.summary(history, None))
    ended = sf.col("completed") + sf.col("failed") + sf.col("lost") + sf.col("dead")
    summaries = report.summary(history, by).persist()
    values = _of(Summary, summaries.orderBy(ended.desc(), sf.col("value").asc_nulls_last()).limit(limit))
    values_count = summaries.count()
    summaries.unpersist()
    used = report.utilisation(history, step_s).persist()
    consumers = _of(Consumer, used.orderBy(sf.desc("busy_s"), "consumer").limit(limit))
    consumers_count = used.count()
    used.unpersist()
    fair = report.fairness(history, by, step_s).persist()
    shares = _of(Share, fair.orderBy(sf.desc("demand_s"), sf.col("value").asc_nulls_last()).limit(limit))
    [(jain, _)] = _collected(report.jain(fair), "jain", "values")
    fair.unpersist()
    found = report.throughput(history, by, step_s)
    named = [summary.value for summary in values[:DRAWN_COUNT]]
    is_drawn = sf.col("value").isin([name for name in named if name is not None])
    if None in named:
        is_drawn |= sf.col("value").isNull()
    kinds = report.failures(history, None).orderBy(sf.desc("chunks"), "kind").limit(_KINDS_COUNT)
    return Figures(
        by,
        rows_count,
        first_at,
        last_at,
        step_s,
        total,
        values,
        values_count,
        _of(Window, report.throughput(history, None, step_s).orderBy("window_at")),
        _of(Window, found.where(is_drawn).orderBy("value", "window_at")),
        consumers,
        consumers_count,
        shares,
        jain,
        _of(Failure, kinds),
    )


def _of(kind: type[R], frame: DataFrame) -> list[R]:
    names: tuple[str, ...] = kind._fields  # type: ignore[attr-defined]
    return [kind(*row) for row in _collected(frame, *names)]


def _collected(frame: DataFrame, *names: str) -> list[tuple[Any, ...]]:
    """The rows, instants as milliseconds: a datetime would come in the zone of whoever runs this."""
    columns = [sf.unix_millis(name).alias(name) if name.endswith("_at") else sf.col(name) for name in names]
    return [tuple(row) for row in frame.select(*columns).collect()]

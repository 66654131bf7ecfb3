"""The rows of a report, as the page, the terminal and the JSON document show them.

This file must not import PySpark: the command line describes its documents without it. Instants are RFC 3339 in UTC;
what is unknown, or would be divided by zero, is None.
"""

from __future__ import annotations

import msgspec


class ReportSummary(msgspec.Struct):
    """What became of the chunks of a value, or of all: a row of `report.summary`."""

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
    first_at: str | None
    last_at: str | None
    per_s: float | None
    wait_p50_s: float | None
    wait_p90_s: float | None
    wait_p99_s: float | None
    run_p50_s: float | None
    run_p90_s: float | None
    run_p99_s: float | None


class ReportWindow(msgspec.Struct):
    """What ended in a window of time: a row of `report.throughput`."""

    value: str | None
    window_at: str
    completed: int
    failed: int
    dead: int
    per_s: float


class ReportConsumer(msgspec.Struct):
    """How busy a consumer was: a row of `report.utilisation`."""

    consumer: str
    first_at: str
    last_at: str
    completed: int
    failed: int
    busy_s: float
    load: float | None
    peak_load: float | None
    utilisation: float | None


class ReportShare(msgspec.Struct):
    """What a value got, could have used, and should have got: a row of `report.fairness`."""

    value: str | None
    service_s: float
    demand_s: float
    entitled_s: float
    service_share: float | None
    demand_share: float | None
    satisfaction: float | None


class ReportFailure(msgspec.Struct):
    """Failed attempts that ended alike: a row of `report.failures` of all values together."""

    kind: str
    chunks: int
    reason: str


class ReportDocument(msgspec.Struct):
    """A whole report, as a JSON document. Lists have the largest only; `…_count` says how many there are."""

    by: str
    rows: int
    first_at: str
    last_at: str
    step_s: int
    total: ReportSummary
    values: list[ReportSummary]
    values_count: int
    throughput: list[ReportWindow]
    """Of all values together; a window in which nothing ended is left out."""
    consumers: list[ReportConsumer]
    consumers_count: int
    fairness: list[ReportShare]
    jain: float | None
    failures: list[ReportFailure]
    html: str | None = None

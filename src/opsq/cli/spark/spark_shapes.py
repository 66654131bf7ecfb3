"""The shapes of the JSON documents of `opsq spark`, described in opsq-json(7) like all others; those stand in `json_shapes`.

Must not decide what a document says.
"""

from __future__ import annotations

from msgspec import UNSET, UnsetType

from opsq.cli.output.json_shapes import ErrorShape, Shape


class SparkSubmitDocument(Shape):
    """`opsq spark submit`. `created` is false when --idempotency-key found an earlier submission."""

    submission_id: str
    created: bool
    chunks: int
    bytes: int


class SparkTaskShape(Shape):
    """What one task of a fleet did, and what ended it if it did not end as asked."""

    task: int
    host: str
    completed: int
    failed: int
    dead: int
    released: int
    seconds: float
    error: ErrorShape | UnsetType = UNSET


class SparkConsumeDocument(Shape):
    """`opsq spark consume`; there is an `error` when a chunk died."""

    completed: int
    failed: int
    dead: int
    released: int
    seconds: float
    tasks: list[SparkTaskShape]
    error: ErrorShape | UnsetType = UNSET


class SparkResultsDocument(Shape):
    """`opsq spark results`."""

    submission_id: str
    output: str
    rows: int


class SparkRunDocument(Shape):
    """`opsq spark run`. `rows` is there when the results were written, `error` when not all is well."""

    state: str
    submission_id: str
    chunks: int
    completed: int
    failed: int
    dead: int
    seconds: float
    output: str
    tasks: list[SparkTaskShape]
    rows: int | UnsetType = UNSET
    error: ErrorShape | UnsetType = UNSET


class ReportSummaryShape(Shape):
    """What came of the chunks of a value, or of all. What would be divided by nothing is null."""

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


class ReportWindowShape(Shape):
    """What ended in a window of time."""

    value: str | None
    window_at: str
    completed: int
    failed: int
    dead: int
    per_s: float


class ReportConsumerShape(Shape):
    """How busy a consumer was."""

    consumer: str
    first_at: str
    last_at: str
    completed: int
    failed: int
    busy_s: float
    load: float | None
    peak_load: float | None
    utilisation: float | None


class ReportShareShape(Shape):
    """What a value got, could have used, and should have got."""

    value: str | None
    service_s: float
    demand_s: float
    entitled_s: float
    service_share: float | None
    demand_share: float | None
    satisfaction: float | None


class ReportFailureShape(Shape):
    """Attempts in vain that ended alike."""

    kind: str
    chunks: int
    reason: str


class SparkReportDocument(Shape):
    """`opsq spark report`. Lists hold the largest, `…_count` tells of how many."""

    by: str
    rows: int
    first_at: str
    last_at: str
    step_s: int
    total: ReportSummaryShape
    values: list[ReportSummaryShape]
    values_count: int
    throughput: list[ReportWindowShape]
    consumers: list[ReportConsumerShape]
    consumers_count: int
    fairness: list[ReportShareShape]
    jain: float | None
    failures: list[ReportFailureShape]
    html: str | None

"""The JSON documents of `opsq spark`, described in opsq-json(7) like all others.

It must not print.
"""

from __future__ import annotations

from msgspec import UNSET, UnsetType

from opsq.documents.shape import ErrorShape, Shape


class SparkSubmitDocument(Shape):
    """`opsq spark submit`. `created` is false when --idempotency-key found an earlier submission."""

    submission_id: str
    created: bool
    chunks: int
    bytes: int


class SparkTaskShape(Shape):
    """What one task of a fleet did, and what ended it if it did not end as planned."""

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
    """`opsq spark run`. `rows` is present when the results were written, `error` when something failed."""

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

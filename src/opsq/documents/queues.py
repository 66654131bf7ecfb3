"""The JSON documents about queues of records.

It must not print.
"""

from __future__ import annotations

from opsq.documents.shape import Shape
from opsq.documents.submissions import BackoffShape


class QueueShape(Shape):
    """`opsq queue show`, and a queue of `opsq queue list`. null: what the daemon's settings say, or no bound."""

    name: str
    strategy: str
    lease_s: float
    max_attempts: int | None
    backoff: BackoffShape | None
    expires_s: float | None
    limit: int | None


class QueuesDocument(Shape):
    """`opsq queue list`."""

    queues: list[QueueShape]

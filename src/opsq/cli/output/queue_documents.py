"""The JSON documents about queues of records, and their fields as people read them.

It must not print.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Self

from opsq.cli.output.json_output import Shape
from opsq.cli.output.submission_documents import BackoffShape
from opsq.cli.output.submission_text import backoff_text, span_text

if TYPE_CHECKING:
    from opsq.gateway.records.queue_defaults import QueueDefaults


class QueueShape(Shape):
    """`opsq queue show`, and a queue of `opsq queue list`. null: what the daemon's settings say, or no bound."""

    name: str
    strategy: str
    lease_s: float
    max_attempts: int | None
    backoff: BackoffShape | None
    expires_s: float | None
    limit: int | None

    @classmethod
    def of(cls, name: str, defaults: QueueDefaults) -> Self:
        """A queue as its file has it."""
        backoff = None if defaults.backoff is None else BackoffShape.from_message(defaults.backoff)
        return cls(
            name,
            defaults.strategy,
            defaults.lease_s,
            defaults.max_attempts,
            backoff,
            defaults.expires_s,
            defaults.limit,
        )


class QueuesDocument(Shape):
    """`opsq queue list`."""

    queues: list[QueueShape]


def fields(shape: QueueShape) -> list[tuple[str, str]]:
    """Each field of a queue with its name, as people read them."""
    return [
        ("queue", shape.name),
        ("strategy", shape.strategy),
        ("lease", span_text(shape.lease_s)),
        ("attempts", _or_dash(shape.max_attempts)),
        ("back-off", "-" if shape.backoff is None else backoff_text(shape.backoff)),
        ("expires", "-" if shape.expires_s is None else span_text(shape.expires_s)),
        ("limit", _or_dash(shape.limit)),
    ]


def _or_dash(number: int | None) -> str:
    return "-" if number is None else str(number)

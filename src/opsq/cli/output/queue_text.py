"""Describes a queue of records, as JSON and as people read it.

It must not print.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from opsq.documents.queues import QueueShape
from opsq.documents.submission_text import backoff_text, span_text
from opsq.documents.submissions import BackoffShape

if TYPE_CHECKING:
    from opsq.gateway.records.queue_defaults import QueueDefaults


def document(name: str, defaults: QueueDefaults) -> QueueShape:
    """A queue as its file has it."""
    backoff = None if defaults.backoff is None else BackoffShape.from_message(defaults.backoff)
    return QueueShape.from_message(defaults, name=name, backoff=backoff)


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

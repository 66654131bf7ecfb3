"""The JSON documents of `opsq notify`.

It must not print.
"""

from __future__ import annotations

from opsq.documents.events import EventDocument
from opsq.documents.shape import Shape


class NotifyDocument(Shape):
    """`opsq notify`, when it ends: what it has delivered, what waits for another attempt, what was given up."""

    delivered: int
    waiting: int
    dead: int


class DeliveryShape(Shape):
    """A delivery that was given up."""

    delivery_id: str
    target: str
    at: str
    dead_at: str
    attempts: int
    error: str
    event: EventDocument


class DeliveriesDocument(Shape):
    """`opsq notify dead`."""

    deliveries: list[DeliveryShape]

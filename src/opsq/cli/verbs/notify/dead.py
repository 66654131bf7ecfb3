"""The verb notify dead: what could not be delivered."""

from __future__ import annotations

import msgspec

from opsq.cli.caller import Caller
from opsq.cli.notify_file import deliveries
from opsq.documents.deliveries import DeliveriesDocument, DeliveryShape
from opsq.documents.events import EventDocument
from opsq.units import format_instant


def dead(caller: Caller) -> None:
    """List deliveries that were given up, oldest first: id, target, time, attempts, error, event."""
    with deliveries(caller.settings) as file:
        found = file.dead()
    shapes = [
        DeliveryShape(
            str(one.id),
            one.target,
            format_instant(one.at),
            format_instant(one.dead_at),
            one.attempts,
            one.error,
            msgspec.json.decode(one.body, type=EventDocument),
        )
        for one in found
    ]
    caller.document(DeliveriesDocument(shapes))
    if not shapes:
        caller.remark("There are no dead deliveries.")
        return
    rows = [
        (shape.delivery_id, shape.target, caller.instant(one.at), shape.attempts, shape.error, shape.event.text)
        for shape, one in zip(shapes, found, strict=True)
    ]
    columns = ("id", "target", caller.heading("at"), "attempts", "error", "event")
    caller.table(columns, rows, right=frozenset({"attempts"}))

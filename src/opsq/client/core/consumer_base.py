"""What blocking and asyncio consumers share in how they report: delays, reserves on their way, the default for lost chunks.

This file does no I/O but the log.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence

from opsq.client.core.held_block import Lost, Lot
from opsq.client.core.pending_requests import id_of
from opsq.errors import OpsqError, StorageFull
from opsq.wire.messages import ErrorReply, Request, Reserve, Reserved

FLUSH_S = 0.05
"""A verdict waits this long for others to travel with."""
AGAIN_S = 1.0
"""After a refusal that may pass (no room, drained), so long until the next try."""
CLOSE_S = 5.0
"""How long `close` waits for the answers to the last verdicts."""

OnLost = Callable[[Lost], None]


class Ask:
    """A reserve on its way."""

    __slots__ = ("error", "lots", "reply", "request")

    def __init__(self, request: Reserve) -> None:
        self.request = request
        self.reply: Reserved | None = None
        self.lots: list[Lot] = []
        self.error: OpsqError | None = None

    def is_over(self) -> bool:
        """Whether its answer is there."""
        return self.reply is not None or self.error is not None


def not_sent(requests: Sequence[Request], error: BaseException) -> list[ErrorReply]:
    """What to take for the answers of requests that could not be sent; an interrupt counts as one that may pass."""
    known = error if isinstance(error, OpsqError) else StorageFull("Sending was interrupted.")
    return [ErrorReply.of(id_of(request), known) for request in requests if id_of(request)]


def log_lost(lost: Lost) -> None:
    """Say in the log `opsq` that a chunk was lost."""
    logging.getLogger("opsq").warning(
        "Chunk %d/%d is not ours any more (%s): %s", lost.submission_id, lost.index, lost.code, lost.message
    )

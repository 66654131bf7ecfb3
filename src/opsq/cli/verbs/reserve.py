"""The verb reserve: leases chunks to a shell loop.

It is a hot verb: it must not import anything that is slow to load.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from opsq.cli.caller import Caller
from opsq.cli.daemon_address import with_restart
from opsq.errors import InvalidStrategy, NothingFree, Unreachable
from opsq.options.option import COUNT, duration, option, positive_duration
from opsq.wire.messages import Draining, Reserve, Reserved

if TYPE_CHECKING:
    from opsq.client.sync.connection import Connection


def reserve(
    caller: Caller,
    count: int = option("-n, --count N", "Reserve at most N chunks.", COUNT, 1),
    strategy: str = option("-s, --strategy STRATEGY", "Which chunks come first; see `opsq explain`.", default="Random"),
    lease_s: float | None = option(
        "--lease D",
        "Length of the lease, for example 90, 10m, 2h.",
        positive_duration,
        shown="that of the submission",
    ),
    wait_s: float = option("-w, --wait D", "Wait up to this long for the first chunk.", duration, 0.0),
) -> None:
    """Reserve chunks as leases; prints one handle per line, exits 3 when nothing is free."""
    deadline = time.monotonic() + wait_s
    daemon = caller.connect()
    while True:
        try:
            with daemon:
                left_s = max(deadline - time.monotonic(), 0.0)
                request = Reserve(daemon.next_id(), count, strategy, wait_s=left_s, lease_s=lease_s or 0.0)
                reply = daemon.call(request, Reserved)
                if not reply.grants:
                    _check_serving(daemon, deadline)
            break
        except InvalidStrategy as error:
            raise with_restart(error, caller.settings, strategy) from None
        except Unreachable:  # what it may have handed out last is free again when the lease ends
            left_s = deadline - time.monotonic()
            if left_s <= 0:
                raise
            from opsq.cli.lasting_connection import RECONNECT_S

            daemon = caller.connect(reconnect_s=min(RECONNECT_S, left_s))
    if not reply.grants:
        raise NothingFree(f"No chunk that {strategy} may serve is free.")
    handles = reply.handles()
    if caller.is_json:
        from opsq.client.core.content_access import Contents
        from opsq.documents.submissions import ReservedChunk, ReserveDocument, input_fields

        contents = Contents(daemon.welcome)
        described = {one.submission_id: one.content for one in reply.submissions}
        chunks = [
            ReservedChunk(
                str(h),
                str(h.submission_id),
                h.index,
                grant.attempt,
                **input_fields(contents.known_input(described[h.submission_id], h.index)),
            )
            for grant, h in handles
        ]
        caller.document(ReserveDocument(chunks, reply.deadline_s))
    caller.lines([str(handle) for _, handle in handles])


def _check_serving(daemon: Connection, deadline: float) -> None:
    """Return if a daemon that has nothing to give means it; one that is stopping gives nothing whatever there is.

    Raises:
        Unreachable: it is stopping, or has stopped before the `deadline`.
    """
    is_stopping = any(isinstance(push, Draining) for push in daemon.receive(0))
    while (left_s := deadline - time.monotonic()) > 0:
        daemon.receive(left_s)
    if is_stopping:
        raise Unreachable(
            "The daemon is stopping, and hands out nothing more.", hint="--wait waits for the one that follows, too."
        )

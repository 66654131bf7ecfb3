"""The verb extend: moves the deadline of reserved chunks.

It is a hot verb: it must not import anything that is slow to load.
"""

from __future__ import annotations

from opsq.cli.caller import Caller
from opsq.client.core.refusals import check_refusals, held_chunks
from opsq.options.option import HANDLES, option, positive_duration
from opsq.wire.messages import Completed, Extend


def extend(
    caller: Caller,
    handles: list[str] = HANDLES,
    lease_s: float | None = option(
        "--lease D", "The length from now.", positive_duration, shown="the reservation's own"
    ),
) -> None:
    """Move the deadline of reserved chunks to a full lease from now."""
    with caller.connect() as daemon:
        check_refusals(daemon.call(Extend(daemon.next_id(), held_chunks(handles), lease_s), Completed))
    caller.changed(len(handles))

"""The verb release: gives reserved chunks back.

It is a hot verb: it must not import anything that is slow to load.
"""

from __future__ import annotations

from opsq.cli.caller import Caller
from opsq.client.core.refusals import check_refusals, held_chunks
from opsq.errors import UsageError
from opsq.options.option import OPTIONAL_HANDLES, option
from opsq.wire.messages import Changed, Completed, Release, ReleaseConsumer


def release(
    caller: Caller,
    handles: list[str] = OPTIONAL_HANDLES,
    consumer: str | None = option(
        "--consumer ID", "Release everything that this consumer holds; `opsq status` lists consumers."
    ),
) -> None:
    """Release reserved chunks without counting an attempt."""
    if bool(consumer) == bool(handles):
        raise UsageError("opsq release needs either handles or --consumer.")
    with caller.connect() as daemon:
        count = len(handles)
        if consumer:
            count = daemon.call(ReleaseConsumer(daemon.next_id(), consumer), Changed).count
        else:
            check_refusals(daemon.call(Release(daemon.next_id(), held_chunks(handles)), Completed))
    caller.changed(count)

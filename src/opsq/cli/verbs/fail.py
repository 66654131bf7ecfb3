"""The verb fail: reports failed attempts.

It is a hot verb: it must not import anything that is slow to load.
"""

from __future__ import annotations

import os

from opsq.cli.caller import Caller
from opsq.client.core.refusals import check_refusals, held_chunks
from opsq.errors import UsageError
from opsq.options.option import HANDLES, duration, option
from opsq.wire.messages import Completed, Fail, Failure

REASON_CHARACTERS = 16384


def fail(
    caller: Caller,
    handles: list[str] = HANDLES,
    reason: str = option("--reason TEXT", "The reason, as text.", default=""),
    delay_s: float | None = option("--delay D", "Retry after this long instead of the back-off.", duration),
    no_retry: bool = option("--no-retry", "Make the chunks dead at once."),
) -> None:
    """Report failed attempts: the chunks are retried after a back-off, or die when their attempts are used up."""
    if no_retry and delay_s is not None:
        raise UsageError("--no-retry and --delay cannot be combined.")
    # A program may have written bytes that are no text; its failure is reported all the same.
    reason = os.fsencode(reason).decode(errors="backslashreplace")[:REASON_CHARACTERS]
    with caller.connect() as daemon:
        failures = [Failure(held, reason, delay_s=delay_s, is_final=no_retry) for held in held_chunks(handles)]
        check_refusals(daemon.call(Fail(daemon.next_id(), failures), Completed))
    caller.changed(len(handles))

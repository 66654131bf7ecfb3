"""The verb drain: has the daemon take no new submissions, and waits until what is there is worked off."""

from __future__ import annotations

import time

from opsq.cli.caller import Caller
from opsq.cli.lasting_connection import LastingConnection
from opsq.errors import TimedOut, UsageError
from opsq.options.option import duration, option
from opsq.units import counted
from opsq.wire.messages import UNFINISHED_STATES, Changed, DaemonState, Drain, Status

_LOOK_S = 0.5


def drain(
    caller: Caller,
    undo: bool = option("--undo", "Take new submissions again."),
    wait: bool = option("-w, --wait", "Return when nothing is unfinished."),
    timeout_s: float | None = option("-t, --timeout D", "Give up waiting after this long, with exit 124.", duration),
) -> None:
    """Take no new submissions, and work off what is there.

    It holds until --undo, also after a restart. Follow-ups still come with the completions that they belong to.
    Schedules wait, as if no daemon ran.
    """
    if undo and wait:
        raise UsageError("--undo takes no --wait.")
    if timeout_s is not None and not wait:
        raise UsageError("--timeout is for --wait.")
    with LastingConnection(caller) as daemon:
        count = daemon.call(Drain(daemon.next_id(), undo), Changed).count
        if undo:
            caller.remark("It takes new submissions again." if count else "It was not being drained.")
        else:
            caller.remark("It takes no new submissions." if count else "It was being drained already.")
        if wait:
            _wait(daemon, timeout_s)
    caller.changed(count)


def _wait(daemon: LastingConnection, timeout_s: float | None) -> None:
    end = None if timeout_s is None else time.monotonic() + timeout_s
    while unfinished_count := _unfinished_count(daemon):
        left_s = _LOOK_S if end is None else min(end - time.monotonic(), _LOOK_S)
        if left_s <= 0:
            raise TimedOut(
                f"{counted(unfinished_count, 'submission')} not finished yet.",
                hint="`opsq list` shows them, and `opsq explain ID` what one of them waits for.",
            )
        time.sleep(left_s)


def _unfinished_count(daemon: LastingConnection) -> int:
    states = daemon.call(Status(daemon.next_id()), DaemonState).states
    return sum(states.get(name, 0) for name in UNFINISHED_STATES)

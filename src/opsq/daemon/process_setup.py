"""What a process that serves connections needs: descriptors, a tuned interpreter, and a word to its service manager.

It must not know what is served.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import logging
import os
import resource
import socket
import sys

from opsq.errors import UsageError

GC_THRESHOLDS = (20_000, 20, 100)
"""Nearly all objects of a request are freed by reference counting; collecting cycles at the default rate took a tenth
of the time."""

SWITCH_S = 0.0005
"""The thread of a COMMIT needs Python's lock several times, and gets it from a busy event loop only after this long;
Python's default is ten times as much."""

_log = logging.getLogger("opsq.daemon")


def collect_rarely() -> None:
    """Never scan again what lives as long as the process, and seldom the rest."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(*GC_THRESHOLDS)
    gc.enable()


def switch_often() -> None:
    """Have the event loop give Python's lock soon to a helper thread that wants it."""
    sys.setswitchinterval(SWITCH_S)


def raise_descriptors(wanted: int, reserved: int, who: str) -> int:
    """Raise the descriptor limit as far as useful and allowed; returns how many connections that permits.

    Args:
        wanted: the connections there may be.
        reserved: what else the process opens.
        who: names it in the error.

    Raises:
        UsageError: not even one.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY:
        return wanted
    target = wanted + reserved
    if hard != resource.RLIM_INFINITY:
        target = min(target, hard)
    if target > soft:
        with contextlib.suppress(OSError, ValueError):  # macOS has a lower limit than it reports
            resource.setrlimit(resource.RLIMIT_NOFILE, (target, hard))
            soft = target
    allowed = min(wanted, soft - reserved)
    if allowed < 1:
        raise UsageError(
            f"This process may open only {soft} file descriptors, and the {who} needs {reserved} for itself.",
            hint="Raise the limit: ulimit -n 1024, or LimitNOFILE= in the unit.",
        )
    return allowed


async def feed_watchdog() -> None:
    """Tell the service manager that the event loop runs, twice as often as it asks for; for ever.

    Returns at once if it does not ask this process (WATCHDOG_USEC, WATCHDOG_PID; see sd_watchdog_enabled(3)).
    """
    if os.environ.get("WATCHDOG_PID", str(os.getpid())) != str(os.getpid()):
        return
    period_s = int(os.environ.get("WATCHDOG_USEC", "0")) / 2e6
    while period_s > 0:
        notify("WATCHDOG=1")
        await asyncio.sleep(period_s)


def notify(state: str) -> None:
    """Notify the service manager, if there is one (sd_notify)."""
    path = os.environ.get("NOTIFY_SOCKET", "")
    if not path:
        return
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as target:
            target.connect("\0" + path[1:] if path.startswith("@") else path)
            target.send(state.encode())
    except OSError as error:
        _log.warning("cannot notify the service manager of %s: %s", state, error)

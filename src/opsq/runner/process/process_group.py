"""Process groups: signals them, and finds whether anything of one still runs.

This file must not wait, and knows only numbers. A number is good for as long as something of its group is left or its
leader was not waited for; the caller sees to that.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator


def signal_group(group_id: int, number: int) -> bool:
    """Send a signal to every process of the group; False if none is left, or none that may be signalled."""
    try:
        os.killpg(group_id, number)
    except (ProcessLookupError, PermissionError):
        return False
    return True


def survivor(group_id: int, last_known: str = "") -> str:
    """Name a process of the group that still runs.

    Args:
        last_known: what an earlier call returned; looked at first, so that waiting for a group is cheap.

    Returns:
        Something that names it, or "" if all have ended.

    Cost: on Linux the first call reads a line for each process of the machine. The kernel's own answer will not do: it
    counts ended orphans until their new parent has waited for them, and in a container none may.
    """
    try:
        os.killpg(group_id, 0)
    except ProcessLookupError:
        return ""
    except PermissionError:
        pass  # it lives, under another user
    if sys.platform == "linux":
        try:
            return next((name for name in _process_names(last_known) if _runs_in(group_id, name)), "")
        except OSError:
            pass  # no /proc here
    return str(group_id)


def _process_names(first: str) -> Iterator[str]:
    if first:
        yield first
    yield from filter(str.isdigit, os.listdir("/proc"))


def _runs_in(group_id: int, name: str) -> bool:
    try:
        with open(f"/proc/{name}/stat", "rb") as stat:
            # The name of the program may hold blanks and parentheses; state, parent and group follow it.
            state, _, group = stat.read().rpartition(b")")[2].split()[:3]
    except (FileNotFoundError, ProcessLookupError):
        return False
    return int(group) == group_id and state not in {b"Z", b"X"}

"""The two kinds of time, monotonic and wall clock, as separate types so that a type checker rejects mixing them.

Only this file may read the system clocks; the engine is given a `Now` and must never read them itself.
"""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path
from typing import NamedTuple, NewType

MonoNs = NewType("MonoNs", int)
"""Monotonic nanoseconds: deadlines and durations while a process lives. Comparable within one boot of the machine,
meaningless beyond."""

WallMs = NewType("WallMs", int)
"""Milliseconds since 1970-01-01 UTC: what is stored and shown to people. May step in both directions."""


class Now(NamedTuple):
    """One instant, read from both clocks."""

    mono: MonoNs
    wall: WallMs


def now() -> Now:
    """Read both clocks."""
    return Now(MonoNs(time.monotonic_ns()), WallMs(time.time_ns() // 1_000_000))


def awake_or_not_s() -> float:
    """Seconds that also pass while the machine sleeps, unlike those of `MonoNs`; comparable within one boot."""
    return time.clock_gettime(getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC))


def boot() -> str:
    """Identify this boot of the machine; empty if the system cannot tell."""
    try:
        if sys.platform == "linux":
            return Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
        command = ["/usr/sbin/sysctl", "-n", "kern.bootsessionuuid"]
        return subprocess.run(command, capture_output=True, text=True, timeout=5, check=False).stdout.strip()
    except (OSError, subprocess.TimeoutExpired):
        return ""


def after(start: MonoNs, duration_s: float) -> MonoNs:
    """Return the instant `duration_s` seconds (≥ 0, at most about 290 years) after `start`."""
    return MonoNs(start + int(min(duration_s, 9e9) * 1e9))

"""How many programs this machine and the limits of this process allow for.

This file must not start anything.
"""

from __future__ import annotations

import os
import resource
import sys

_DESCRIPTORS_PER_JOB = 5
_DESCRIPTORS_KEPT = 100
"""For the store's files (64 are kept open), the connection, and our own start."""


def cores_count() -> int:
    """The cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def affordable_count() -> int:
    """How many programs the limit of open files allows for."""
    limit, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return (
        sys.maxsize if limit == resource.RLIM_INFINITY else max((limit - _DESCRIPTORS_KEPT) // _DESCRIPTORS_PER_JOB, 1)
    )

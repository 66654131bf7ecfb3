"""How much memory another process uses, as the kernel counts it.

This file sets no limits. It takes what is resident, not what is mapped: a limit of address space (RLIMIT_AS) counts
what allocators and threads reserve and never touch, and macOS does not enforce it.
"""

from __future__ import annotations

import os
import subprocess
import sys
from contextlib import suppress

LOOK_S = 0.02 if sys.platform == "linux" else 0.25
"""How often a process with a limit is measured, by what that costs; in 20 ms it can take some 50 MB."""
_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")


def used_bytes(pid: int) -> int:
    """The resident memory of a process, on Linux without pages of files; 0 if it is gone.

    Cost: some microseconds on Linux; elsewhere `ps` is run, which takes milliseconds.
    """
    if sys.platform == "linux":
        with suppress(OSError), open(f"/proc/{pid}/statm") as file:
            _, resident, shared, *_ = file.read().split()
            return (int(resident) - int(shared)) * _PAGE_BYTES
        return 0
    shown = subprocess.run(["ps", "-o", "rss=", "-p", str(pid)], capture_output=True, text=True, check=False).stdout
    return int(shown or 0) << 10

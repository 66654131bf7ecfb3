"""Which process this is, told without a system call: what was opened before a fork is the parent's.

It must not know what that is.
"""

from __future__ import annotations

import os

_pid = os.getpid()


def own_pid() -> int:
    """As `os.getpid`, for what is asked with every chunk."""
    return _pid


def _note() -> None:
    global _pid  # noqa: PLW0603  # a fact of the process
    _pid = os.getpid()


os.register_at_fork(after_in_child=_note)

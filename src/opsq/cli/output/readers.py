"""Whether anybody reads what is printed. It must not print."""

from __future__ import annotations

import select
from typing import TextIO


def is_read(stream: TextIO) -> bool:
    """False when the other end of a pipe or a terminal is gone; a follower with nothing to write would not notice."""
    poll = select.poll()
    poll.register(stream, 0)
    return not any(events & (select.POLLERR | select.POLLHUP | select.POLLNVAL) for _, events in poll.poll(0))

"""Waits for descriptors and calls what is registered for each: all that stands in for an event loop here.

This file must not know what a descriptor belongs to.
"""

from __future__ import annotations

import os
import select
from collections.abc import Callable


class Poller:
    """Descriptors that are waited for.

    Plain poll: registering is a dictionary entry, where a selector costs 4 to 6 µs, four times a child.
    """

    def __init__(self) -> None:
        self._poll = select.poll()
        self._on_event: dict[int, Callable[[], object]] = {}

    def __contains__(self, fd: int) -> bool:
        return fd in self._on_event

    def __bool__(self) -> bool:
        return bool(self._on_event)

    def listen(self, fd: int, events: int, handle: Callable[[], object]) -> None:
        """Have `wait` call `handle` on these events of `fd`, and when it is hung up."""
        self._poll.register(fd, events)
        self._on_event[fd] = handle

    def forget(self, fd: int) -> None:
        """End what `listen` began; before `fd` is closed."""
        self._poll.unregister(fd)
        del self._on_event[fd]

    def drop(self, fd: int) -> int:
        """Close `fd` unless it is closed (-1); returns -1, to be kept in its place."""
        if fd >= 0:
            if fd in self._on_event:
                self.forget(fd)
            os.close(fd)
        return -1

    def wait(self, timeout_s: float | None) -> None:
        """Wait for an event, at most `timeout_s` seconds, and handle all that have come."""
        for fd, _ in self._poll.poll(None if timeout_s is None else max(timeout_s, 0) * 1000):
            # One event may end the interest in another of the same turn.
            handle = self._on_event.get(fd)
            if handle is not None:
                handle()

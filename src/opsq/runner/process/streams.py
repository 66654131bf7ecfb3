"""Moves the bytes of the children that run, whenever one of their pipes has some or has room.

This file must not start or end children, nor wait: who owns the poller does.
"""

from __future__ import annotations

import select
from collections.abc import Callable

from opsq.errors import OpsqError
from opsq.runner.process.child import Child
from opsq.runner.process.pipes import waiting_bytes
from opsq.runner.process.poller import Poller


class Streams:
    """The pipes of all children.

    Args:
        events: where they are registered.
        give_up: called with a child whose bytes cannot be moved, and why.
        ended: called when an output has ended, which is when a child is about to end.
    """

    def __init__(
        self, events: Poller, give_up: Callable[[Child, OpsqError], object], ended: Callable[[], object]
    ) -> None:
        self._events = events
        self._give_up = give_up
        self._ended = ended

    def begin(self, child: Child) -> None:
        """Move the bytes of a child from now on."""
        if child._stdout_fd >= 0:
            self._events.listen(child._stdout_fd, select.POLLIN, lambda: self._on_stdout(child))
        self._events.listen(child._stderr_fd, select.POLLIN, lambda: self._on_stderr(child))
        if child._stdin_fd >= 0:
            self._listen_to_stdin(child)

    def push(self, child: Child) -> None:
        """Send what its feed has got since."""
        if child._stdin_fd >= 0:
            self._on_stdin(child)

    def pull(self, child: Child) -> None:
        """Take what it has written to its stdout by now."""
        if child._stdout_fd >= 0 and waiting_bytes(child._stdout_fd):
            self._on_stdout(child)

    def end(self, child: Child) -> None:
        """Take what a child wrote before its end; a grandchild may hold its pipes open, and write for ever."""
        if child._stdout_fd >= 0:
            end = child._capture.length + waiting_bytes(child._stdout_fd)
            while child._stdout_fd >= 0 and child._capture.length < end:
                self._on_stdout(child)
        if child._stderr_fd >= 0 and waiting_bytes(child._stderr_fd):
            self._on_stderr(child)

    def close(self, child: Child) -> None:
        """Close its pipes, and let go of what it was fed."""
        child._stdin_fd = self._events.drop(child._stdin_fd)
        child._stdout_fd = self._events.drop(child._stdout_fd)
        child._stderr_fd = self._events.drop(child._stderr_fd)
        child._feed.close()

    def _on_stdin(self, child: Child) -> None:
        if self._is_done(child, child._feed.send, child._stdin_fd):
            child._stdin_fd = self._events.drop(child._stdin_fd)
        else:
            self._listen_to_stdin(child)

    def _is_done(self, child: Child, move: Callable[[int], bool], fd: int) -> bool:
        """Move bytes through a pipe; whether those were the last. If they cannot be moved, the child is given up."""
        try:
            return move(fd)
        except OpsqError as error:
            self._give_up(child, error)
            return True

    def _listen_to_stdin(self, child: Child) -> None:
        """Watch for room in the pipe only while there is something to send: a closed pipe is an event each time."""
        is_listening = child._stdin_fd in self._events
        if child._feed.is_empty:
            if is_listening:
                self._events.forget(child._stdin_fd)
        elif not is_listening:
            self._events.listen(child._stdin_fd, select.POLLOUT, lambda: self._on_stdin(child))

    def _on_stdout(self, child: Child) -> None:
        if self._is_done(child, child._capture.take, child._stdout_fd):
            child._stdout_fd = self._events.drop(child._stdout_fd)
            self._ended()

    def _on_stderr(self, child: Child) -> None:
        if child._tail.take(child._stderr_fd):
            child._stderr_fd = self._events.drop(child._stderr_fd)
            self._ended()

"""Writes to stdout and stderr in a thread of its own, so that a blocked terminal or pipe does not stop the work.

It must not decide what is written. Beyond a limit, output of programs is dropped and counted; everything else is kept.
"""

from __future__ import annotations

import os
import select
import threading
from collections import deque
from collections.abc import Callable
from contextlib import suppress

CONGESTED_BYTES = 1 << 20
"""Unread bytes from which on no more work should be started."""
WAITING_LIMIT_BYTES = 8 << 20
"""Unread bytes from which on lines of programs are dropped."""


class OutputThread:
    """One thread that writes, in the order in which it was asked to."""

    def __init__(self) -> None:
        self.stdout_error: OSError | None = None
        """Why nothing more is written to stdout, such as a closed pipe."""
        self._waiting: deque[tuple[int, Callable[[], object]]] = deque()
        self._waiting_bytes = 0
        self._is_congested = False
        self._dropped_count = 0
        self._is_closing = False
        self._news = threading.Condition()
        self._thread: threading.Thread | None = None

    @property
    def is_congested(self) -> bool:
        """Whether so much is unread that no more work should be started."""
        self._is_congested = self._waiting_bytes > (CONGESTED_BYTES // 2 if self._is_congested else CONGESTED_BYTES)
        return self._is_congested

    def out(self, content: bytes) -> None:
        """Write to stdout; nothing once that has failed."""
        self._later(len(content), lambda: self._out(content))

    def err(self, content: bytes) -> None:
        """Write to stderr."""
        self._later(len(content), lambda: _write(2, content))

    def err_lines(self, content: bytes, write: Callable[[bytes], object] | None = None) -> None:
        """Write lines of a program, unless too much is unread already.

        Args:
            write: writes them in the thread; None: to stderr as they are.
        """
        if self._waiting_bytes + len(content) > WAITING_LIMIT_BYTES:
            self._dropped_count += content.count(b"\n")
            return
        self._report_dropped()
        self._later(len(content), lambda: _write(2, content) if write is None else write(content))

    def call(self, work: Callable[[], object]) -> None:
        """Run something in the thread that writes, such as drawing."""
        self._later(0, work)

    def close(self, limit_s: float | None = None) -> None:
        """Wait until everything is written, and end the thread.

        Args:
            limit_s: wait no longer than this; what is unread by then is dropped. None: as long as it takes.
        """
        self._report_dropped()
        with self._news:
            self._is_closing = True
            self._news.notify()
            thread = self._thread
        if thread is not None:
            thread.join(limit_s)

    def _report_dropped(self) -> None:
        count, self._dropped_count = self._dropped_count, 0
        if count:
            self.err(b"opsq: %d lines of programs are missing here: they were not read in time.\n" % count)

    def _later(self, size_bytes: int, work: Callable[[], object]) -> None:
        with self._news:
            self._waiting.append((size_bytes, work))
            self._waiting_bytes += size_bytes
            self._news.notify()
            if self._thread is None:  # few consumers ever write anything
                self._thread = threading.Thread(target=self._run, name="opsq-output", daemon=True)
                self._thread.start()

    def _run(self) -> None:
        while True:
            with self._news:
                while not self._waiting:
                    if self._is_closing:
                        return
                    self._news.wait()
                size_bytes, work = self._waiting.popleft()
            with suppress(OSError):  # the reader has gone; the work goes on
                work()
            with self._news:
                self._waiting_bytes -= size_bytes

    def _out(self, content: bytes) -> None:
        if self.stdout_error is not None:
            return
        try:
            _write(1, content)
        except OSError as error:
            self.stdout_error = error


def _write(descriptor: int, content: bytes) -> None:
    rest = memoryview(content)
    while rest:
        try:
            rest = rest[os.write(descriptor, rest) :]
        except BlockingIOError:  # another process made the shared file non-blocking
            poll = select.poll()
            poll.register(descriptor, select.POLLOUT)
            poll.poll()

"""Says things on stdout and stderr from a thread of its own, so that a reader who does not read holds up nobody who works.

It must not decide what is said. What a program wrote is left out, and that is said, rather than kept without limit; all else is kept.
"""

from __future__ import annotations

import os
import select
import threading
from collections import deque
from collections.abc import Callable
from contextlib import suppress

CONGESTED_BYTES = 1 << 20
"""So much waits to be read when no more work should be begun."""
WAITING_LIMIT_BYTES = 8 << 20
"""So much waits when lines of programs are left out."""


class OutputThread:
    """One thread that writes, in the order in which it was asked to."""

    def __init__(self) -> None:
        self.stdout_error: OSError | None = None
        """Why nothing more is written to stdout, such as that nobody reads it."""
        self._waiting: deque[tuple[int, Callable[[], object]]] = deque()
        self._waiting_bytes = 0
        self._is_congested = False
        self._left_out_count = 0
        self._is_closing = False
        self._news = threading.Condition()
        self._thread: threading.Thread | None = None

    @property
    def is_congested(self) -> bool:
        """Whether so much waits that no more work should be begun."""
        self._is_congested = self._waiting_bytes > (CONGESTED_BYTES // 2 if self._is_congested else CONGESTED_BYTES)
        return self._is_congested

    def out(self, content: bytes) -> None:
        """Write to stdout; nothing once that has failed."""
        self._later(len(content), lambda: self._out(content))

    def err(self, content: bytes) -> None:
        """Write to stderr."""
        self._later(len(content), lambda: _write(2, content))

    def err_lines(self, content: bytes, write: Callable[[bytes], object] | None = None) -> None:
        """Write lines of a program, unless too much waits already.

        Args:
            write: writes them in the thread; None: to stderr as they are.
        """
        if self._waiting_bytes + len(content) > WAITING_LIMIT_BYTES:
            self._left_out_count += content.count(b"\n")
            return
        self._tell_left_out()
        self._later(len(content), lambda: _write(2, content) if write is None else write(content))

    def call(self, work: Callable[[], object]) -> None:
        """Have the thread do something that writes, such as to draw."""
        self._later(0, work)

    def close(self, limit_s: float | None = None) -> None:
        """Wait until all is said, and end the thread.

        Args:
            limit_s: wait no longer than this; what nobody has read by then is not said. None: as long as it takes.
        """
        self._tell_left_out()
        with self._news:
            self._is_closing = True
            self._news.notify()
            thread = self._thread
        if thread is not None:
            thread.join(limit_s)

    # --- inside -------------------------------------------------------------------------------------------------------------------

    def _tell_left_out(self) -> None:
        count, self._left_out_count = self._left_out_count, 0
        if count:
            self.err(b"opsq: %d lines of programs are left out here: nobody read them in time.\n" % count)

    def _later(self, size_bytes: int, work: Callable[[], object]) -> None:
        with self._news:
            self._waiting.append((size_bytes, work))
            self._waiting_bytes += size_bytes
            self._news.notify()
            if self._thread is None:  # few consumers ever say anything
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
            with suppress(OSError):  # whoever listened has gone; the work goes on
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
        except BlockingIOError:  # whoever shares it with us does not want to wait
            poll = select.poll()
            poll.register(descriptor, select.POLLOUT)
            poll.poll()

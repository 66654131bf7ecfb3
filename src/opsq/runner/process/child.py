"""One child process as the others know it: `Child` while it runs, `Finished` when it has ended.

This file must not start, feed, signal or wait for anything.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from typing import BinaryIO, NamedTuple, Protocol

from opsq.clock import MonoNs
from opsq.errors import OpsqError
from opsq.runner.process.pipes import Capture, Feed, Output, Tail
from opsq.units import signal_name

Said = Callable[[bytes], object]
"""Is given each piece of what a program says on its stderr, as it is read."""


class Source(Protocol):
    """What a child reads; `Feed` is one whose end is known."""

    @property
    def is_empty(self) -> bool:
        """Nothing (more) to send for now."""

    @property
    def is_long(self) -> bool:
        """More to send than a pipe of the usual width holds."""

    def send(self, pipe_fd: int) -> bool:
        """Write what the pipe takes now; True when nothing will ever follow."""

    def keep_file(self) -> None:
        """Hold on to what is left, whatever its owner does with its descriptor from now on."""

    def close(self) -> None:
        """Let go of it."""


class Sink(Protocol):
    """What takes a child's stdout; `Capture` is one that keeps all of it."""

    length: int
    """Bytes taken so far."""

    def take(self, pipe_fd: int) -> bool:
        """Take what is in the pipe now, in one step; True at the end of the stream."""

    def output(self) -> Output:
        """Hand over what was taken."""


class Series:
    """Runs one after the other that share one pair of pipes; what is common to them.

    Args:
        argvs: those still to come.
        goes_on: after which exit statuses the next is started.
    """

    def __init__(self, argvs: Iterator[Sequence[str | bytes]], goes_on: Callable[[int], bool]) -> None:
        self.argvs = argvs
        self.goes_on = goes_on
        self.env: dict[str, str] = {}
        self.stdio = (-1, -1, -1)
        """The streams of each; ours to close at the end, but for stdin."""


class Child:
    """One running program, or several that run one after the other as one; its identity is its key."""

    def __init__(
        self,
        pid: int,
        started: MonoNs,
        feed: Source,
        capture: Sink,
        fds: tuple[int, int, int],
        said: Said | None = None,
    ) -> None:
        self.pid = pid
        """Process id, and id of the process group that the program and its descendants form."""
        self.started = started
        self._feed = feed
        self._capture = capture
        self._tail = Tail(said)
        self._stdin_fd, self._stdout_fd, self._stderr_fd = fds
        self._pidfd = -1
        self._place = -1
        self._series: Series | None = None
        self._status = 0
        self._wait_status: int | None = None
        self._survivor = ""
        self._is_terminated = False
        self._is_killed = False
        self._error: OpsqError | None = None


class Token(Child):
    """What stands for a chunk that is not one child's alone."""

    def __init__(self) -> None:
        super().__init__(0, MonoNs(time.monotonic_ns()), Feed(b""), Capture("", 0, may_widen=False), (-1, -1, -1))


class Finished(NamedTuple):
    """How a child ended. The receiver closes `stdout`, and `then` if it is there."""

    child: Child
    exit_status: int | None
    """0…255, or None when a signal killed it."""
    signal: int | None
    """The signal that killed it, or None."""
    stdout: Output
    stderr_tail: bytes
    """The last of what it said, at most 4 KiB."""
    run_s: float
    error: OpsqError | None
    """Why it counts as failed whatever its exit status.

    `WorkFailed`: it did not do what was asked of it. Any other: its
    input or output could not be moved, or its next run not be started; it was killed for no fault of its own."""
    where: str = ""
    """What of the chunk it was at, such as a record; empty: the chunk as a whole."""
    then: BinaryIO | None = None
    """What was written of follow-ups, open; None: nothing."""

    @property
    def is_success(self) -> bool:
        """The program exited 0 and its output is whole."""
        return self.exit_status == 0 and self.error is None

    @property
    def reason(self) -> str:
        """Where and how it ended and the last that it said on stderr, as one text."""
        if self.error is not None:
            how = str(self.error)
        elif self.signal is not None:
            how = f"killed by {signal_name(self.signal)}"
        else:
            how = f"exit status {self.exit_status}"
        said = self.stderr_tail.decode("utf-8", "replace").strip()
        return ": ".join(text for text in (self.where, how, said) if text)

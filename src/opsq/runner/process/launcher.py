"""Starts one child: makes its pipes, fills its stdin as far as that goes, and enters it with the guard.

This file must not wait for a child or for its pipes, and must not know which children run.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Sequence

from opsq.clock import MonoNs
from opsq.errors import Bug, OpsqError
from opsq.runner.process.child import Child, Said, Series, Sink, Source
from opsq.runner.process.orphan_guard import OrphanGuard
from opsq.runner.process.pipes import close_all, open_pipe, widen
from opsq.runner.process.spawn import Spawner, keep_descriptors_from_children, refusal
from opsq.runner.process.terminal import Terminal


class Launcher:
    """What all children of one supervisor are started with.

    Args:
        spool_dir: where the guard has its table.
        guarded: see `Supervisor`; likewise `shares_terminal`.

    Raises:
        Bug: this process dies of SIGPIPE, so it cannot feed a program that may close its stdin.

    Effects: those that `Supervisor` tells.
    """

    def __init__(self, spool_dir: str, guarded: Callable[[], str], *, shares_terminal: bool) -> None:
        if signal.getsignal(signal.SIGPIPE) is signal.SIG_DFL:
            raise Bug("SIGPIPE kills this process; it must be ignored where children are fed.")
        if signal.getsignal(signal.SIGCHLD) is signal.SIG_IGN:
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        keep_descriptors_from_children()
        self._commands = Spawner(shares_terminal=shares_terminal)
        # A plain dictionary: os.environ decodes each variable each time, 80 µs a start.
        self._env = dict(os.environ)
        self._null_fd = os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC)
        self._terminal = Terminal() if shares_terminal else None
        self.guard = OrphanGuard(spool_dir, guarded)

    def launch(
        self,
        argv: Sequence[str | bytes],
        feed: Source,
        capture: Sink,
        env: dict[str, str] | None,
        said: Said | None,
        *,
        series: Series | None = None,
        keeps_stdout: bool = True,
        is_lasting: bool = False,
        is_wide: bool = False,
    ) -> Child:
        """Start a program.

        Args:
            series: those that follow it, for which its streams are kept.
            is_lasting: it is fed for as long as it lives.
            is_wide: a long feed gets a wide pipe.

        Raises:
            OpsqError: as `Supervisor.start`.
        """
        env = self._env if env is None else env
        self.guard.begin()
        ours: list[int] = []
        theirs: list[int] = []
        try:
            stdin_r, stdin_w, stdout_r = self._null_fd, -1, -1
            if is_lasting or not feed.is_empty:
                stdin_r, stdin_w = open_pipe(theirs, ours)
                os.set_blocking(stdin_w, False)
                if feed.is_long and is_wide:
                    widen(stdin_w)
                # Most chunks fit: the pipe is filled and closed before the program exists.
                if feed.send(stdin_w):
                    os.close(ours.pop())
                    stdin_w = -1
                else:
                    feed.keep_file()
            stderr_r, stderr_w = open_pipe(ours, theirs)
            os.set_blocking(stderr_r, False)
            stdout_w = stderr_w
            if keeps_stdout:
                stdout_r, stdout_w = open_pipe(ours, theirs)
                os.set_blocking(stdout_r, False)
            started = MonoNs(time.monotonic_ns())
            stdio = (stdin_r, stdout_w, stderr_w)
            pid = self._commands.spawn(argv, env, stdio)
        except BaseException as error:
            close_all(ours)
            close_all(theirs)
            feed.close()
            if isinstance(error, OSError) and (refused := refusal(error)):
                raise refused from error
            raise
        child = Child(pid, started, feed, capture, (stdin_w, stdout_r, stderr_r), said)
        if series is None:
            close_all(theirs)
        else:
            child._series = series
            series.env, series.stdio = env, stdio
        child._place = self.guard.enter(pid)
        self.lend_terminal(child)
        return child

    def launch_next(self, child: Child, series: Series) -> bool:
        """Start the next program of a series in place of the one that has ended; False if there is none.

        Nor if it cannot be started: then the child has the error.
        """
        try:
            self.take_terminal(child)
            argv = next(series.argvs, None)
            if argv is None:
                return False
            child.pid = self._commands.spawn(argv, series.env, series.stdio)
        except OpsqError as error:
            child._error = error
            return False
        except OSError as error:
            child._error = refusal(error)
            if child._error is None:
                raise
            return False
        child._wait_status = None
        self.guard.change(child._place, child.pid)
        self.lend_terminal(child)
        return True

    def forget(self, child: Child) -> None:
        """Take an ended child from the guard, and close the streams of its series."""
        self.guard.leave(child._place)
        self.take_terminal(child)
        if child._series is not None:
            close_all(child._series.stdio[1:])
            child._series = None

    def lend_terminal(self, child: Child) -> None:
        """Put a child in the foreground, where the terminal is shared."""
        if self._terminal is not None:
            self._terminal.lend(child.pid)

    def take_terminal(self, child: Child) -> None:
        """Be in the foreground again if that child is."""
        if self._terminal is not None:
            self._terminal.take_back(child.pid)

    def close(self) -> None:
        """Nothing is started any more."""
        if self._terminal is not None:
            self._terminal.close()
        if self._null_fd >= 0:
            os.close(self._null_fd)
            self._null_fd = -1

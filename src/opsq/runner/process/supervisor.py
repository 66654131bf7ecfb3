"""Child processes: starts them, moves their bytes, reports when each has finished, and ends them as a group.

One thread owns a `Supervisor` and makes all calls; there is no event loop. This file must not know chunks, reservations
or the daemon: who starts a child decides what its end means.
"""

from __future__ import annotations

import os
import select
import signal
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from typing import Self

from opsq.errors import OpsqError, WorkFailed
from opsq.runner.process.child import Child, Finished, Said, Series, Sink, Source, Token
from opsq.runner.process.launcher import Launcher
from opsq.runner.process.orphan_guard import OrphanGuard
from opsq.runner.process.pipes import (
    FREE_SHARE,
    MEMORY_BYTES,
    Capture,
    Feed,
    Output,
    OutputLimit,
    Range,
)
from opsq.runner.process.poller import Poller
from opsq.runner.process.process_group import signal_group, survivor
from opsq.runner.process.streams import Streams

__all__ = ["Child", "Finished", "Output", "Range", "Supervisor"]

_WIDE_CHILDREN = 16
"""How many children get wide pipes: Linux gives a user 64 MiB of pipes in all, and makes all further ones narrow."""

_TICK_MIN_S, _TICK_MAX_S = 0.0005, 0.02
"""How often children are looked at whose end nothing announces: soon after their outputs end, then ever less often."""
LEAVE_AFTER_S = 5.0
"""How long after SIGKILL a program that still runs (as another user, or hung in the system) is left behind."""
_STOPPED_S = 0.5
"""How often they are looked at because one may be stopped, which nothing announces."""


class Supervisor:
    """The programs that run now.

    Args:
        spool_dir: an existing folder for outputs past `memory_bytes`; nothing with a name is left in it.
        memory_bytes: the longest output that is kept in memory, for each child.
        limit: how long an output may be; a child that writes more is killed, and its error is a `WorkFailed`.
        use_pidfd: learn of an end by a descriptor, where the system has it (Linux ≥ 5.3). Without, by looking.
        guarded: names a folder that goes with the children when this process is killed; `close` then leaves the guard
            to who gave it, until the folder is gone.
        shares_terminal: children stay in our session, and have its terminal while they run, one at a time; else each
            has a session of its own, which has none.

    Raises:
        Bug: this process dies of SIGPIPE, so it cannot feed a program that may close its stdin.
        UsageError: there is no terminal to share.

    Effects: descriptors that this process was started with are marked close-on-exec, closed standard streams are opened
    on /dev/null, and an ignored SIGCHLD (which would hide how children end) gets its default back.
    """

    def __init__(
        self,
        spool_dir: str | os.PathLike[str],
        *,
        memory_bytes: int = MEMORY_BYTES,
        limit: OutputLimit = FREE_SHARE,
        use_pidfd: bool = True,
        guarded: Callable[[], str] | None = None,
        shares_terminal: bool = False,
    ) -> None:
        self._spool_dir = os.fspath(spool_dir)
        self._memory_bytes = memory_bytes
        self._limit = limit
        self._use_pidfd = use_pidfd
        self._launcher = Launcher(self._spool_dir, guarded or str, shares_terminal=shares_terminal)
        self._owns_guard = guarded is None
        self._running: set[Child] = set()
        self._by_tick: set[Child] = set()
        self._tick_s = _TICK_MAX_S
        self.stopped: Callable[[Child, int], object] | None = None
        """Is given a child that was stopped by a signal, and that signal."""
        self._look_at_s = 0.0
        """When running children are looked at next, for one that is stopped."""
        self._finished: list[Finished] = []
        self._events = Poller()
        self._streams = Streams(self._events, self.give_up, self._expect_end)
        self._watched: set[int] = set()

    @property
    def guard(self) -> OrphanGuard:
        """What ends the children when this process is killed."""
        return self._launcher.guard

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __len__(self) -> int:
        return len(self._running)

    def start(
        self,
        argv: Sequence[str],
        stdin: bytes | Range = b"",
        env: dict[str, str] | None = None,
        *,
        said: Said | None = None,
        keeps_stdout: bool = True,
    ) -> Child:
        """Start a program in a session of its own, with `stdin` to read; its stdout and stderr are collected.

        Args:
            argv: the command, found by the PATH of `env`, and its arguments.
            stdin: what it reads; when empty it reads /dev/null.
            env: its whole environment; default: ours, as it was when this was made.
            said: is given what it says on stderr.
            keeps_stdout: false: its stdout is no result, and goes where its stderr goes.

        Raises:
            CommandNotFound: there is no such command.
            CommandNotExecutable: there is, but the system does not execute it.
            Refused: no descriptor, process or memory is left for one more child.
            ContentChanged, ContentMissing: the range cannot be read.
        """
        return self._start(argv, Feed(stdin), self._capture(), env, said, keeps_stdout=keeps_stdout)

    def start_series(
        self,
        argvs: Iterator[Sequence[str | bytes]],
        env: dict[str, str] | None = None,
        *,
        said: Said | None = None,
        goes_on: Callable[[int], bool] = lambda status: status == 0,
    ) -> Child:
        """Start programs one after the other; the first that does not end as asked ends all.

        They read /dev/null and share the pipes of stdout and stderr, so what they write is put together in order, and a
        start costs no more than a process. It counts as one child, whose exit status is the first that is not 0.

        Args:
            argvs: one at least; may raise an error of ours, which then is that of the child.
            goes_on: after which exit statuses the next is started.

        Raises:
            OpsqError: as `start`, and what `argvs` raises at once.
        """
        return self._start(next(argvs), Feed(b""), self._capture(), env, said, series=Series(argvs, goes_on))

    def start_nothing(self, error: OpsqError | None = None) -> Child:
        """Stand in for a child where none is needed, or where it failed before its start (`error`)."""
        child = Token()
        self._finished.append(Finished(child, 0 if error is None else None, None, Output(b""), b"", 0.0, error))
        return child

    def start_lasting(
        self, argv: Sequence[str], feed: Source, sink: Sink, env: dict[str, str] | None = None, *, said: Said
    ) -> Child:
        """Start a program that is fed for as long as it lives, see `push`, and whose stdout `sink` takes.

        Raises:
            OpsqError: as `start`.
        """
        return self._start(argv, feed, sink, env, said, is_lasting=True)

    def _capture(self) -> Capture:
        may_widen = len(self._running) < _WIDE_CHILDREN
        return Capture(self._spool_dir, self._memory_bytes, may_widen=may_widen, limit=self._limit)

    def _start(
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
    ) -> Child:
        child = self._launcher.launch(
            argv,
            feed,
            capture,
            env,
            said,
            series=series,
            keeps_stdout=keeps_stdout,
            is_lasting=is_lasting,
            is_wide=len(self._running) < _WIDE_CHILDREN,
        )
        self._running.add(child)
        self._streams.begin(child)
        self._announce_end(child)
        return child

    def _announce_end(self, child: Child) -> None:
        if self._use_pidfd and sys.platform == "linux":
            with suppress(OSError):  # an old kernel, a sandbox, no descriptor left: then by looking
                child._pidfd = os.pidfd_open(child.pid)
                self._events.listen(child._pidfd, select.POLLIN, lambda: self._look_at(child))
                return
        self._by_tick.add(child)

    def _expect_end(self) -> None:
        self._tick_s = _TICK_MIN_S

    def poll(self, timeout_s: float | None = None) -> list[Finished]:
        """Wait until something happens, and move bytes.

        Args:
            timeout_s: at most this long, in seconds; None: as long as it takes.

        Returns:
            Those that have finished, in that order. May be empty before the time is over: call again.
        """
        if self._finished:
            timeout_s = 0.0
        elif self._by_tick:
            timeout_s = self._tick_s if timeout_s is None else min(timeout_s, self._tick_s)
        if self._running:
            timeout_s = _STOPPED_S if timeout_s is None else min(timeout_s, _STOPPED_S)
        if self._events or timeout_s is not None:
            self._events.wait(timeout_s)
        if self._running and (now := time.monotonic()) >= self._look_at_s:
            self._look_at_s = now + _STOPPED_S
            for child in tuple(self._running - self._by_tick):
                self._look_at(child)
        if self._by_tick:
            self._tick_s = min(self._tick_s * 2, _TICK_MAX_S)
            for child in tuple(self._by_tick):
                self._look_at(child)
        finished, self._finished = self._finished, []
        return finished

    def watch(self, fd: int, on_readable: Callable[[], object]) -> None:
        """Have `poll` call `on_readable` whenever `fd` can be read or is hung up: a connection, a wake-up pipe."""
        self._events.listen(fd, select.POLLIN, on_readable)
        self._watched.add(fd)

    def unwatch(self, fd: int) -> None:
        """End a `watch`; before `fd` is closed."""
        self._events.forget(fd)
        self._watched.discard(fd)

    def unwatch_all(self) -> None:
        """End every `watch`: from now on `poll` waits for children alone."""
        for fd in tuple(self._watched):
            self.unwatch(fd)

    def push(self, child: Child) -> None:
        """Send what the feed of a lasting child has got since."""
        self._streams.push(child)

    def listen(self, child: Child) -> bool:
        """Take what a lasting child has written by now; false if it was given up, for that or before."""
        self._streams.pull(child)
        return child._error is None

    def give_up(self, child: Child, error: OpsqError) -> None:
        """Kill a child for this reason, unless there is one already."""
        child._error = child._error or error
        self.kill(child)

    def _look_at(self, child: Child) -> None:
        """Finish the child if it has ended; one that was asked to end has ended when its whole group has."""
        if child._wait_status is None:
            pid, status = os.waitpid(child.pid, os.WNOHANG | os.WUNTRACED)
            if not pid:
                return
            if os.WIFSTOPPED(status):
                if self.stopped is not None:
                    self.stopped(child, os.WSTOPSIG(status))
                return
            child._wait_status = status
            child._pidfd = self._events.drop(child._pidfd)
        if child._is_terminated and not child._is_killed:
            child._survivor = survivor(child.pid, child._survivor)
            if child._survivor:
                self._by_tick.add(child)
                return
        code = os.waitstatus_to_exitcode(child._wait_status)
        if child._series is not None and child._error is None and child._series.goes_on(code):
            child._status = child._status or code
            if child._is_terminated or child._is_killed:
                child._error = WorkFailed("it was ended before its last run")
            elif self._launcher.launch_next(child, child._series):
                self._by_tick.discard(child)
                self._announce_end(child)
                return
            code = child._status
        self._finish(child, code)

    def _finish(self, child: Child, code: int) -> None:
        self._streams.end(child)
        self._forget(child)
        self._finished.append(
            Finished(
                child=child,
                exit_status=code if code >= 0 else None,
                signal=-code if code < 0 else None,
                stdout=child._capture.output(),
                stderr_tail=child._tail.kept,
                run_s=(time.monotonic_ns() - child.started) / 1e9,
                error=child._error,
            )
        )

    def _forget(self, child: Child) -> None:
        self._running.discard(child)
        self._by_tick.discard(child)
        self._launcher.forget(child)
        self._streams.close(child)
        child._pidfd = self._events.drop(child._pidfd)

    def terminate(self, child: Child) -> None:
        """Ask the program and its descendants to end (SIGTERM); nothing if it has finished.

        It then counts as finished when the last of its process group has ended, so `kill` still reaches all of them.
        """
        if child in self._running:
            child._is_terminated = True
            self._signal(child, signal.SIGTERM)
            # One that is stopped must wake up to hear it.
            self._signal(child, signal.SIGCONT)

    def kill(self, child: Child) -> None:
        """End the program and its descendants at once (SIGKILL); nothing if it has finished.

        It then counts as finished when the program itself has ended: descendants of another user cannot be reached.
        """
        if child in self._running:
            child._is_killed = True
            self._signal(child, signal.SIGKILL)

    def suspend(self) -> None:
        """Stop all that runs, with its descendants, until `resume`; none of it is in the foreground any more."""
        for child in self._running:
            self._signal(child, signal.SIGSTOP)
            self._launcher.take_terminal(child)

    def resume(self) -> None:
        """Let it go on."""
        for child in self._running:
            self._launcher.lend_terminal(child)
            self._signal(child, signal.SIGCONT)

    def _signal(self, child: Child, number: signal.Signals) -> bool:
        """Send a signal to the child's group; False if that could not be done."""
        # Once nothing of the group is left, its number may be that of strangers.
        if child._wait_status is not None and not child._survivor:
            return False
        return signal_group(child.pid, number)

    def close(self) -> None:
        """Kill whatever still runs, with its descendants; wait for it; free everything but what was handed out.

        What hangs in the system is left behind after `LEAVE_AFTER_S`.
        """
        reached = {child for child in self._running if self._signal(child, signal.SIGKILL)}
        leave_at = time.monotonic() + LEAVE_AFTER_S
        for child in tuple(self._running):
            if child._wait_status is None:
                # What may not be killed (it runs as another user) is not waited for.
                _await_end(child.pid, leave_at if child in reached else 0.0)
            self._forget(child)
            child._capture.output().close()
        for finished in self._finished:
            finished.stdout.close()
        self._finished.clear()
        self._launcher.close()
        if self._owns_guard:
            self.guard.close()


def _await_end(pid: int, leave_at: float) -> None:
    """Collect a process, or leave it behind at that moment of the monotonic clock."""
    pause_s = _TICK_MIN_S
    while os.waitpid(pid, os.WNOHANG) == (0, 0) and time.monotonic() < leave_at:
        time.sleep(pause_s)
        pause_s = min(pause_s * 2, _TICK_MAX_S)

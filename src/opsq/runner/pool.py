"""Runs a program for each chunk: fills the slots, gives each end its verdict, and stops in one way whoever asks for it.

One thread, no event loop: it waits in `Children.poll` for programs, the daemon and signals alike. This file must not know
how bytes move (process.py), what is held or owed (driven.py), or how a person is told (the caller's).
"""

from __future__ import annotations

import logging
import os
import resource
import socket
import sys
import tempfile
import time
from collections import deque
from collections.abc import Sequence
from contextlib import nullcontext
from typing import TYPE_CHECKING, Any, Protocol

from opsq.client.chunk import Chunk
from opsq.client.lot import Lost
from opsq.errors import CommandNotExecutable, CommandNotFound, ContentChanged, ContentMissing, NotFound, OpsqError, Refused
from opsq.runner.ahead import Ahead
from opsq.runner.driven import DrivenConsumer, Until
from opsq.runner.failures import Failures
from opsq.runner.pipes import MEMORY_BYTES
from opsq.runner.process import Child, Children, Finished, Range
from opsq.runner.stopping import ECHO_S, STOP_SIGNALS, StopSignals
from opsq.runner.tally import Outcome, Tally

if TYPE_CHECKING:
    from opsq.client.connection import Connection

KILL_AFTER_S = 5.0
"""Between SIGTERM and SIGKILL lies the grace, but no more than this."""
LEAVE_AFTER_S = 5.0
"""What does not even end by SIGKILL (it runs as another user, or hangs in the system) is left behind so long after it."""
MEMORY_LIMIT_BYTES = 64 << 20
"""Outputs that wait in memory, of all slots together."""
_READ_BYTES = 1 << 16
"""Up to this size a chunk is read; to open a longer one and have the system send it costs less than the copy."""
_DESCRIPTORS_PER_JOB = 5
_DESCRIPTORS_KEPT = 100
"""For the store's files (64 are kept open), the connection, and our own start."""
_DRAW_S = 0.1
_TOLD_CHARACTERS = 300
_COMMAND_ERRORS: dict[int, type[OpsqError]] = {126: CommandNotExecutable, 127: CommandNotFound}

_log = logging.getLogger("opsq")


class Connect(Protocol):
    """Makes a greeted connection to the daemon, in which `status` shows this consumer under `name`."""

    def __call__(self, *, name: str) -> Connection:
        """Dial and greet once."""


def consume(
    connect: Connect,
    command: Sequence[str],
    *,
    jobs: int | None = None,
    strategy: str = "Random",
    until: Until = "",
    name: str = "",
    grace_s: float = 10.0,
    progress: Any = None,
    signals: StopSignals | None = None,
) -> Outcome:
    """Run `command` for each chunk: the chunk is its stdin, its stdout the result, exit 0 completes; all else fails the chunk.

    Args:
        connect: called once here, and again after each loss of the connection.
        jobs: how many run at once; None: one a core.
        until: see `Until`.
        name: what the consumer is called; default: host and process id.
        grace_s: how long programs may go on after the first SIGTERM, SIGINT or SIGHUP; what does not end by then is
            terminated, then killed, and its chunk given back. A second signal does all that at once.
        progress: a rich `Progress` to draw on, or None.
        signals: entered already, by whoever wants to end it by `StopSignals.stop`; None: caught while this runs.

    Raises:
        CommandNotFound, CommandNotExecutable: the command cannot be run, or ended with 127 or 126, which says the same of
            what it runs itself; no attempt is counted.
        Refused: there is no room for results, or for even one program.
        OpsqError: the daemon or its store cannot be reached at the start, or the daemon refused the strategy.

    Effects: however it ends, no program goes on, and what has no verdict is given back.
    """
    name = name or f"{socket.gethostname()}-{os.getpid()}"
    with StopSignals() if signals is None else nullcontext(signals) as heard:
        with Pool(lambda: connect(name=name), command, jobs or _cores_count(), strategy, until, grace_s, heard, progress) as pool:
            pool.run()
        tally, dead_count = pool.tally, 0
        if tally.has_failures and not pool.signal:
            with connect(name=name) as daemon:
                dead_count = tally.dead_count(daemon)
        return Outcome(tally.completed_count, tally.failed_count, dead_count, tally.released_count, pool.signal)


class Pool:
    """The slots of one consumer. Enter it, `run` it once.

    Whatever way a program is fed, `_start` makes a child of a chunk, and `_judge` a verdict of the child's end.
    """

    def __init__(
        self,
        dial: Any,
        command: Sequence[str],
        wanted_jobs: int,
        strategy: str,
        until: Until,
        grace_s: float,
        signals: StopSignals,
        progress: Any,
    ) -> None:
        self._command = list(command)
        self._jobs = jobs = min(wanted_jobs, _affordable_count())
        self._grace_s = grace_s
        self._kill_after_s = min(grace_s, KILL_AFTER_S)
        self._signals = signals
        self._progress = progress
        self._bar = progress.add_task("working", total=None) if progress is not None else None
        self._drawn_at = 0.0
        self.tally = Tally()
        self.signal = 0
        """The signal that ended everything at once."""
        self._running: dict[Child, Chunk] = {}
        self._held_up: deque[Chunk] = deque()
        """Chunks for which the system has no room for a program at the moment."""
        self._kill_at: dict[Child, float] = {}
        """Children that were told to end, and when they are killed."""
        self._given_up: set[Child] = set()
        """Those of them whose chunk is not ours any more."""
        self._terminate_at: float | None = None
        """When programs are told to end, once a signal came."""
        if jobs < wanted_jobs:
            self._say(f"Only {jobs} programs run at once: more would need more than the open files allowed (ulimit -n).")
        self._ahead = Ahead(jobs)
        self._watched_fd = -1
        self._has_arrived = False
        self._consumer = DrivenConsumer(dial, strategy, until, self._lost)
        self._failures = Failures(self._consumer, self.tally, self._say)
        spool_dir = self._consumer.store_folder or tempfile.gettempdir()
        self._children = Children(spool_dir, memory_bytes=min(MEMORY_BYTES, MEMORY_LIMIT_BYTES // jobs))
        self._children.watch(signals.fileno, signals.drain)

    def __enter__(self) -> Pool:
        return self

    def __exit__(self, *_: object) -> None:
        """End what still runs, then give back what has no verdict."""
        self._children.close()
        try:
            if self.signal:
                self._consumer.leave_at_once()
            else:
                self._consumer.close()
        finally:
            self._failures.settle(is_last=True)

    # --- the loop -----------------------------------------------------------------------------------------------------

    def run(self) -> None:
        """Work until the end that was asked for, or until signals end it. See `consume`."""
        self._heed_signals()
        self._fill()
        while not self._is_over():
            # Here descriptors of the connection may have been closed, and no new ones be watched yet.
            self._watch_connection()
            ended = [(finished, *self._free(finished.child)) for finished in self._children.poll(self._due_s())]
            self._look_for_signal_of(ended)
            self._heed_signals()
            # First the next program, then the last one's verdict: so the processor is not idle while a result is stored.
            self._fill()
            self._judge_all(ended)
            if self._has_arrived or self._consumer.next_poll_s() <= 0:
                self._has_arrived = False
                self._consumer.poll()
                self._fill()
            if not self._running:
                self._consumer.send()
            self._failures.settle()
            self._kill_what_is_due()
            self._draw()

    def _is_over(self) -> bool:
        if self.signal:
            return True
        if self._running or self._held_up:
            return self._terminate_at is not None and time.monotonic() > self._terminate_at + self._kill_after_s + LEAVE_AFTER_S
        if self._terminate_at is not None:
            return True
        return self._consumer.is_ended and not self._consumer.ready_count and self._consumer.is_settled

    def _due_s(self) -> float:
        """How long to wait at most for something to happen."""
        due_s = self._consumer.due_s()
        if self._progress is not None:
            due_s = min(due_s, _DRAW_S)
        if self._kill_at or self._terminate_at is not None:
            instants = list(self._kill_at.values())
            if self._terminate_at is not None:
                instants += [self._terminate_at, self._terminate_at + self._kill_after_s + LEAVE_AFTER_S]
            now = time.monotonic()
            due_s = min([due_s, *(instant - now for instant in instants if instant > now)])
        return due_s

    def _watch_connection(self) -> None:
        """Watch the descriptor that the connection has now. Its number may belong to a child as soon as one is started."""
        fd = self._consumer.fileno()
        if fd == self._watched_fd:
            return
        if self._watched_fd >= 0:
            self._children.unwatch(self._watched_fd)
        if fd >= 0:
            self._children.watch(fd, self._arrived)
        self._watched_fd = fd

    def _arrived(self) -> None:
        self._has_arrived = True

    def _draw(self) -> None:
        if self._progress is not None and time.monotonic() >= self._drawn_at + _DRAW_S:
            self._drawn_at = time.monotonic()
            text = f"{len(self._running)} running" + (f", {self.tally.failed_count} failed" if self.tally.failed_count else "")
            self._progress.update(self._bar, description=text, completed=self.tally.completed_count)

    # --- starting -----------------------------------------------------------------------------------------------------

    def _fill(self) -> None:
        """Start a program in each free slot, and order the chunks for the next ones."""
        if self._signals.count:
            return
        while len(self._running) < self._jobs and not self._signals.count:
            chunk = self._held_up.popleft() if self._held_up else self._consumer.take()
            if chunk is None:
                break
            if self._ahead.is_slow:
                self._consumer.send()  # that it is begun: a chunk that kills its consumer is to be found
            if not self._start(chunk):
                return
        if self._signals.count:
            return
        free_count = self._jobs - len(self._running)
        count = self._ahead.next_count(free_count, self._consumer.ready_count)
        if count:
            self._consumer.order(count)

    def _start(self, chunk: Chunk) -> bool:
        """Start the program for a chunk; false if that has to wait until another one has ended."""
        if chunk.is_revoked:
            chunk.release()
            return True
        stdin: bytes | Range = b""
        try:
            stdin = self._content(chunk)
            self._watch_connection()
            child = self._children.start(self._command, stdin)
        except NotFound:  # the submission was removed
            chunk.release()
        except (ContentMissing, ContentChanged) as error:
            self._fail_unreadable(chunk, error)
        except (CommandNotFound, CommandNotExecutable):
            self._release(chunk)
            raise
        except Refused:
            if not self._running:
                self._release(chunk)
                raise
            self._held_up.append(chunk)
            return False
        else:
            self._running[child] = chunk
        finally:
            if isinstance(stdin, Range):
                os.close(stdin.fd)
        return True

    def _content(self, chunk: Chunk) -> bytes | Range:
        reader = self._consumer.reader(chunk.submission_id)
        place = reader.open_range(chunk.index) if reader.size(chunk.index) > _READ_BYTES else None
        if place is None:
            return reader.read(chunk.index)
        return Range(place.descriptor, place.offset_bytes, place.size_bytes, reader.header, f"Chunk {_name_of(chunk)}")

    # --- ending -------------------------------------------------------------------------------------------------------

    def _free(self, child: Child) -> tuple[Chunk, bool]:
        """Empty the slot of a child; gives its chunk, and whether it ended because it was told to."""
        is_told_to_end = self._kill_at.pop(child, None) is not None
        return self._running.pop(child), is_told_to_end

    def _judge_all(self, ended: list[tuple[Finished, Chunk, bool]]) -> None:
        """Give each its verdict, also when one of them ends everything."""
        failure: OpsqError | None = None
        for finished, chunk, is_told_to_end in ended:
            try:
                self._judge(finished, chunk, is_told_to_end)
            except OpsqError as error:
                failure = failure or error
        if failure is not None:
            raise failure

    def _judge(self, finished: Finished, chunk: Chunk, is_told_to_end: bool) -> None:
        """Give a chunk the verdict that the end of its program means."""
        try:
            if is_told_to_end:
                # Whatever its exit status: a program may exit 0 on SIGTERM, with half a result.
                self._take_back(finished.child, chunk)
                return
            self._ahead.note(finished.run_s)
            if finished.is_success:
                self._complete(finished, chunk)
            elif finished.error is None and finished.signal in self._signals.numbers:
                # The signal was sent to our process group while this child, just made, still belonged to it.
                self._release(chunk)
            elif isinstance(finished.error, ContentMissing | ContentChanged):
                self._fail_unreadable(chunk, finished.error, run_s=finished.run_s)
            elif isinstance(finished.error, Refused):
                self._release(chunk)
                raise finished.error
            elif finished.exit_status in _COMMAND_ERRORS and finished.error is None:
                self._release(chunk)
                raise _COMMAND_ERRORS[finished.exit_status](
                    f"The command ended with {finished.exit_status} on chunk {_name_of(chunk)}, as if it cannot be run: {finished.reason}"
                )
            else:
                is_ours = finished.error is None
                self._fail(
                    chunk,
                    finished.reason,
                    run_s=finished.run_s,
                    exit_status=finished.exit_status if is_ours else None,
                    signal=finished.signal if is_ours else None,
                )
        finally:
            finished.stdout.close()

    def _complete(self, finished: Finished, chunk: Chunk) -> None:
        output = finished.stdout
        if output.fd >= 0:
            self._consumer.complete_by_file(chunk, output.fd, run_s=finished.run_s, exit_status=0)
        else:
            chunk.complete(output.memory, run_s=finished.run_s, exit_status=0)
        self.tally.completed_count += 1

    def _fail(
        self, chunk: Chunk, reason: str, *, run_s: float | None = None, exit_status: int | None = None, signal: int | None = None
    ) -> None:
        if chunk.is_revoked:
            chunk.release()
            return
        self._failures.enter(chunk, f"Chunk {_name_of(chunk)} failed: {reason}")
        chunk.fail(reason, run_s=run_s, exit_status=exit_status, signal=signal)

    def _fail_unreadable(self, chunk: Chunk, error: OpsqError, *, run_s: float | None = None) -> None:
        """Fail a chunk that cannot be read: for good if its file, submitted in place, is gone or is not what it was."""
        if not (isinstance(error, ContentChanged) or self._consumer.is_in_place(chunk.submission_id)):
            self._fail(chunk, str(error), run_s=run_s)
        elif chunk.is_revoked:
            chunk.release()
        else:
            self._failures.enter_final(chunk, f"Chunk {_name_of(chunk)} failed for good (told once a submission): {error}")
            chunk.fail(str(error), retry=False, run_s=run_s)

    def _release(self, chunk: Chunk) -> None:
        self.tally.released_count += 1
        chunk.release()

    def _take_back(self, child: Child, chunk: Chunk) -> None:
        if child in self._given_up:
            self._given_up.discard(child)
            chunk.release()
        else:
            self._release(chunk)

    def _lost(self, lost: Lost) -> None:
        """A chunk is not ours any more: its program has nothing to work for."""
        self._say(f"Chunk {lost.submission_id}/{lost.index} is not ours any more: {lost.message}")
        for child, chunk in self._running.items():
            if chunk.index == lost.index and chunk.submission_id == lost.submission_id:
                self._given_up.add(child)
                self._tell_to_end(child)

    def _say(self, text: str) -> None:
        text = text if len(text) <= _TOLD_CHARACTERS else text[:_TOLD_CHARACTERS] + "…"
        # What a program says may move the cursor or worse.
        text = "".join(letter if letter.isprintable() else " " for letter in text)
        if self._progress is not None:
            self._progress.console.print(text, markup=False, highlight=False)
        else:
            _log.warning("opsq: %s", text)

    # --- stopping -----------------------------------------------------------------------------------------------------

    def _look_for_signal_of(self, ended: list[tuple[Finished, Chunk, bool]]) -> None:
        """Before an end by a stop signal is judged, let the same signal reach us: who signals a group signals one by one."""
        if any(finished.signal in STOP_SIGNALS and finished.signal not in self._signals.numbers for finished, _, _ in ended):
            self._signals.wait(ECHO_S)

    def _heed_signals(self) -> None:
        if self._signals.count > 1:
            self.signal = self._signals.last
            self.tally.released_count += len(self._running) - len(self._given_up)
        if self._signals.count and self._terminate_at is None:
            self._terminate_at = time.monotonic() + self._grace_s
            self.tally.released_count += self._consumer.order_no_more()
            while self._held_up:
                self._release(self._held_up.popleft())
        if self._terminate_at is not None and time.monotonic() >= self._terminate_at:
            for child in self._running:
                self._tell_to_end(child)

    def _tell_to_end(self, child: Child) -> None:
        if child not in self._kill_at:
            self._kill_at[child] = time.monotonic() + self._kill_after_s
            self._children.terminate(child)

    def _kill_what_is_due(self) -> None:
        if self._kill_at:
            now = time.monotonic()
            for child, instant in self._kill_at.items():
                if now >= instant:
                    self._children.kill(child)


def _cores_count() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _affordable_count() -> int:
    """How many programs the limit of open files allows for."""
    limit, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return sys.maxsize if limit == resource.RLIM_INFINITY else max((limit - _DESCRIPTORS_KEPT) // _DESCRIPTORS_PER_JOB, 1)


def _name_of(chunk: Chunk) -> str:
    return f"{chunk.submission_id}/{chunk.index}"

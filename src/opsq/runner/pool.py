"""Runs a program for each chunk: fills the slots, gives each end its verdict, and stops in one way.

One thread, no event loop: it waits in `poll` for programs, the daemon and signals alike. This file must not know
how bytes move (process/), what is held or owed (polled_consumer.py), or how anything is shown (the viewer).
"""

from __future__ import annotations

import os
import sys
import tempfile
import time
from collections import deque
from collections.abc import Sequence
from contextlib import nullcontext
from typing import TYPE_CHECKING, NamedTuple, Protocol

from opsq.client.core.held_block import Lost
from opsq.client.core.prefetch import SlotPrefetch
from opsq.client.core.transport import default_name
from opsq.client.sync.chunk import Chunk
from opsq.errors import (
    READER_ERRORS,
    CommandNotExecutable,
    CommandNotFound,
    ContentChanged,
    ContentMissing,
    NameTaken,
    NotFound,
    OpsqError,
    Refused,
)
from opsq.runner.chunk_input import ChunkInputs, operations_count
from opsq.runner.connection_watch import ConnectionWatch
from opsq.runner.deadlines import Deadlines, Why
from opsq.runner.feeding.program_kinds import make_programs
from opsq.runner.feeding.programs import Child, Finished, Range, Setup
from opsq.runner.held_remark import HeldRemark
from opsq.runner.job_control import JobControl
from opsq.runner.outage import Outage
from opsq.runner.polled_consumer import PolledConsumer, StillAwaitedError
from opsq.runner.pool_options import DEFAULTS, ConsumeOptions
from opsq.runner.process.pipes import MEMORY_BYTES, OutputLimit
from opsq.runner.progress import PoolProgress, ProgressViewer
from opsq.runner.status_poll import StatusPoll
from opsq.runner.stderr_logs import ShownStderr, StderrLog, StderrLogs
from opsq.runner.stop_signals import StopSignals
from opsq.runner.stopping import Stopping
from opsq.runner.tally import Outcome, Tally
from opsq.runner.verdict import VerdictGiver, name_of
from opsq.units import counted
from opsq.wire.messages import Claim

if TYPE_CHECKING:
    from opsq.client.core.transport import Dial, Wire
    from opsq.client.sync.connection import Connection

MEMORY_LIMIT_BYTES = 64 << 20
"""Outputs that wait in memory, of all slots together."""
_CONGESTED_S = 0.05
"""How often to check whether our output is being read again."""


class Connect(Protocol):
    """Makes a greeted connection to the daemon: `status` shows it under `name`; it may claim a name for itself."""

    def __call__(self, *, name: str, claim: Claim | None = None) -> Connection:
        """Dial and greet once."""


def consume(
    connect: Connect,
    command: Sequence[str],
    options: ConsumeOptions = DEFAULTS,
    *,
    viewer: ProgressViewer | None = None,
    signals: StopSignals | None = None,
) -> Outcome:
    """Run `command` for each chunk: the chunk is its stdin, its stdout the result, its exit status the verdict.

    Args:
        connect: called once here, and again after each loss of the connection.
        viewer: is notified of what happens.
        signals: entered already by a caller that may end it by `StopSignals.stop`; None: caught while this runs.

    Raises:
        CommandNotFound, CommandNotExecutable: the command cannot be run, or ended with 127 or 126, which says the same
            of what it runs itself; no attempt is counted.
        Refused: there is no room for results, or for even one program.
        StoreNotVisible, ContentNotPermitted: this machine or user cannot read content; no attempt is counted.
        NameTaken: while the daemon was away, another consumer came first and has the name that was claimed.
        OpsqError: the daemon or its store cannot be reached at the start, or the daemon refused the strategy.

    Effects: however it ends, no program goes on, and what has no verdict is given back.
    """
    name = options.name or default_name()
    with StopSignals() if signals is None else nullcontext(signals) as heard:
        claim = Claim(options.claim, os.urandom(16)) if options.claim else None
        try:
            pool = Pool(lambda: connect(name=name, claim=claim), command, options, heard, viewer or ProgressViewer())
        except NameTaken:
            return Outcome(0, 0, 0, 0, is_taken=True)
        with pool:
            pool.run()
        tally, dead_count = pool.tally, 0
        if tally.has_failures and not pool.signal:
            with connect(name=name) as daemon:
                dead_count = tally.dead_count(daemon)
        return tally.outcome(dead_count, pool.signal)


class _Work(NamedTuple):
    """What a child works on."""

    chunk: Chunk
    stderr: StderrLog | ShownStderr
    operations_count: int
    """Its records, if a viewer shows how many."""


class _Ended(NamedTuple):
    """A child that has ended, and why if it was asked to."""

    finished: Finished
    work: _Work
    why: Why


class Pool:
    """The slots of one consumer. Enter it, `run` it once.

    Whatever way a program is fed, `_start` makes a child of a chunk, and the judge a verdict of the child's end.
    """

    def __init__(
        self, dial: Dial, command: Sequence[str], options: ConsumeOptions, signals: StopSignals, viewer: ProgressViewer
    ) -> None:
        self._options = options
        self._signals = signals
        self._viewer = viewer
        self._jobs = jobs = options.affordable_jobs(viewer.say)
        self._stopping = Stopping(
            signals, options.grace_s, options.stop_after_s, shares_terminal=options.feeding.shares_terminal
        )
        self.tally = Tally()
        self._running: dict[Child, _Work] = {}
        self._postponed: deque[Chunk] = deque()
        """Chunks for whose program the system has no room at the moment, or whose attachment is on its way."""
        self._lost_codes: dict[Child, str] = {}
        """Why the reservation of a running program's chunk was lost."""
        self._unjudged_count = 0
        """Programs that have ended and have no verdict yet."""
        self._is_draining = False
        """Nothing more is started, and what was not has been given back."""
        self._is_blocked = False
        """Nothing is started for the moment: our output is not being read."""
        self._logs = None if options.logs is None else StderrLogs(options.logs, viewer.say)
        # Where records are arguments, one chunk after the other fills all slots.
        self._prefetch = SlotPrefetch(1 if options.feeding.by_records else jobs)
        self._name_taken: NameTaken | None = None
        self._consumer = PolledConsumer(lambda: self._dial(dial), options.whole_strategy, options.until, self._lost)
        self._inputs = ChunkInputs(self._consumer)
        self._verdicts = VerdictGiver(self._consumer, self.tally, options, viewer, signals)
        try:
            setup = Setup(
                spool_dir=self._consumer.store_folder or tempfile.gettempdir(),
                memory_bytes=min(MEMORY_BYTES, MEMORY_LIMIT_BYTES // jobs),
                consumer=self._consumer.name,
                jobs=jobs,
                attachment=self._consumer.attachment,
                limit=OutputLimit(options.max_result_bytes, jobs),
                completes=lambda status: options.exit_policy.of(status, None) == "complete",
            )
            self._programs = make_programs(command, options.feeding, setup)
        except BaseException:
            self._consumer.close()
            raise
        self._programs.watch(signals.fileno, signals.drain)
        self._connection = ConnectionWatch(self._consumer, self._programs)
        self._status_poll = StatusPoll(
            viewer, self._consumer, options.submission_id, self._progress, options.counted_pair
        )
        self._outage = Outage(viewer, self._consumer)
        self._held = HeldRemark(viewer, self._consumer)
        self._deadlines = Deadlines(self._programs, options.max_runtime_s, options.grace_s)
        self._job_control = JobControl(viewer, self._consumer, self._programs, self._deadlines, self._name_of)

    @property
    def signal(self) -> int:
        """The signal that ended everything at once; 0: none did."""
        return self._stopping.signal

    def _dial(self, dial: Dial) -> Wire:
        try:
            return dial()
        except NameTaken as error:
            self._name_taken = error
            raise

    def __enter__(self) -> Pool:
        return self

    def __exit__(self, *_: object) -> None:
        """End what still runs, then give back what has no verdict."""
        self._programs.close(at_once=bool(self.signal))
        self._inputs.close()
        try:
            if self.signal or self._name_taken is not None:
                self._consumer.leave_at_once()
            else:
                self._consumer.close()
        finally:
            self._verdicts.failures.settle(is_last=True)
            self.tally.lost(self._consumer.expired)

    # --- the loop -----------------------------------------------------------------------------------------------------

    def run(self) -> None:
        """Work until the end that was asked for, or until signals end it. See `consume`."""
        with self._job_control:
            self._loop()
        if self._consumer.is_ended and not self._stopping.is_asked:
            self._held.conclude()

    def _loop(self) -> None:
        self._heed_signals()
        self._fill()
        while not self._is_over():
            # Here descriptors of the connection may have been closed, and no new ones be watched yet.
            self._connection.renew()
            ended = [self._free(finished) for finished in self._programs.poll(self._due_s())]
            self._unjudged_count = len(ended)
            self._stopping.await_echo([one.finished.signal for one in ended])
            self._heed_signals()
            self._job_control.tick()
            # The next program starts before the last verdict, so the processor is not idle while a result is stored.
            try:
                self._fill()
            finally:  # also when the program has vanished: what is done is done
                self._judge_all(ended)
                self._unjudged_count = 0
            if self._connection.has_arrived or self._consumer.next_poll_s() <= 0:
                self._connection.has_arrived = False
                self._consumer.poll()
                if self._name_taken is not None:
                    raise self._name_taken
                self._fill()
            if not self._running:
                self._consumer.send()
            self._verdicts.failures.settle()
            self._deadlines.tick()
            self._status_poll.tick()
            self._outage.tick()
            self._held.tick(is_idle=not self._running)

    def _is_over(self) -> bool:
        if self.signal:
            return True
        if self._running or self._postponed:
            return self._stopping.is_over
        if self._stopping.is_asked:
            return True
        is_done = self._is_draining or self._verdicts.judged_count >= (self._options.max_chunks or sys.maxsize)
        is_done = is_done or (self._consumer.is_ended and not self._consumer.ready_count)
        return is_done and self._consumer.is_settled

    def _due_s(self) -> float:
        """How long to wait at most for something to happen."""
        due_s = self._consumer.due_s()
        if self._is_blocked:
            due_s = min(due_s, _CONGESTED_S)
        now = time.monotonic()
        parts = (self._stopping, self._deadlines, self._status_poll, self._outage, self._held)
        return min([due_s, *(part.next_due(now) - now for part in parts)])

    def _progress(self) -> PoolProgress:
        submissions = {work.chunk.submission_id: work.chunk.metadata for work in self._running.values()}
        tally = self.tally
        done = (tally.completed_count, tally.failed_count, tally.operations_count)
        return PoolProgress(len(self._running), list(submissions.items()), *done, self._consumer.counts)

    # --- starting -----------------------------------------------------------------------------------------------------

    def _fill(self) -> None:
        """Start a program in each free slot, and order the chunks for the next ones."""
        if self._is_draining:
            return
        self._is_blocked = self._viewer.is_congested
        if self._is_blocked:
            self._consumer.give_back_ready()  # others can have what is not started here
            return
        # However many slots there are to be filled: nothing that is due waits until all are.
        while len(self._running) < self._slots_count() and not self._signals.count and self._consumer.next_poll_s() > 0:
            chunk = self._postponed.popleft() if self._postponed else self._consumer.take()
            if chunk is None:
                break
            if self._prefetch.is_slow:
                self._consumer.send()  # that it was started: a chunk that kills its consumer is to be found
            if not self._start(chunk):
                return
        if self._signals.count:
            return
        free_count = self._slots_count() - len(self._running)
        count = min(self._prefetch.next_count(free_count, self._consumer.ready_count), self._room_count())
        if count > 0:
            self._consumer.order(count)

    def _slots_count(self) -> int:
        """How many chunks may be at work now. With a limit on their run time none waits in the pipe of a server."""
        count = self._programs.slots_count
        return count if self._options.max_runtime_s is None else min(count, self._jobs)

    def _room_count(self) -> int:
        """How many more chunks may be reserved."""
        if self._options.max_chunks is None:
            return sys.maxsize
        begun_count = self._verdicts.judged_count + self._unjudged_count + len(self._running)
        return self._options.max_chunks - begun_count - len(self._postponed) - self._consumer.ready_count

    def _start(self, chunk: Chunk) -> bool:
        """Start the program for a chunk; false if that has to wait until one has ended, or something has arrived."""
        if chunk.is_revoked:
            chunk.release()
            return True
        stdin: bytes | Range = b""
        try:
            self._programs.prepare(chunk)
            stdin = self._inputs.content_of(chunk)
            self._connection.renew()
            count = 0 if self._viewer.look_s is None else operations_count(stdin, self._options.feeding.separator)
            stderr = ShownStderr(self._viewer, name_of(chunk)) if self._logs is None else self._logs.log(chunk)
            child = self._programs.start(chunk, stdin, stderr.write)
        except NotFound:  # the submission was removed
            chunk.release()
        except (ContentMissing, ContentChanged) as error:
            self._verdicts.fail_unreadable(chunk, error)
        except (CommandNotFound, CommandNotExecutable, *READER_ERRORS):
            self._verdicts.release(chunk)
            raise
        except StillAwaitedError:
            self._postponed.append(chunk)
            return False
        except Refused:
            if not self._running:
                self._verdicts.release(chunk)
                raise
            self._postponed.append(chunk)
            return False
        else:
            self._running[child] = _Work(chunk, stderr, count)
            self._deadlines.start(child)
        finally:
            if isinstance(stdin, Range):
                os.close(stdin.fd)
        return True

    # --- ending -------------------------------------------------------------------------------------------------------

    def _free(self, finished: Finished) -> _Ended:
        """Empty the slot of a child."""
        return _Ended(finished, self._running.pop(finished.child), self._deadlines.ended(finished.child))

    def _judge_all(self, ended: list[_Ended]) -> None:
        """Give each its verdict, also when one of them ends everything."""
        failure: OpsqError | None = None
        for one in ended:
            if not one.why:
                self._prefetch.note_run(one.finished.run_s)
            try:
                lost_code = self._lost_codes.pop(one.finished.child, "")
                if self._verdicts.give_verdict(one.finished, one.work.chunk, one.work.stderr, one.why, lost_code):
                    self.tally.operations_count += one.work.operations_count
            except OpsqError as error:
                failure = failure or error
        if failure is not None:
            raise failure

    def _name_of(self, child: Child) -> str:
        work = self._running.get(child)
        return "" if work is None else name_of(work.chunk)

    def _lost(self, lost: Lost) -> None:
        """The reservation of a chunk was lost: its program has nothing to work for."""
        self._viewer.say(f"The reservation of chunk {lost.submission_id}/{lost.index} was lost: {lost.message}")
        for child, work in self._running.items():
            if work.chunk.index == lost.index and work.chunk.submission_id == lost.submission_id:
                self._lost_codes[child] = lost.code
                if self._options.on_lost == "stop":
                    self._deadlines.end(child, "lost", self._stopping.kill_after_s)

    # --- stopping -----------------------------------------------------------------------------------------------------

    def _heed_signals(self) -> None:
        stopping, was_asked = self._stopping, self._stopping.is_asked
        if stopping.heed():
            self.tally.released_count += sum(child not in self._lost_codes for child in self._running)
        elif self._signals.numbers and self._running and self._options.grace_s and not was_asked:
            self._viewer.remark(
                f"Waiting up to {self._options.grace_s:g} s for {counted(len(self._running), 'running program')}. "
                "Press Ctrl-C again, or send another signal, to stop now."
            )
        if stopping.is_draining and not self._is_draining:
            self._is_draining = True
            self.tally.released_count += self._consumer.order_no_more()
            while self._postponed:
                self._verdicts.release(self._postponed.popleft())
        if stopping.is_terminating:
            for child in self._running:
                self._deadlines.end(child, "stop", stopping.kill_after_s)

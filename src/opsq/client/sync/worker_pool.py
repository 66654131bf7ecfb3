"""The consumer's side of its worker processes: start, hand over a chunk, hear what became of it, notice death.

This file gives no verdicts. A process is made by `spawn`, never by a fork, and ends when its pipe closes, so none
outlives the consumer.
"""

from __future__ import annotations

import atexit
import multiprocessing
import pickle
import select
import signal
import threading
import time
from collections.abc import Callable
from multiprocessing import resource_tracker
from multiprocessing.connection import Connection
from multiprocessing.context import SpawnProcess
from multiprocessing.reduction import ForkingPickler
from typing import TYPE_CHECKING, Any

import msgspec

from opsq.client.core import worker_process
from opsq.client.core.outcome import Outcome
from opsq.client.core.worker_process import (
    AttachmentIs,
    AttachmentWanted,
    Broken,
    FromWorker,
    Interrupted,
    Ready,
    Work,
    decode_of_worker,
    encode,
)
from opsq.errors import NotFound, UsageError, WorkFailed, from_code

if TYPE_CHECKING:
    from opsq.client.sync.chunk import Chunk
    from opsq.wire.messages import SubmissionContent, Welcome

_LOOK_S = 0.25
"""A worker that left a child behind is dead although its pipe stays open, so it is looked at this often."""
_END_S = 3.0
"""How long a worker may take to end by itself: longer than it gives its function to clean up."""
_END_LOOK_S = 0.005
_making = threading.Lock()
"""Starting a process also waits for others that have ended, and only one thread may wait for a process."""


def program_of(f: Callable[[Any], Any]) -> bytes:
    """Pack a function by the name under which a new process can import it.

    Raises:
        UsageError: it cannot be imported.
    """
    try:
        return bytes(ForkingPickler.dumps(f))
    except (pickle.PicklingError, AttributeError, TypeError) as error:
        raise UsageError(
            f"{f!r} cannot be called in another process: {error}.",
            hint="Give a function from the top level of a module, or mode='threads'.",
        ) from error


class WorkerSlot:
    """One worker process, replaced when it dies.

    Args:
        describe: what the daemon said of a submission; raises `NotFound` when it was removed.
        welcome: what the daemon said to it; names the store.
        program: the function, packed.
        max_runtime_s: a chunk that takes longer fails, and its process is killed; None: as long as it likes.
    """

    is_killable = True

    def __init__(
        self,
        describe: Callable[[int], SubmissionContent],
        welcome: Welcome,
        program: bytes,
        max_runtime_s: float | None,
    ) -> None:
        self._describe = describe
        self._welcome = msgspec.msgpack.encode(welcome)
        self._program = program
        self._max_runtime_s = max_runtime_s
        self._process: SpawnProcess | None = None
        self._pipe: Connection | None = None
        self._poll = select.poll()
        self._told_submission_id = -1
        self._is_given_up = False

    def prepare(self) -> None:
        """See `Slot.prepare`: starts a process if there is none.

        Raises:
            UsageError: the function cannot be imported there.
            WorkFailed: it ended before it was ready.
        """
        if self._pipe is not None and not self._poll.poll(0):
            return
        self.close()
        context = multiprocessing.get_context("spawn")
        self._pipe, theirs = context.Pipe()
        process = context.Process(
            target=worker_process.main, args=(theirs, self._program, self._welcome), name="opsq-worker"
        )
        resource_tracker.ensure_running()  # it would undo the mask if it were started with the process
        with _making:
            # Blocked until the worker handles them: they may come to the whole group while it starts.
            before = signal.pthread_sigmask(signal.SIG_BLOCK, worker_process.GROUP_SIGNALS)
            try:
                process.start()
            finally:
                signal.pthread_sigmask(signal.SIG_SETMASK, before)
            self._process = process
        theirs.close()
        atexit.register(self.kill)  # multiprocessing waits at exit for all that it has started
        self._poll = select.poll()
        self._poll.register(self._pipe.fileno(), select.POLLIN)
        self._told_submission_id = -1
        frame = self._receive(None)
        if isinstance(frame, Ready) or self._is_given_up:
            return
        if isinstance(frame, Broken):
            raise UsageError(f"A worker process cannot load the function. {frame.reason}")
        exit_code = self._end()
        raise WorkFailed(
            f"A worker process ended before it was ready ({_ended(exit_code)}); see its stderr.",
            hint="A program that makes worker processes starts its work under `if __name__ == '__main__':`.",
        )

    def work(self, chunk: Chunk) -> Outcome | None:
        """See `Slot.work`. A process that dies at it fails the chunk, with its signal or exit status."""
        try:
            described = self._describe(chunk.submission_id)
        except NotFound:
            return None
        is_known = described.submission_id == self._told_submission_id
        self._told_submission_id = described.submission_id
        started_at = time.monotonic()
        deadline = None if self._max_runtime_s is None else started_at + self._max_runtime_s
        self._send(Work(str(chunk.handle), None if is_known else described))
        while isinstance(frame := self._receive(deadline), AttachmentWanted):
            self._send(AttachmentIs(chunk.attachment()))
        if isinstance(frame, Outcome):
            return frame
        if isinstance(frame, Interrupted):
            self.close()
            raise _exception_of(frame)
        is_late = frame is None and deadline is not None and time.monotonic() >= deadline and not self._is_given_up
        if is_late:
            self._kill()
        exit_code = self._end()
        if self._is_given_up:
            return None
        number = -exit_code if exit_code < 0 else None
        reason = f"The worker process {_ended(exit_code)} while it worked on the chunk."
        if is_late:
            reason = f"The function ran for more than {self._max_runtime_s:g} s, so its process was killed."
        return Outcome(
            None, reason, run_s=time.monotonic() - started_at, exit_status=None if number else exit_code, signal=number
        )

    def give_up(self) -> None:
        """See `Slot.give_up`: the function is interrupted, and after two seconds killed."""
        self._is_given_up = True

    def kill(self) -> None:
        """See `Slot.kill`."""
        self._is_given_up = True
        self._kill()

    def close(self) -> None:
        """See `Slot.close`: an idle process ends when its pipe closes."""
        if self._pipe is not None:
            self._end()

    def _send(self, frame: Work | AttachmentIs) -> None:
        """Send a frame; if nobody reads it any more, that is seen when the answer is due."""
        if self._pipe is not None:
            try:
                self._pipe.send_bytes(encode(frame))
            except OSError:
                return

    def _receive(self, deadline: float | None) -> FromWorker | None:
        """The next frame; None when the process is dead or the deadline is over."""
        if self._pipe is None:
            return None
        while True:
            left_s = _LOOK_S if deadline is None else min(_LOOK_S, max(deadline - time.monotonic(), 0.0))
            if self._poll.poll(left_s * 1000):
                try:
                    frame: FromWorker = decode_of_worker(self._pipe.recv_bytes())
                except (EOFError, OSError):
                    return None
                return frame
            if self._is_given_up or not self._is_alive() or (deadline is not None and time.monotonic() >= deadline):
                return None

    def _is_alive(self) -> bool:
        with _making:
            return self._process is not None and self._process.is_alive()

    def _kill(self) -> None:
        with _making:
            if self._process is not None:
                self._process.kill()

    def _end(self) -> int:
        """Close the pipe, wait until the process is gone, and return its exit code (negative: the signal)."""
        pipe, self._pipe = self._pipe, None
        if pipe is not None:
            pipe.close()
        end_at = time.monotonic() + _END_S
        while self._is_alive():
            if time.monotonic() > end_at:
                self._kill()
            time.sleep(_END_LOOK_S)
        atexit.unregister(self.kill)
        with _making:
            process, self._process = self._process, None
            code = process.exitcode if process is not None else None
            if process is not None:
                process.close()
        return code or 0


def _ended(exit_code: int) -> str:
    if exit_code < 0:
        try:
            return f"was killed by {signal.Signals(-exit_code).name}"
        except ValueError:
            return f"was killed by signal {-exit_code}"
    return f"ended with exit status {exit_code}"


def _exception_of(frame: Interrupted) -> BaseException:
    """What the function raised in the worker, as it is raised here."""
    if frame.kind == "OpsqError":
        return from_code(str(frame.code), frame.message, frame.hint)
    if frame.kind == "KeyboardInterrupt":
        return KeyboardInterrupt()
    return WorkFailed(f"The function raised {frame.kind} in its worker process: {frame.message}")

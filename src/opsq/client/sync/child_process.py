"""A worker process as its consumer sees it: started, sent frames, heard, watched, and ended.

This file must not know what is worked on there. A process is made by `spawn` or by a fork server, never by a fork of
this process. It ends soon after its pipe closes, so a killed consumer leaves none, but for a function in native code
that lets Python hear nothing: only the guard of a program ends that one, and what functions have started.
"""

from __future__ import annotations

import atexit
import multiprocessing
import os
import pickle
import select
import signal
import threading
import time
from collections.abc import Callable
from multiprocessing import resource_tracker
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from multiprocessing.reduction import ForkingPickler
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, Protocol

import msgspec

from opsq.client.core import worker_process
from opsq.client.core.outcome import Outcome, is_awaited
from opsq.client.core.process_memory import LOOK_S as MEMORY_LOOK_S
from opsq.client.core.process_memory import used_bytes
from opsq.client.core.worker_frames import (
    AttachmentIs,
    AttachmentWanted,
    Broken,
    FromWorker,
    Interrupted,
    Ready,
    ToWorker,
    Work,
    decode_of_worker,
    encode,
)
from opsq.errors import Bug, NotFound, UsageError, WorkFailed, from_code
from opsq.units import format_size

if TYPE_CHECKING:
    from opsq.client.sync.chunk import Chunk
    from opsq.wire.messages import SubmissionContent, Welcome

_LOOK_S = 0.25
"""A worker that left a child behind is dead although its pipe stays open, so it is looked at this often."""
END_S = 3.0
"""How long a worker may take to end by itself: longer than it gives its function to clean up."""
_END_LOOK_S = 0.005
_making = threading.Lock()
"""Starting a process also waits for others that have ended, and only one thread may wait for a process."""


class Guard(Protocol):
    """Ends groups of processes when this process is killed and cannot do it itself."""

    def enter(self, group_id: int) -> int:
        """Guard a group, which may not exist yet; returns its place."""

    def leave(self, place: int) -> None:
        """Guard it no longer."""


class NoGuard:
    """Ends nothing."""

    def enter(self, group_id: int) -> int:
        """See `Guard.enter`."""
        return -1

    def leave(self, place: int) -> None:
        """See `Guard.leave`."""


class Program(NamedTuple):
    """A function packed for worker processes, and how they are made.

    Attributes:
        packed: what `worker_process.main` unpacks.
        start_method: "spawn", or a "forkserver" that has the modules already.
        on_aside: called with what the function said aside of a chunk (`Outcome.aside`).
        on_failed: called with each chunk that has failed.
        is_awaited: it is a coroutine function.
        guard: what each process is entered in; unpacking makes it the leader of a group of its own then.
    """

    packed: bytes
    start_method: Literal["spawn", "forkserver"] = "spawn"
    on_aside: Callable[[bytes], object] = bool
    on_failed: Callable[[Chunk], object] = bool
    guard: Guard = NoGuard()
    is_awaited: bool = False


def program_of(f: Callable[[Any], Any]) -> Program:
    """Pack a function by the name under which a new process can import it.

    Raises:
        UsageError: it cannot be imported.
    """
    try:
        return Program(bytes(ForkingPickler.dumps(f)), is_awaited=is_awaited(f))
    except (pickle.PicklingError, AttributeError, TypeError) as error:
        raise UsageError(
            f"{f!r} cannot be called in another process: {error}.",
            hint="Give a function from the top level of a module, or mode='threads'.",
        ) from error


class Limits(NamedTuple):
    """What a chunk may take; one that takes more fails, and its process is killed. None: as much as it likes.

    Attributes:
        max_runtime_s: how long it runs.
        max_memory_bytes: how much memory its process uses, without files that it has mapped and processes it starts.
        is_held: what the end of its process has cut off may go on elsewhere, in a service that was called: the chunk
            stays reserved, and counts against limits, until it would have run too long.
    """

    max_runtime_s: float | None
    max_memory_bytes: int | None
    is_held: bool = False


class ChildProcess:
    """One worker process, replaced when it dies.

    Args:
        describe: what the daemon said of a submission; raises `NotFound` when it was removed.
        welcome: what the daemon said to it; names the store.
        program: the function.
        limits: what a chunk may take.
    """

    is_killable = True

    def __init__(
        self,
        describe: Callable[[int], SubmissionContent],
        welcome: Welcome,
        program: Program,
        limits: Limits,
    ) -> None:
        self._describe = describe
        self._welcome = msgspec.msgpack.encode(welcome)
        self._program = program
        self._limits = limits
        self._context = multiprocessing.get_context(program.start_method)
        self._process: BaseProcess | None = None
        self._place = -1
        self._pipe: Connection | None = None
        self._poll = select.poll()
        self._told_submission_id = -1
        self._is_given_up = False
        self._deadline: float | None = None
        self._excess = ""
        self._measure_at = 0.0

    def prepare(self) -> None:
        """See `Slot.prepare`: starts a process if there is none; if it fails, there is none after it.

        Raises:
            UsageError: the function cannot be imported there.
            WorkFailed: it ended before it was ready.
            OSError: the system has no room for it.
        """
        if self._pipe is not None and not self._poll.poll(0):
            return
        self.close()
        try:
            self._start()
        except BaseException:
            self._end()
            raise

    def _start(self) -> None:
        """Start the process, and wait until it is ready, or time is up. Raises as `prepare`."""
        self._pipe, theirs = self._context.Pipe()
        with theirs:
            self._start_with(theirs)
        atexit.register(self.kill)  # multiprocessing waits at exit for all that it has started
        self._poll = select.poll()
        self._poll.register(self._pipe.fileno(), select.POLLIN)
        self._told_submission_id = -1
        self._deadline = None
        frame = self._receive()
        if isinstance(frame, Ready) or self._is_given_up:
            return
        if isinstance(frame, Broken):
            raise UsageError(f"A worker process cannot load the function. {frame.reason}")
        exit_code = self._end()
        raise WorkFailed(
            f"A worker process ended before it was ready ({ended(exit_code)}); see its stderr.",
            hint="Loading the function, or a module that it uses, has ended it."
            if self._program.start_method == "forkserver"
            else "A program that makes worker processes starts its work under `if __name__ == '__main__':`.",
        )

    def _start_with(self, theirs: Connection) -> None:
        """Start the process with its end of the pipe."""
        process = self._context.Process(  # type: ignore[attr-defined]  # a base class of contexts has none
            target=worker_process.main, args=(theirs, self._program.packed, self._welcome), name="opsq-worker"
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
            self._place = self._program.guard.enter(_pid_of(process))

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

    def _send(self, frame: ToWorker) -> None:
        """Send a frame; if nobody reads it any more, that is seen when the answer is due."""
        if self._pipe is not None:
            try:
                self._pipe.send_bytes(encode(frame))
            except OSError:
                return

    def _receive(self) -> FromWorker | None:
        """The next frame; None when the process is dead, or `_excess` says what it took too much of.

        Raises:
            WorkFailed: it is no frame.
        """
        if self._pipe is None:
            return None
        look_s = _LOOK_S if self._limits.max_memory_bytes is None else MEMORY_LOOK_S
        while True:
            left_s = look_s if self._deadline is None else min(look_s, max(self._deadline - time.monotonic(), 0.0))
            if self._poll.poll(left_s * 1000):
                try:
                    frame: FromWorker = decode_of_worker(self._pipe.recv_bytes())
                except (EOFError, OSError):
                    return None
                except msgspec.DecodeError as error:
                    raise WorkFailed(
                        f"A worker process said what cannot be understood: {error}.",
                        hint="Something that the function uses has written to its pipe.",
                    ) from error
                return frame
            if self._is_given_up or not self._is_alive():
                return None
            self._excess = self._excess_now()
            if self._excess:
                return None

    def _excess_now(self) -> str:
        """What the function takes too much of, as the reason of a failure; empty: nothing."""
        if self._deadline is not None and time.monotonic() >= self._deadline:
            return f"The function ran for more than {self._limits.max_runtime_s:g} s, so its process was killed."
        return self._memory_excess()

    def _memory_excess(self) -> str:
        """The same of memory alone, which is measured only where it was not just now."""
        limit = self._limits.max_memory_bytes
        if limit is None or self._process is None or time.monotonic() < self._measure_at:
            return ""
        used = used_bytes(self._process.pid or 0)
        self._measure_at = time.monotonic() + MEMORY_LOOK_S
        if used <= limit:
            return ""
        return f"The function used more than {format_size(limit)} of memory, so its process was killed."

    def hold(self, began_at: float) -> None:
        """Wait for as long as a chunk is held that the end of the process has cut off; see `Limits`."""
        end_at = began_at + (self._limits.max_runtime_s or 0.0) if self._limits.is_held else began_at
        while (left_s := end_at - time.monotonic()) > 0 and not self._is_given_up:
            time.sleep(min(left_s, _LOOK_S))

    def _work_for(self, chunk: Chunk, lane: int = 0) -> Work | None:
        """What to send for a chunk, with its submission if that is another than before; None: that was removed."""
        try:
            described = self._describe(chunk.submission_id)
        except NotFound:
            return None
        is_known = described.submission_id == self._told_submission_id
        self._told_submission_id = described.submission_id
        return Work(str(chunk.handle), None if is_known else described, lane)

    def _is_alive(self) -> bool:
        with _making:
            return self._process is not None and self._process.is_alive()

    def _kill(self) -> None:
        """Kill the process; if it leads a group, all of that."""
        with _making:
            process = self._process
            if process is None or not process.is_alive():
                return
            try:
                os.killpg(_pid_of(process), signal.SIGKILL)
            except OSError:  # it leads none; then nobody's group has its number
                process.kill()

    def _end(self) -> int:
        """Close the pipe, wait until the process is gone, and return its exit code (negative: the signal)."""
        pipe, self._pipe = self._pipe, None
        if pipe is not None:
            pipe.close()
        end_at = time.monotonic() + END_S
        while self._is_alive():
            if time.monotonic() > end_at:
                self._kill()
            time.sleep(_END_LOOK_S)
        atexit.unregister(self.kill)
        self._program.guard.leave(self._place)
        self._place = -1
        with _making:
            process, self._process = self._process, None
            code = process.exitcode if process is not None else None
            if process is not None:
                process.close()
        return code or 0


def _pid_of(process: BaseProcess) -> int:
    if process.pid is None:
        raise Bug("A worker process is used that was not started.")
    return process.pid


def ended(exit_code: int) -> str:
    """How a process ended, in words."""
    if exit_code < 0:
        try:
            return f"was killed by {signal.Signals(-exit_code).name}"
        except ValueError:
            return f"was killed by signal {-exit_code}"
    return f"ended with exit status {exit_code}"


def cut_off(exit_code: int, reason: str, began_at: float) -> Outcome:
    """What became of a chunk that a process worked on when it ended."""
    number = -exit_code if exit_code < 0 else None
    exit_status = exit_code if number is None else None
    return Outcome(None, reason, run_s=time.monotonic() - began_at, exit_status=exit_status, signal=number)


def attachment_for(wanted: AttachmentWanted, chunk: Chunk | None) -> AttachmentIs:
    """The answer to a worker that works on this chunk.

    Something else may ask: what a coroutine that was cancelled had begun in a thread. There is no attachment, too, if
    the submission was removed, so that nobody wants its result.
    """
    if chunk is None or chunk.submission_id != wanted.submission_id:
        return AttachmentIs(None, is_late=True)
    try:
        return AttachmentIs(chunk.attachment())
    except NotFound:
        return AttachmentIs(None)


def exception_of(frame: Interrupted) -> BaseException:
    """What the function raised in the worker, as it is raised here."""
    if frame.kind == "OpsqError":
        return from_code(str(frame.code), frame.message, frame.hint)
    if frame.kind == "KeyboardInterrupt":
        return KeyboardInterrupt()
    return WorkFailed(f"The function raised {frame.kind} in its worker process: {frame.message}")

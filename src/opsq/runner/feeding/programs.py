"""What runs for a chunk, however it is fed: it is started, polled and ended in one way.

This file must not judge what an end means; the pool does. How each way works is in per_chunk.py, per_record.py and
server_pool.py.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import TYPE_CHECKING, Literal, NamedTuple

import msgspec

from opsq.errors import UsageError, WorkFailed
from opsq.runner.feeding.attachments import Attachments
from opsq.runner.feeding.invocation import Environments
from opsq.runner.feeding.scratch_folder import ScratchFolder
from opsq.runner.process.child import Child, Finished, Said
from opsq.runner.process.pipes import FREE_SHARE, Capture, OutputLimit, Range
from opsq.runner.process.supervisor import Supervisor

if TYPE_CHECKING:
    from opsq.client.sync.chunk import Chunk

__all__ = ["Child", "Feeding", "Finished", "Programs", "Range", "Setup"]


class Feeding(msgspec.Struct, frozen=True):
    """How a program gets its chunk. Default: once per chunk, which is its stdin or the file `{in}`."""

    each: bool = False
    """Once per record, which is an argument."""
    args_count: int | None = None
    """Once per this many records, which are its last arguments."""
    separator: bytes = b"\n"
    """What ends a record."""
    server: Literal["", "frames", "records"] = ""
    """One program per slot, which is fed chunk after chunk."""
    is_clean: bool = False
    """The program gets nothing of our environment but PATH."""
    shares_terminal: bool = False
    """The program uses our terminal; there is one at a time."""

    @property
    def by_records(self) -> bool:
        """Whether records are arguments."""
        return self.each or self.args_count is not None

    def check(self) -> None:
        """Check that only one way is chosen.

        Raises:
            UsageError: it is not.
        """
        wanted = [
            name
            for name, is_set in (("--each", self.each), ("--args", self.args_count), ("--server", self.server))
            if is_set
        ]
        if len(wanted) > 1:
            raise UsageError(f"{wanted[0]} and {wanted[1]} cannot be combined.")
        if self.args_count is not None and self.args_count < 1:
            raise UsageError(f"--args takes a number of records from 1 on, not {self.args_count}.")
        if not self.separator:
            raise UsageError("The delimiter of records is empty.")


class Setup(NamedTuple):
    """What the programs of one consumer have in common, however they are fed."""

    spool_dir: str
    """The folder of long outputs; nothing with a name is left in it."""
    memory_bytes: int
    """The longest output that is kept in memory, for each chunk."""
    consumer: str
    """The name of the consumer."""
    jobs: int
    """How many programs may run at once; a server is started for each."""
    attachment: Callable[[int], bytes | None]
    """Gives the attachment of a submission; None if it has none."""
    completes: Callable[[int], bool] = lambda status: status == 0
    """Whether an exit status is a good end, after which the next record is run."""
    limit: OutputLimit = FREE_SHARE
    """How long the result of a chunk may be."""

    def capture(self) -> Capture:
        """What takes the result of a chunk that is not one child's output."""
        return Capture(self.spool_dir, self.memory_bytes, may_widen=False, limit=self.limit)


class Programs(ABC):
    """The programs of one consumer. One thread makes all calls."""

    def __init__(self, feeding: Feeding, setup: Setup) -> None:
        self._jobs = setup.jobs
        self._scratch = ScratchFolder()
        self._attachments = Attachments(self._scratch, setup.attachment)
        self._environments = Environments(setup.consumer, self._attachments, is_clean=feeding.is_clean)
        self._supervisor = Supervisor(
            setup.spool_dir,
            memory_bytes=setup.memory_bytes,
            limit=setup.limit,
            guarded=self._scratch.guarded,
            shares_terminal=feeding.shares_terminal,
        )
        self._then: dict[Child, str] = {}
        """Where the programs of chunks write follow-ups, by what `start` gave for them."""
        self.shares_terminal = feeding.shares_terminal
        """Whether programs use our terminal, one at a time."""

    @property
    def slots_count(self) -> int:
        """How many chunks may be at work now, including those that are; it may change with each start and end.

        More than the jobs, where a chunk that waits in a pipe saves a round trip: it follows how long chunks take. A
        limit on their run time counts from `start` and asks for no more than the jobs. Fewer, where one chunk fills
        all slots.
        """
        return self._jobs

    def prepare(self, chunk: Chunk) -> None:
        """Have on disk what `start` needs of the daemon for a chunk.

        Raises:
            StorageFull, Refused: it cannot be written.
            Exception: whatever `Setup.attachment` raises.
        """
        self._attachments.path(chunk.submission_id)

    @abstractmethod
    def start(self, chunk: Chunk, stdin: bytes | Range, said: Said | None = None) -> Child:
        """Start work on a chunk, for which `prepare` was called before.

        Args:
            stdin: its content; a range must stay open only until this returns.
            said: is given each piece of what the program says on stderr, as it is read.

        Returns:
            What names this chunk in all other calls, and in `Finished.child` once. What is wrong with the chunk itself,
            such as a record too long for an argument, also comes as a `Finished`, whose error is a `WorkFailed`.

        Raises:
            CommandNotFound, CommandNotExecutable: the command cannot be run; nothing is to be counted for the chunk.
            Refused: no process, descriptor, memory or disk is left for one more at the moment.
            ContentChanged, ContentMissing: the content cannot be read.
            NotFound: the submission was removed.
        """

    def poll(self, timeout_s: float | None = None) -> list[Finished]:
        """Wait until something happens, and move bytes.

        Returns:
            Those that have finished, in that order. May be empty before the time is over: call again. Besides
            `WorkFailed` their error may be any that `start` raises.
        """
        return [self._with_then(finished) for finished in self._poll(timeout_s)]

    def _poll(self, timeout_s: float | None) -> list[Finished]:
        return [self._ended(finished) for finished in self._supervisor.poll(timeout_s)]

    def _then_path(self) -> str:
        """A new path for follow-ups; "" if no folder can be made for it."""
        return self._scratch.name("then") if self._scratch.guarded() else ""

    def _with_then(self, finished: Finished) -> Finished:
        """The end of a chunk with what was written of follow-ups."""
        path = self._then.pop(finished.child, "")
        try:
            then = self._scratch.open(path) if path else None
        except WorkFailed as error:
            return finished if finished.error is not None else finished._replace(error=error)
        return finished if then is None else finished._replace(then=then)

    def _ended(self, finished: Finished) -> Finished:
        return finished

    def watch(self, fd: int, on_readable: Callable[[], object]) -> None:
        """Have `poll` call `on_readable` whenever `fd` can be read or is hung up."""
        self._supervisor.watch(fd, on_readable)

    def unwatch(self, fd: int) -> None:
        """End what `watch` began; before `fd` is closed."""
        self._supervisor.unwatch(fd)

    def terminate(self, child: Child) -> None:
        """Ask the program and its descendants to end (SIGTERM); nothing if it has finished."""
        self._supervisor.terminate(child)

    def kill(self, child: Child) -> None:
        """End the program and its descendants at once (SIGKILL); nothing if it has finished."""
        self._supervisor.kill(child)

    def heed_stops(self, stopped: Callable[[Child, int], object]) -> None:
        """Have `poll` call `stopped` with each process that was stopped by a signal, and that signal."""
        self._supervisor.stopped = stopped

    def suspend(self) -> None:
        """Stop all of them, with their descendants, until `resume`."""
        self._supervisor.suspend()

    def resume(self) -> None:
        """Let them go on."""
        self._supervisor.resume()

    def __len__(self) -> int:
        return len(self._supervisor)

    def close(self, *, at_once: bool = False) -> None:
        """End whatever still runs, with its descendants, and free everything but what was handed out.

        Args:
            at_once: what has nothing to do is not let end by itself either.
        """
        try:
            self._supervisor.close()
        finally:
            self._scratch.close()
            self._supervisor.guard.close()

"""What runs for a chunk, behind one door: whichever way a program is fed, it is started, polled and ended alike.

This file must not judge what an end means; the pool does. How each way works is in whole.py, each.py and servers.py.
"""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Literal, NamedTuple

import msgspec

from opsq.errors import UsageError
from opsq.runner.feeding.attachments import Attachments
from opsq.runner.feeding.invocation import Environments
from opsq.runner.feeding.scratch_folder import Scratch
from opsq.runner.process.child import Child, Finished, Said
from opsq.runner.process.pipes import Range
from opsq.runner.process.supervisor import Children

if TYPE_CHECKING:
    from opsq.client.sync.chunk import Chunk

__all__ = ["Child", "Feeding", "Finished", "Programs", "Range", "make_programs"]


class Feeding(msgspec.Struct, frozen=True):
    """How a program gets its chunk. Default: once per chunk, which is its stdin or the file `{in}`."""

    each: bool = False
    """Once per record, which is an argument."""
    args_count: int | None = None
    """Once per so many records, which are its last arguments."""
    separator: bytes = b"\n"
    """What ends a record."""
    server: Literal["", "frames", "records"] = ""
    """One program per slot, which is fed chunk after chunk."""
    is_clean: bool = False
    """The program gets none of our environment but PATH."""

    @property
    def by_records(self) -> bool:
        """Whether records are arguments."""
        return self.each or self.args_count is not None

    def check(self) -> None:
        """See that it is one way only.

        Raises:
            UsageError: it is not.
        """
        wanted = [
            name
            for name, is_set in (("--each", self.each), ("--args", self.args_count), ("--server", self.server))
            if is_set
        ]
        if len(wanted) > 1:
            raise UsageError(f"{wanted[0]} and {wanted[1]} exclude each other.")
        if self.args_count is not None and self.args_count < 1:
            raise UsageError(f"--args takes a count of records from 1 on, not {self.args_count}.")
        if not self.separator:
            raise UsageError("The delimiter of records is empty.")


class Common(NamedTuple):
    """What all ways need."""

    spool_dir: str
    """Where long outputs lie; nothing with a name is left in it."""
    memory_bytes: int
    """The longest output that is kept in memory, for each chunk."""
    consumer: str
    """The name of the consumer."""
    attachment: Callable[[int], bytes | None]
    """Gives the attachment of a submission."""
    jobs: int
    """How many programs may run at once."""
    completes: Callable[[int], bool]
    """Whether a program that exits with that status has done what was asked."""
    is_clean: bool
    """See `Feeding`."""


class Programs(ABC):
    """The programs of one consumer. One thread makes all calls."""

    def __init__(self, common: Common) -> None:
        self._jobs = common.jobs
        self._scratch = Scratch()
        self._attachments = Attachments(self._scratch, common.attachment)
        self._environments = Environments(common.consumer, self._attachments, is_clean=common.is_clean)
        self._children = Children(common.spool_dir, memory_bytes=common.memory_bytes, guarded=self._scratch.guarded)

    @property
    def slots_count(self) -> int:
        """How many chunks may be at work at present, those included that are; it may change with each start and each end.

        More than the jobs, where a chunk that waits in a pipe saves a round trip: it follows how long chunks take. A limit
        on their run time counts from `start` and asks for no more than the jobs. Fewer, where one chunk fills all slots.
        """
        return self._jobs

    @abstractmethod
    def start(self, chunk: Chunk, stdin: bytes | Range, said: Said | None = None) -> Child:
        """Begin to work on a chunk.

        Args:
            stdin: its content; a range must stay open only until this returns.
            said: is given each piece of what the program says on stderr, as it is read.

        Returns:
            What names this chunk in all other calls, and in `Finished.child` once. What is wrong with the chunk
            itself, such as a record too long for an argument, also comes as a `Finished`, whose error is a `WorkFailed`.

        Raises:
            CommandNotFound, CommandNotExecutable: the command cannot be run; nothing is to be counted for the chunk.
            Refused: no process, descriptor, memory or disk is left for one more at the moment.
            ContentChanged, ContentMissing: the content cannot be read.
            NotFound: the submission was removed.
        """

    def poll(self, timeout_s: float | None = None) -> list[Finished]:
        """Wait until something happens, and move bytes.

        Returns:
            Those that have finished, in that order. May be empty before the time is over: call again. Besides `WorkFailed`
            their error may be any that `start` raises.
        """
        return [self._ended(finished) for finished in self._children.poll(timeout_s)]

    def _ended(self, finished: Finished) -> Finished:
        return finished

    def watch(self, fd: int, on_readable: Callable[[], object]) -> None:
        """Have `poll` call `on_readable` whenever `fd` can be read or is hung up."""
        self._children.watch(fd, on_readable)

    def unwatch(self, fd: int) -> None:
        """End what `watch` began; before `fd` is closed."""
        self._children.unwatch(fd)

    def terminate(self, child: Child) -> None:
        """Ask the program and its descendants to end (SIGTERM); nothing if it has finished."""
        self._children.terminate(child)

    def kill(self, child: Child) -> None:
        """End the program and its descendants at once (SIGKILL); nothing if it has finished."""
        self._children.kill(child)

    def __len__(self) -> int:
        return len(self._children)

    def close(self, *, at_once: bool = False) -> None:
        """End whatever still runs, with its descendants, and free everything but what was handed out.

        Args:
            at_once: what has nothing to do is not let end by itself either.
        """
        try:
            self._children.close()
        finally:
            self._scratch.close()
            self._children.guard.close()


def make_programs(
    command: Sequence[str],
    feeding: Feeding,
    *,
    spool_dir: str | os.PathLike[str],
    memory_bytes: int,
    consumer: str,
    jobs: int,
    attachment: Callable[[int], bytes | None],
    completes: Callable[[int], bool] = lambda status: status == 0,
) -> Programs:
    """Make what runs `command` for chunks in the way that `feeding` says; `Programs` tells the rest.

    Args:
        jobs: how many run at once; a server is started for each.
        completes: whether an exit status is a good end, so that the next record is gone on with.

    Raises:
        UsageError: the command has placeholders that do not go with that way, or ways exclude each other.
    """
    from opsq.runner.feeding.per_chunk import WholeChunks
    from opsq.runner.feeding.per_record import EachRecord
    from opsq.runner.feeding.server_pool import Servers

    feeding.check()
    common = Common(os.fspath(spool_dir), memory_bytes, consumer, attachment, jobs, completes, feeding.is_clean)
    if feeding.by_records:
        return EachRecord(command, feeding, common)
    if feeding.server:
        return Servers(command, feeding, common)
    return WholeChunks(command, common)

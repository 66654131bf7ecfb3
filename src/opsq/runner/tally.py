"""What became of the chunks that one consumer was given: counted, and in the end asked for what only the daemon knows.

This file gives no verdicts; they are entered here when they are given.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, NamedTuple

from opsq.ids import BLOCK_CHUNKS, mask_indexes
from opsq.wire.messages import Dead, DeadChunks

if TYPE_CHECKING:
    from opsq.client.sync.chunk import Chunk
    from opsq.client.sync.connection import Connection


class Outcome(NamedTuple):
    """What became of the chunks, all in all."""

    completed_count: int
    failed_count: int
    """Attempts that failed."""
    dead_count: int
    """Chunks that failed or were lost here and are dead."""
    released_count: int
    """Chunks given back, no attempt counted."""
    signal: int = 0
    """The signal that ended everything at once; 0: it ended as asked."""
    is_taken: bool = False
    """Nothing was done: another consumer has the name that was claimed."""
    child_status: int = 0
    """The first exit status that was not 0: 128 and the number after a signal, 1 if no program was run."""


class Tally:
    """Counts verdicts."""

    def __init__(self) -> None:
        self.completed_count = 0
        self.failed_count = 0
        self.released_count = 0
        self.operations_count = 0
        """Records of completed chunks, where they are counted."""
        self._child_status = 0
        self._failed: dict[int, dict[int, int]] = {}
        """By submission and block, the mask of the chunks that failed or were lost: a chunk of its own costs a bit."""

    def completed(self, status: int) -> None:
        """Enter a chunk that is done, and the exit status of its program."""
        self.completed_count += 1
        self.ended_with(status)

    def ended_with(self, status: int) -> None:
        """Enter the exit status of a program."""
        self._child_status = self._child_status or status

    def outcome(self, dead_count: int, signal: int) -> Outcome:
        """All in all."""
        return Outcome(
            self.completed_count,
            self.failed_count,
            dead_count,
            self.released_count,
            signal,
            child_status=self._child_status,
        )

    def failed(self, chunk: Chunk) -> None:
        """Enter a failed attempt."""
        self.failed_count += 1
        block, bit = divmod(chunk.index, BLOCK_CHUNKS)
        self._enter(chunk.submission_id, block, 1 << bit)

    def lost(self, masks: Mapping[tuple[int, int], int]) -> None:
        """Enter chunks whose reservation ended by itself, as masks by submission and block."""
        for (submission_id, block), mask in masks.items():
            self._enter(submission_id, block, mask)

    def _enter(self, submission_id: int, block: int, mask: int) -> None:
        blocks = self._failed.setdefault(submission_id, {})
        blocks[block] = blocks.get(block, 0) | mask

    @property
    def has_failures(self) -> bool:
        """Whether any attempt failed or was lost, so that a chunk may be dead."""
        return bool(self._failed)

    def dead_count(self, daemon: Connection) -> int:
        """How many of the chunks that failed or were lost here are dead.

        Cost: a question per submission and 1000 dead chunks of it.
        """
        count = 0
        for submission_id, blocks in self._failed.items():
            failed = {index for block, mask in blocks.items() for index in mask_indexes(block, mask)}
            after: tuple[int, int] | None = (0, -1)
            while after is not None:
                reply = daemon.call(Dead(daemon.next_id(), submission_id, after), DeadChunks)
                count += sum(chunk.index in failed for chunk in reply.chunks)
                after = reply.next_after
        return count

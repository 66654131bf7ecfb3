"""What many chunks that were reserved at once are to blocking and asyncio programs alike: their blocks, their verdict.

This file gives no verdicts; what may wait differs in sync/chunk.py and aio/chunk.py.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from opsq.client.core.held_block import HeldBlock, Result
from opsq.errors import UsageError
from opsq.ids import SubmissionId
from opsq.units import counted


class BlockChunks(NamedTuple):
    """Some chunks of a block in a reservation."""

    submission_id: SubmissionId
    block: int
    mask: int


class ReservationBase:
    """Many chunks at once, in blocks and masks.

    Args:
        consumer: reads content and takes the verdict.
        blocks: what was reserved.
        is_empty: nothing can come any more without a new submission, or the consumer was stopped.
    """

    __slots__ = ("_consumer", "_has_verdict", "chunks_count", "held_blocks", "is_empty")

    def __init__(self, consumer: object, blocks: list[HeldBlock], *, is_empty: bool = False) -> None:
        self._consumer = consumer
        self._has_verdict = False
        self.held_blocks = blocks
        self.chunks_count = sum([block.granted.bit_count() for block in blocks])
        self.is_empty = is_empty

    @property
    def blocks(self) -> list[BlockChunks]:
        """What was reserved, in the order of the strategy."""
        return [BlockChunks(block.submission_id, block.number, block.granted) for block in self.held_blocks]

    def _take_completion(self, results: Sequence[Result] | None) -> None:
        if results is not None and len(results) != self.chunks_count:
            raise UsageError(f"Got {counted(len(results), 'result')} for {counted(self.chunks_count, 'chunk')}.")
        self._take_verdict()

    def _take_verdict(self) -> None:
        if self._has_verdict:
            raise UsageError("This reservation already has a verdict.")
        self._has_verdict = True

    def _note_verdict(self) -> None:
        """One that raised before it was entered, for a mistake in it, is none."""
        self._has_verdict = not any(block.open for block in self.held_blocks)

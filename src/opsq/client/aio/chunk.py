"""What an asyncio consumer works on: the chunk of sync/chunk.py, awaited.

It only carries what was granted and passes the verdict on.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable, Sequence
from typing import TYPE_CHECKING

from opsq import traces
from opsq.client.aio.verdict_sender import AsyncVerdictSender
from opsq.client.core.arguments import delay
from opsq.client.core.chunk_base import ChunkBase
from opsq.client.core.held_block import HeldBlock, Result
from opsq.client.core.reservation_base import ReservationBase
from opsq.client.core.verdict_batch import FailedRun
from opsq.wire.messages import NewSubmission, SubmissionContent

if TYPE_CHECKING:
    from opsq.client.core.follow_ups import Follower
    from opsq.content.manifest import InputRange


class AsyncChunk(ChunkBase):
    """One reserved chunk. Give it one verdict: `await` one of `complete`, `fail`, `release`."""

    __slots__ = ("described",)

    _consumer: AsyncVerdictSender

    def __init__(self, consumer: AsyncVerdictSender, block: HeldBlock, bit: int, described: SubmissionContent) -> None:
        self.described = described
        super().__init__(consumer, block, bit)

    def _carried(self) -> traces.TraceContext | None:
        return traces.carried_by(self.described.content)

    @property
    def metadata(self) -> dict[str, int | str]:
        """The strategic metadata of its submission."""
        return self.described.metadata

    @property
    def chunks_count(self) -> int:
        """How many chunks its submission has."""
        return self.described.chunks_count

    async def data(self) -> bytes:
        """Its bytes, read again on each call, in a thread if they are not in the message itself; see `Chunk.data`."""
        return await self._consumer.read(self.described, self.index)

    async def input(self) -> InputRange | None:
        """Its input; see `Chunk.input`."""
        return await self._consumer.look(self.described, lambda reader: reader.input_of(self.index))

    async def file_path(self) -> bytes | None:
        """The file that it is; see `Chunk.file_path`."""
        return await self._consumer.look(self.described, lambda reader: reader.whole_file(self.index))

    async def header(self) -> bytes:
        """What its `data` begins with and is no record of it; see `Chunk.header`."""
        return await self._consumer.look(self.described, lambda reader: reader.header)

    async def attachment(self) -> bytes | None:
        """The attachment of its submission; see `Chunk.attachment`."""
        return await self._consumer.attachment(self.described)

    async def prepare(self, then: Iterable[Follower]) -> list[NewSubmission]:
        """Write the content of follow-ups, in a thread; see `Chunk.prepare`."""
        return await self._consumer.prepare(then, self.trace_context)

    async def complete(
        self,
        result: Result = b"",
        *,
        then: Iterable[Follower] = (),
        run_s: float | None = None,
        exit_status: int | None = None,
    ) -> None:
        """Report it as done; see `Chunk.complete`."""
        followers = await self.prepare(then) if then else []
        run_s = self._run_s(run_s)
        self._take_verdict()
        try:
            await self._consumer.complete_chunk(self._block, self._bit, result, run_s, exit_status, followers)
        finally:
            self._note_verdict("completed", result=result)

    async def fail(
        self,
        reason: str = "",
        *,
        delay_s: float | None = None,
        retry: bool = True,
        run_s: float | None = None,
        exit_status: int | None = None,
        signal: int | None = None,
    ) -> None:
        """Report that the attempt failed; see `Chunk.fail`."""
        failed = FailedRun(reason, exit_status, signal, self._run_s(run_s), delay("delay_s", delay_s), not retry)
        self._take_verdict()
        try:
            await self._consumer.fail_blocks([self._block], failed, 1 << self._bit)
        finally:
            self._note_verdict("failed", reason=reason)

    async def release(self) -> None:
        """Give it back; see `Chunk.release`."""
        self._take_verdict()
        self._end_span("released")
        await self._consumer.release_blocks([self._block], 1 << self._bit)

    async def share(self) -> None:
        """Let others have it too: no attempt is counted, and it can be completed as long as none of them has.

        Raises:
            ReservationLost: it is not held any more.
        """
        await self._consumer.share_chunk(self._block, self._bit)

    async def extend(self, lease_s: float | None = None) -> None:
        """Move its deadline; see `Chunk.extend`."""
        await self._consumer.extend(self._block, self._bit, lease_s)


class AsyncReservation(ReservationBase):
    """Many chunks at once; see `Reservation`. Give it one verdict as a whole: `await` it.

    Attributes:
        chunks_count: how many chunks; 0: nothing was free in time.
        is_empty: nothing can come any more without a new submission, or the consumer was stopped.
    """

    __slots__ = ()

    _consumer: AsyncVerdictSender

    async def read(self) -> AsyncIterator[bytes]:
        """The bytes of the chunks, read block by block in a thread; see `Reservation.read`."""
        for block in self.held_blocks:
            described = await self._consumer.describe(block.submission_id)
            for data in await self._consumer.look(
                described,
                lambda reader, block=block: list(reader.read_block(block.number, block.granted)),  # type: ignore[misc]
            ):
                yield data

    async def complete(self, results: Sequence[Result] | None = None, *, run_s: float = 0.0) -> None:
        """Report all as done; see `Reservation.complete`."""
        self._take_completion(results)
        try:
            await self._consumer.complete_blocks(self.held_blocks, results, run_s)
        finally:
            self._note_verdict()

    async def fail(self, reason: str = "", *, delay_s: float | None = None, retry: bool = True) -> None:
        """Report that all attempts failed; see `Chunk.fail`."""
        failed = FailedRun(reason, delay_s=delay("delay_s", delay_s), is_final=not retry)
        self._take_verdict()
        try:
            await self._consumer.fail_blocks(self.held_blocks, failed)
        finally:
            self._note_verdict()

    async def release(self) -> None:
        """Give all back; see `Reservation.release`."""
        self._take_verdict()
        await self._consumer.release_blocks(self.held_blocks)

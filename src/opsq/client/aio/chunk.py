"""What an asyncio consumer works on: the chunk of chunk.py, awaited.

It only carries what was granted and passes the verdict on.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from opsq.client.core.held_block import Lot, Result
from opsq.errors import UsageError
from opsq.ids import Handle, SubmissionId
from opsq.wire.messages import SubmissionContent

if TYPE_CHECKING:
    from opsq.client.aio.consumer import AsyncConsumer


class AsyncChunk:
    """One reserved chunk. Give it one verdict: `await` one of `complete`, `fail`, `release`."""

    __slots__ = ("_bit", "_consumer", "_has_verdict", "_lot", "_started_at", "described")

    def __init__(self, consumer: AsyncConsumer, lot: Lot, bit: int, described: SubmissionContent) -> None:
        self._consumer = consumer
        self._lot = lot
        self._bit = bit
        self._has_verdict = False
        self._started_at = time.monotonic()
        self.described = described

    def __repr__(self) -> str:
        return f"<AsyncChunk {self.submission_id}/{self.index}>"

    @property
    def submission_id(self) -> SubmissionId:
        """The submission that it belongs to."""
        return self._lot.submission_id

    @property
    def index(self) -> int:
        """Its place in the submission, from 0."""
        return self._lot.block * 64 + self._bit

    @property
    def attempt(self) -> int:
        """How many attempts failed or were lost before."""
        return self._lot.token.attempt

    @property
    def handle(self) -> Handle:
        """What names it under this reservation, for any other process."""
        return self._lot.handle(self._bit)

    @property
    def metadata(self) -> dict[str, int | str]:
        """The strategic metadata of its submission."""
        return self.described.metadata

    @property
    def has_verdict(self) -> bool:
        """Whether it was completed, failed or released."""
        return self._has_verdict

    @property
    def is_revoked(self) -> bool:
        """Whether the daemon took it away; see `Chunk.is_revoked`."""
        return self._lot.is_revoked(self._bit)

    @property
    def chunks_count(self) -> int:
        """How many chunks its submission has."""
        return self.described.chunks_count

    async def data(self) -> bytes:
        """Its bytes, read anew each time, in a thread if they are not in the message itself."""
        return await self._consumer.read(self.described, self.index)

    async def file_path(self) -> bytes | None:
        """The file that it is; see `Chunk.file_path`."""
        return await self._consumer.look(self.described, lambda reader: reader.whole_file(self.index))

    async def header(self) -> bytes:
        """What its `data` begins with and is no record of it; see `Chunk.header`."""
        return await self._consumer.look(self.described, lambda reader: reader.header)

    async def attachment(self) -> bytes | None:
        """The attachment of its submission; None if it has none."""
        return await self._consumer.attachment(self.described)

    async def complete(
        self, result: Result = b"", *, run_s: float | None = None, exit_status: int | None = None
    ) -> None:
        """Report it as done; see `Chunk.complete`."""
        self._close()
        await self._consumer.complete_chunk(
            self.described, self._lot, self._bit, result, self._ran_s(run_s), exit_status
        )

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
        self._close()
        await self._consumer.fail_chunk(
            self._lot, self._bit, reason, delay_s, not retry, self._ran_s(run_s), exit_status, signal
        )

    async def release(self) -> None:
        """Give it back; no attempt is counted."""
        self._close()
        await self._consumer.release_chunk(self._lot, self._bit)

    async def extend(self, lease_s: float | None = None) -> None:
        """Move its deadline; see `Chunk.extend`."""
        await self._consumer.extend(self._lot, self._bit, lease_s)

    def _ran_s(self, run_s: float | None) -> float:
        return time.monotonic() - self._started_at if run_s is None else run_s

    def _close(self) -> None:
        if self._has_verdict:
            raise UsageError(f"Chunk {self.submission_id}/{self.index} has its verdict already.")
        self._has_verdict = True

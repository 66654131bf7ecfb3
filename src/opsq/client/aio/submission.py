"""A submission as an asyncio producer sees it: sync/submission.py, awaited.

This file only asks and reads; whatever changes is decided by the daemon.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from typing import TYPE_CHECKING, Protocol

from opsq.client.core.arguments import seconds
from opsq.client.core.async_link import AsyncLink
from opsq.client.core.content_access import Contents
from opsq.client.core.held_block import Result
from opsq.client.core.result_pages import ResultCursor, bad_result_logger, only_described, request_parts
from opsq.errors import TimedOut, WorkFailed
from opsq.ids import SubmissionId
from opsq.wire.messages import (
    Attachment,
    Cancel,
    Changed,
    Dead,
    DeadChunk,
    DeadChunks,
    DependencyEdge,
    Describe,
    Described,
    Drop,
    GetAttachment,
    Remove,
    Requeue,
    ResultRows,
    Show,
    Shown,
    SubmissionState,
    Wait,
)

if TYPE_CHECKING:
    from opsq.content.manifest import InputRange


class Owner(Protocol):
    """What a submission needs of its queue, which need not be open yet."""

    link: AsyncLink
    contents: Contents


class AsyncSubmission:
    """A handle to one submission; see `Submission`."""

    __slots__ = ("_link", "_queue", "id", "is_new")

    def __init__(self, queue: Owner, submission_id: int, *, is_new: bool = False) -> None:
        self._queue = queue
        self._link = queue.link
        self.id = SubmissionId(submission_id)
        self.is_new = is_new

    def __repr__(self) -> str:
        return f"<AsyncSubmission {self.id}>"

    async def state(self) -> SubmissionState:
        """Its state and counts now; see `Submission.state`."""
        return (await self._link.call(Show(self._link.next_id(), self.id), Shown)).submission

    async def dependencies(self) -> list[DependencyEdge]:
        """What it waits or has waited for, what those do, and then who waits for it: the nearest, of each at most 100.

        Raises:
            NotFound: there is no such submission.
        """
        return (await self._link.call(Show(self._link.next_id(), self.id), Shown)).dependencies

    async def wait(self, timeout_s: float | None = None) -> SubmissionState:
        """Wait until it is final; see `Submission.wait`."""
        timeout_s = seconds("timeout_s", timeout_s)
        try:
            return (await self._link.call(Wait(self._link.next_id(), self.id), Shown, timeout_s)).submission
        except TimedOut as error:
            raise TimedOut(f"Submission {self.id} is not finished after {timeout_s:g} s.") from error

    async def results(self, *, skip_dead: bool = False, skip_bad: bool = False) -> AsyncIterator[bytes]:
        """The results in chunk order; see `Submission.results`."""
        async for result in self._results(is_following=False, skip_dead=skip_dead, skip_bad=skip_bad):
            yield result

    async def follow(self, *, skip_dead: bool = False, skip_bad: bool = False) -> AsyncIterator[bytes]:
        """The results in chunk order as they come; see `Submission.follow`."""
        async for result in self._results(is_following=True, skip_dead=skip_dead, skip_bad=skip_bad):
            yield result

    async def result_places(self, *, is_following: bool = False, skip_dead: bool = False) -> AsyncIterator[Result]:
        """As `results`, but a large result is only named; see `Submission.result_places`."""
        async for result in self._pages(ResultCursor(self.id, is_following=is_following, skip_dead=skip_dead)):
            yield result

    async def dead(self) -> AsyncIterator[DeadChunk]:
        """Its dead chunks, ascending; see `Submission.dead`."""
        after: tuple[int, int] | None = (0, -1)
        while after is not None:
            page = await self._link.call(Dead(self._link.next_id(), self.id, after), DeadChunks)
            for chunk in page.chunks:
                yield chunk
            after = page.next_after

    async def first_dead(self, count: int) -> list[tuple[DeadChunk, InputRange | None]]:
        """The first of its dead chunks, with their inputs; see `Submission.first_dead`."""
        chunks = (await self._link.call(Dead(self._link.next_id(), self.id, (0, -1), count), DeadChunks)).chunks
        described = (await self._link.call(Describe(self._link.next_id(), [self.id]), Described)).submissions
        content = described[0].content if described else b""
        return [(chunk, await self._known_input(content, chunk.index)) for chunk in chunks]

    async def input(self, index: int) -> InputRange | None:
        """The input of a chunk of it; see `Submission.input`."""
        reply = await self._link.call(Describe(self._link.next_id(), [self.id]), Described)
        described = only_described(reply, self.id)
        return await asyncio.to_thread(lambda: self._queue.contents.reader(described).input_of(index))

    async def attachment(self) -> bytes | None:
        """Its attachment; see `Submission.attachment`."""
        return (await self._link.call(GetAttachment(self._link.next_id(), self.id), Attachment)).attachment

    async def cancel(self, reason: str = "") -> bool:
        """Have no more of it worked on; see `Submission.cancel`."""
        return bool(await self._count(Cancel(self._link.next_id(), self.id, reason)))

    async def requeue(self, indexes: Sequence[int] | None = None) -> int:
        """Give dead chunks new attempts; see `Submission.requeue`."""
        parts = request_parts(indexes)
        return sum([await self._count(Requeue(self._link.next_id(), self.id, part)) for part in parts])

    async def drop(self, indexes: Sequence[int] | None = None) -> int:
        """Give up on dead chunks; see `Submission.drop`."""
        parts = request_parts(indexes)
        return sum([await self._count(Drop(self._link.next_id(), self.id, part)) for part in parts])

    async def remove(self) -> None:
        """Forget it, with its results and content; see `Submission.remove`."""
        await self._count(Remove(self._link.next_id(), self.id))

    async def _count(self, request: Cancel | Requeue | Drop | Remove) -> int:
        return (await self._link.call(request, Changed)).count

    async def _results(self, *, is_following: bool, skip_dead: bool, skip_bad: bool) -> AsyncIterator[bytes]:
        read = self._queue.contents.read_result
        on_bad = bad_result_logger(self.id) if skip_bad else None
        cursor = ResultCursor(self.id, is_following=is_following, skip_dead=skip_dead, on_bad=on_bad)
        async for result in self._pages(cursor):
            found = result if isinstance(result, bytes) else await asyncio.to_thread(cursor.read, read, result)
            if found is not None:
                yield found

    async def _pages(self, cursor: ResultCursor) -> AsyncIterator[Result]:
        while not cursor.is_done:
            page = await self._link.call(cursor.request(self._link.next_id()), ResultRows)
            try:
                for result in cursor.take(page):
                    yield result
            except WorkFailed:
                raise cursor.lacking(await self._known_input(cursor.content, cursor.index)) from None

    async def _known_input(self, content: bytes, index: int) -> InputRange | None:
        return await asyncio.to_thread(self._queue.contents.known_input, content, index)

"""A queue for asyncio programs: the names of the blocking client, awaited or iterated by `async for`.

This file puts link, producer and consumers together; it needs no particular event loop. Content is written and read in
threads.
"""

from __future__ import annotations

import asyncio
import os
import socket
import time
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Self

from opsq.client.aio.chunk import AsyncChunk
from opsq.client.aio.consumer import AsyncConsumer
from opsq.client.aio.link import AsyncLink
from opsq.client.core import new_submission
from opsq.client.core.content_access import Contents
from opsq.client.core.held_block import Result
from opsq.client.core.result_pages import ResultCursor
from opsq.client.core.rules import AsyncRuling
from opsq.client.sync.connection import Address
from opsq.client.sync.queue import find_daemon
from opsq.client.sync.result_stream import CLOSED_REASON, NAMED_DEAD_COUNT, check_on_close, chunks_of, failure, formats
from opsq.client.sync.submission import request_parts
from opsq.errors import Conflict, OpsqError, TimedOut, Unreachable, WorkFailed
from opsq.ids import SubmissionId, parse_submission_id
from opsq.wire.messages import (
    Attachment,
    Cancel,
    Capacity,
    Changed,
    CheckCapacity,
    DaemonState,
    Dead,
    DeadChunk,
    DeadChunks,
    Describe,
    Described,
    Drop,
    Find,
    Found,
    GetAttachment,
    List,
    Listed,
    NewSubmission,
    Remove,
    Requeue,
    ResultRows,
    Show,
    Shown,
    Status,
    SubmissionState,
    Submit,
    Submitted,
    Wait,
    Withdraw,
)

if TYPE_CHECKING:
    from opsq.client.sync.result_stream import OnClose
    from opsq.serialisation import Serialisation


class AsyncSubmission:
    """A handle to one submission; see `Submission`."""

    __slots__ = ("_queue", "id", "is_new")

    def __init__(self, queue: AsyncQueue, submission_id: int, *, is_new: bool = False) -> None:
        self._queue = queue
        self.id = SubmissionId(submission_id)
        self.is_new = is_new

    def __repr__(self) -> str:
        return f"<AsyncSubmission {self.id}>"

    async def state(self) -> SubmissionState:
        """Its state and counts now."""
        link = self._queue.link
        return (await link.call(Show(link.next_id(), self.id), Shown)).submission

    async def wait(self, timeout_s: float | None = None) -> SubmissionState:
        """Wait until it is final; see `Submission.wait`."""
        link = self._queue.link
        try:
            return (await link.call(Wait(link.next_id(), self.id), Shown, timeout_s)).submission
        except TimedOut as error:
            raise TimedOut(f"Submission {self.id} is not finished after {timeout_s:g} s.") from error

    async def results(self, *, skip_dead: bool = False) -> AsyncIterator[bytes]:
        """The results in chunk order; see `Submission.results`."""
        async for result in self._results(is_following=False, skip_dead=skip_dead):
            yield result

    async def follow(self, *, skip_dead: bool = False) -> AsyncIterator[bytes]:
        """The results in chunk order as they come; see `Submission.follow`."""
        async for result in self._results(is_following=True, skip_dead=skip_dead):
            yield result

    async def result_places(self, *, is_following: bool = False, skip_dead: bool = False) -> AsyncIterator[Result]:
        """As `results`, but a large result is only named; see `Submission.result_places`."""
        async for _, result in self._pages(ResultCursor(self.id, is_following=is_following, skip_dead=skip_dead)):
            yield result

    async def dead(self) -> AsyncIterator[DeadChunk]:
        """Its dead chunks, ascending."""
        link = self._queue.link
        after: tuple[int, int] | None = (0, -1)
        while after is not None:
            page = await link.call(Dead(link.next_id(), self.id, after), DeadChunks)
            for chunk in page.chunks:
                yield chunk
            after = page.next_after

    async def first_dead(self, count: int) -> list[DeadChunk]:
        """The first of its dead chunks."""
        link = self._queue.link
        return (await link.call(Dead(link.next_id(), self.id, (0, -1), count), DeadChunks)).chunks

    async def attachment(self) -> bytes | None:
        """Its attachment; None if it has none."""
        link = self._queue.link
        return (await link.call(GetAttachment(link.next_id(), self.id), Attachment)).attachment

    async def cancel(self, reason: str = "") -> bool:
        """Have no more of it worked on; see `Submission.cancel`."""
        link = self._queue.link
        return bool((await link.call(Cancel(link.next_id(), self.id, reason), Changed)).count)

    async def requeue(self, indexes: Sequence[int] | None = None) -> int:
        """Give dead chunks new attempts; see `Submission.requeue`."""
        link = self._queue.link
        return sum(
            [
                (await link.call(Requeue(link.next_id(), self.id, part), Changed)).count
                for part in request_parts(indexes)
            ]
        )

    async def drop(self, indexes: Sequence[int] | None = None) -> int:
        """Give dead chunks up; see `Submission.drop`."""
        link = self._queue.link
        return sum(
            [(await link.call(Drop(link.next_id(), self.id, part), Changed)).count for part in request_parts(indexes)]
        )

    async def remove(self) -> None:
        """Forget it, with its results and content; see `Submission.remove`."""
        link = self._queue.link
        await link.call(Remove(link.next_id(), self.id), Changed)

    async def _results(self, *, is_following: bool, skip_dead: bool) -> AsyncIterator[bytes]:
        contents = self._queue.contents
        async for content, result in self._pages(ResultCursor(self.id, is_following=is_following, skip_dead=skip_dead)):
            yield (
                await asyncio.to_thread(contents.read_result, content, result) if isinstance(result, tuple) else result
            )

    async def _pages(self, cursor: ResultCursor) -> AsyncIterator[tuple[bytes, Result]]:
        link = self._queue.link
        while not cursor.is_done:
            page = await link.call(cursor.request(link.next_id()), ResultRows)
            for result in cursor.take(page):
                yield cursor.content, result


class AsyncQueue(AsyncRuling):
    """A queue, reached over a socket from one event loop; made by `connect_async`. Use it in an `async with` block."""

    contents: Contents

    def __init__(self, address: Address, *, name: str, token: str, reconnect_s: float | None) -> None:
        self._address = address
        self._name = name
        self._token = token
        self.link = self._make_link(reconnect_s=reconnect_s)

    async def __aenter__(self) -> Self:
        await self.link.open()
        self.contents = Contents(self.link.welcome)
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self.close()

    async def submit(self, chunks: Iterable[bytes], **options: Any) -> AsyncSubmission:
        """Hand over one submission; the arguments are those of `Producer.submit`."""
        wait_for_room: new_submission.RoomWait = options.get("wait_for_room", False)
        began = time.monotonic()
        prepared = await self.prepare(chunks, **options)
        return (await self._hand_over([prepared], new_submission.wait_s_of(wait_for_room, began)))[0]

    async def run(
        self,
        items: Iterable[Any],
        *,
        serialisation: Serialisation | str | None = None,
        result_serialisation: Serialisation | str | None = None,
        operations_per_chunk: int = 1000,
        skip_dead: bool = False,
        on_close: OnClose = "leave",
        **options: Any,
    ) -> AsyncIterator[Any]:
        """Hand over `items`, and iterate over the results in order as they come; see `Producer.run`.

        Nothing is handed over before the first result is asked for. `items` is read in a thread.
        """
        check_on_close(on_close)
        if skip_dead:
            options.setdefault("on_dead", "keep")
        encoding, decode = formats(serialisation, result_serialisation)
        submission = await self.submit(chunks_of(items, encoding, operations_per_chunk), **options)
        try:
            async for result in submission.follow(skip_dead=skip_dead):
                for item in [result] if decode is None else decode(result):
                    yield item
        except WorkFailed as error:
            dead = await submission.first_dead(NAMED_DEAD_COUNT)
            raise failure(await submission.state(), dead, error) from error
        except GeneratorExit:
            if on_close == "cancel":
                await submission.cancel(CLOSED_REASON)
            raise

    async def prepare(
        self, chunks: Iterable[bytes], *, wait_for_room: new_submission.RoomWait = False, **options: Any
    ) -> NewSubmission:
        """Write the content of a submission, in a thread; see `Producer.prepare`."""
        key = new_submission.new_request_key()
        new_submission.new_submission(key, b"", 0, **options)
        size = new_submission.known_size(chunks)
        if size is not None and options.get("idempotency_key") is None:
            wait_s = new_submission.wait_s_of(wait_for_room)
            await self.link.call(CheckCapacity(self.link.next_id(), *size, wait_s, options.get("unique_key")), Capacity)
        content = await asyncio.to_thread(new_submission.write_content, chunks, key, self.contents, self.link.welcome)
        return self.describe(key, content, **options)

    def describe(self, request_key: bytes, content: Any, **options: Any) -> NewSubmission:
        """What to hand over for content that is written already; see `Producer.describe`."""
        from opsq.content.manifest import encode

        return new_submission.new_submission(request_key, encode(content), content.chunks_count, **options)

    async def submit_many(
        self, submissions: Sequence[NewSubmission], *, wait_for_room: new_submission.RoomWait = False
    ) -> list[AsyncSubmission]:
        """Hand over prepared submissions in one transaction; see `Producer.submit_many`."""
        return await self._hand_over(submissions, new_submission.wait_s_of(wait_for_room))

    async def _hand_over(self, submissions: Sequence[NewSubmission], wait_s: float | None) -> list[AsyncSubmission]:
        if not submissions:
            return []
        new_submission.check_count(submissions)
        try:
            reply = await self.link.call(Submit(self.link.next_id(), list(submissions), wait_s), Submitted)
        except (Unreachable, Conflict):
            raise  # as in Producer
        except OpsqError:
            await asyncio.to_thread(new_submission.delete_content, submissions, self.contents)
            raise
        old = new_submission.made_before(submissions, reply.created)
        if old:
            described = await self.link.call(Describe(self.link.next_id(), sorted(set(old.values()))), Described)
            unnamed = new_submission.unnamed(submissions, old, described.submissions)
            await asyncio.to_thread(new_submission.delete_content, unnamed, self.contents)
        return [AsyncSubmission(self, made.submission_id, is_new=made.is_new) for made in reply.created]

    async def find(self, idempotency_key: str) -> AsyncSubmission | None:
        """The submission that this idempotency key has made; None if there is none (any more)."""
        return self._found(await self.link.call(Find(self.link.next_id(), None, idempotency_key), Found))

    async def find_request(self, request_key: bytes) -> AsyncSubmission | None:
        """The submission that a hand-over under this request key has made; None if there is none (any more)."""
        return self._found(await self.link.call(Find(self.link.next_id(), request_key), Found))

    async def withdraw(self, request_key: bytes) -> AsyncSubmission | None:
        """Take back a hand-over of which it is not known whether it arrived; see `Producer.withdraw`."""
        return self._found(await self.link.call(Withdraw(self.link.next_id(), request_key), Found))

    def _found(self, reply: Found) -> AsyncSubmission | None:
        return None if reply.submission_id is None else AsyncSubmission(self, reply.submission_id)

    def submission(self, submission_id: int | str) -> AsyncSubmission:
        """The handle of a submission by its id; nothing is asked yet."""
        return AsyncSubmission(
            self, submission_id if isinstance(submission_id, int) else parse_submission_id(submission_id)
        )

    async def submissions(
        self, *, states: Iterable[str] = (), metadata: Mapping[str, int | str] | None = None
    ) -> AsyncIterator[SubmissionState]:
        """All submissions for which all conditions hold, newest first."""
        before: int | None = None
        while True:
            page = await self.link.call(List(self.link.next_id(), list(states), dict(metadata or {}), before), Listed)
            for state in page.submissions:
                yield state
            if page.next_before is None:
                return
            before = page.next_before

    async def consume(
        self,
        strategy: object = "Random",
        *,
        until_empty: bool = True,
        until_idle: bool = False,
        overlapping: bool = False,
        **options: Any,
    ) -> AsyncIterator[AsyncChunk]:
        """Work through chunks, one by one: `async for chunk in queue.consume(): await chunk.complete(...)`.

        The arguments are those of `Queue.consume`. To leave the loop early, use `consumer` in an `async with` block: an
        asynchronous iterator that is left is closed only some time later.
        """
        async with self.consumer(strategy, **options) as consumer:
            async for chunk in consumer.chunks(until_empty=until_empty, until_idle=until_idle, overlapping=overlapping):
                yield chunk

    def consumer(self, strategy: object = "Random", **options: Any) -> AsyncConsumer:
        """A consumer with a connection of its own; open it by `async with`. The arguments are those of `Consumer`."""
        return AsyncConsumer(self._make_link, strategy, **options)

    async def status(self, by: str | None = None) -> DaemonState:
        """The state of the daemon; see `Queue.status`."""
        return await self.link.call(Status(self.link.next_id(), by), DaemonState)

    async def close(self) -> None:
        """End the connection."""
        await self.link.close()
        if hasattr(self, "contents"):
            self.contents.close()

    def _make_link(self, **options: Any) -> AsyncLink:
        return AsyncLink(self._address, name=self._name, token=self._token, **options)


def connect_async(
    address: str | os.PathLike[str] | tuple[str, int] | None = None,
    *,
    state_dir: str | os.PathLike[str] | None = None,
    token: str | None = None,
    name: str = "",
    reconnect_s: float | None = 30.0,
) -> AsyncQueue:
    """Connect to a daemon: `async with opsq.connect_async() as queue`. The arguments are those of `connect`.

    Raises:
        UsageError: a setting or the address cannot be understood.
    """
    target, found = find_daemon(address, state_dir=state_dir, token=token)
    name = name or f"{socket.gethostname()}-{os.getpid()}"
    return AsyncQueue(target, name=name, token=found, reconnect_s=reconnect_s)

"""A queue for asyncio programs: the names of the blocking client, awaited or iterated by `async for`.

This file puts link, producer and consumers together; it needs no particular event loop. Content is written and read in
threads.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Self, Unpack

from opsq import traces
from opsq.client.aio.chunk import AsyncChunk
from opsq.client.aio.consumer import AsyncConsumer
from opsq.client.aio.submission import AsyncSubmission
from opsq.client.core import new_submission
from opsq.client.core.address import Target, TlsAddress, find_daemon
from opsq.client.core.administration import AsyncRules
from opsq.client.core.arguments import converted, count, pairs
from opsq.client.core.async_link import AsyncLink
from opsq.client.core.consume_options import ConsumerOptions
from opsq.client.core.content_access import Contents
from opsq.client.core.events import AsyncEventCalls
from opsq.client.core.maintenance import AsyncMaintenanceCalls
from opsq.client.core.operation_chunks import chunks_of
from opsq.client.core.operations import formats
from opsq.client.core.result_pages import CLOSED_REASON, NAMED_DEAD_COUNT, OnClose, check_on_close, failure, logged
from opsq.client.core.schedules import AsyncScheduleCalls
from opsq.client.core.transport import default_name
from opsq.client.core.unused_content import delete_unused_async
from opsq.client.shards.dialling import dial_plain
from opsq.errors import Conflict, OpsqError, Unreachable, WorkFailed
from opsq.ids import parse_submission_id
from opsq.wire.messages import (
    Capacity,
    DaemonState,
    Find,
    Found,
    List,
    Listed,
    NewSubmission,
    Status,
    SubmissionState,
    Submit,
    Submitted,
    Withdraw,
)

if TYPE_CHECKING:
    from opsq.serialisation import Serialisation


class AsyncQueue(AsyncRules, AsyncScheduleCalls, AsyncEventCalls, AsyncMaintenanceCalls):
    """A queue, reached over a socket from one event loop; made by `connect_async`. Use it in an `async with` block."""

    link: AsyncLink
    contents: Contents

    def __init__(self, address: Target, *, name: str, token: str, reconnect_s: float | None) -> None:
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

    async def submit(
        self,
        chunks: Iterable[Any],
        *,
        serialisation: Serialisation | str | None = None,
        operations_per_chunk: int = 1000,
        wait_for_room: new_submission.RoomWait = False,
        **options: Unpack[new_submission.SubmitOptions],
    ) -> AsyncSubmission:
        """Hand over one submission; see `Producer.submit`."""
        began = time.monotonic()
        with traces.sending() as sending:
            prepared = await self.prepare(
                chunks,
                serialisation=serialisation,
                operations_per_chunk=operations_per_chunk,
                wait_for_room=wait_for_room,
                **options,
            )
            [submission] = await self._hand_over([prepared], new_submission.wait_s_of(wait_for_room, began))
            sending.note(submission.id, prepared.chunks_count)
        return submission

    async def run(
        self,
        items: Iterable[Any],
        *,
        serialisation: Serialisation | str | None = None,
        result_serialisation: Serialisation | str | None = None,
        operations_per_chunk: int = 1000,
        skip_dead: bool = False,
        on_close: OnClose = "leave",
        wait_for_room: new_submission.RoomWait = False,
        **options: Unpack[new_submission.SubmitOptions],
    ) -> AsyncIterator[Any]:
        """Hand over `items`, and iterate over the results in order as they come; see `Producer.run`.

        Nothing is handed over before the first result is asked for. `items` is read in a thread.
        """
        check_on_close(on_close)
        if skip_dead:
            options.setdefault("on_dead", "keep")
        encoding, decode = formats(serialisation, result_serialisation)
        submission = await self.submit(
            items,
            serialisation=encoding,
            operations_per_chunk=operations_per_chunk,
            wait_for_room=wait_for_room,
            **options,
        )
        try:
            async for result in submission.follow(skip_dead=skip_dead):
                for item in [result] if decode is None else decode(result):
                    yield item
        except WorkFailed as error:
            dead = await submission.first_dead(NAMED_DEAD_COUNT)
            raise failure(await submission.state(), dead, error) from error
        except Unreachable:
            raise  # as in `ResultStream`
        except BaseException:
            if on_close == "cancel":
                with logged(submission.id):
                    await submission.cancel(CLOSED_REASON)
            raise

    async def prepare(
        self,
        chunks: Iterable[Any],
        *,
        serialisation: Serialisation | str | None = None,
        operations_per_chunk: int = 1000,
        wait_for_room: new_submission.RoomWait = False,
        **options: Unpack[new_submission.SubmitOptions],
    ) -> NewSubmission:
        """Write the content of a submission, in a thread; see `Producer.prepare`."""
        operations_per_chunk = count("operations_per_chunk", operations_per_chunk)
        if serialisation is not None:
            chunks = chunks_of(chunks, serialisation, operations_per_chunk)
        key = new_submission.new_request_key()
        new_submission.new_submission(key, b"", 0, **options)
        request = new_submission.capacity_request(self.link.next_id(), chunks, wait_for_room, options)
        if request is not None:
            await self.link.call(request, Capacity)
        content = await asyncio.to_thread(new_submission.write_content, chunks, key, self.contents, self.link.welcome)
        return self.describe(key, content, **options)

    def describe(
        self, request_key: bytes, content: Any, **options: Unpack[new_submission.SubmitOptions]
    ) -> NewSubmission:
        """What to hand over for content that is written already; see `Producer.describe`."""
        from opsq.content.manifest import encode

        return new_submission.new_submission(
            request_key, encode(traces.carrying(content)), content.chunks_count, **options
        )

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
            await delete_unused_async(submissions, self.contents, self.link)
            raise
        made_before = new_submission.made_before(submissions, reply.created)
        await delete_unused_async(made_before, self.contents, self.link)
        return [AsyncSubmission(self, made.submission_id, is_new=made.is_new) for made in reply.created]

    async def find(self, idempotency_key: str) -> AsyncSubmission | None:
        """The submission that this idempotency key has made, or None; see `Producer.find`."""
        return await self._found(Find(self.link.next_id(), None, idempotency_key))

    async def find_request(self, request_key: bytes) -> AsyncSubmission | None:
        """The submission that this request key has made, or None; see `Producer.find_request`."""
        return await self._found(Find(self.link.next_id(), request_key))

    async def withdraw(self, request_key: bytes) -> AsyncSubmission | None:
        """Take back a hand-over of which it is not known whether it arrived; see `Producer.withdraw`."""
        return await self._found(Withdraw(self.link.next_id(), request_key))

    async def _found(self, request: Find | Withdraw) -> AsyncSubmission | None:
        found = await self.link.call(request, Found)
        return None if found.submission_id is None else self.submission(found.submission_id)

    def submission(self, submission_id: int | str) -> AsyncSubmission:
        """The handle of a submission by its id; see `Producer.submission`."""
        number = submission_id if isinstance(submission_id, int) else parse_submission_id(submission_id)
        return AsyncSubmission(self, number)

    async def submissions(
        self, *, states: Iterable[str] = (), metadata: Mapping[str, int | str] | None = None
    ) -> AsyncIterator[SubmissionState]:
        """All submissions for which all conditions hold; see `Producer.submissions`."""
        before: int | None = None
        wanted, which = converted("states", states, list, "names of states"), pairs("metadata", metadata or {})
        while True:
            page = await self.link.call(List(self.link.next_id(), wanted, which, before), Listed)
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
        **options: Unpack[ConsumerOptions],
    ) -> AsyncIterator[AsyncChunk]:
        """Work through chunks, one by one: `async for chunk in queue.consume(): await chunk.complete(...)`.

        See `Queue.consume`. To leave the loop early, use `consumer` in an `async with` block: an
        asynchronous iterator that is left is closed only some time later.
        """
        async with self.consumer(strategy, **options) as consumer:
            async for chunk in consumer.chunks(until_empty=until_empty, until_idle=until_idle, overlapping=overlapping):
                yield chunk

    def consumer(self, strategy: object = "Random", **options: Unpack[ConsumerOptions]) -> AsyncConsumer:
        """A consumer with a connection of its own; open it by `async with`; see `Queue.consumer`."""
        return AsyncConsumer(self._make_link, strategy, **options)

    async def status(self, by: str | None = None) -> DaemonState:
        """The state of the daemon; see `Queue.status`."""
        return await self.link.call(Status(self.link.next_id(), by, ""), DaemonState)

    async def close(self) -> None:
        """End the connection."""
        await self.link.close()
        if hasattr(self, "contents"):
            self.contents.close()

    def _make_link(self, **options: Any) -> AsyncLink:
        return AsyncLink(self._address, name=self._name, token=self._token, connect=dial_plain, **options)


def connect_async(
    address: str | os.PathLike[str] | tuple[str, int] | TlsAddress | None = None,
    *,
    state_dir: str | os.PathLike[str] | None = None,
    token: str | None = None,
    name: str = "",
    reconnect_s: float | None = 30.0,
    shard_by: str = "",
) -> AsyncQueue:
    """Connect to a daemon: `async with opsq.connect_async() as queue`. The arguments are those of `connect`.

    Raises:
        UsageError: a setting or the address cannot be understood.
    """
    target, found = find_daemon(address, state_dir=state_dir, token=token, shard_by=shard_by)
    name = name or default_name()
    return AsyncQueue(target, name=name, token=found, reconnect_s=reconnect_s)

"""A consumer of Opsqueue, over a WebSocket: a consumer of the daemon, with a connection of its own.

Closing the one closes the other, which gives back what it had. This file must not know how messages are encoded.
"""

from __future__ import annotations

import asyncio
import contextlib
import uuid
from typing import Any

from starlette.websockets import WebSocket, WebSocketDisconnect

from opsq.client.aio.chunk import AsyncChunk
from opsq.client.aio.consumer import AsyncConsumer
from opsq.client.aio.queue import AsyncQueue
from opsq.errors import ContentChanged, ContentMissing, NotFound, OpsqError, Refused
from opsq.gateway.context import Context
from opsq.gateway.opsqueue import messages
from opsq.gateway.opsqueue.submissions import Submissions, is_elsewhere, shown
from opsq.gateway.problems import problem, status_of
from opsq.gateway.websocket import pong_sender
from opsq.printable import printable
from opsq.strategy.tree import KEY, NewestFirst, OldestFirst, PreferDistinct, Random, Strategy

HEARTBEAT_S = 20
"""How often uvicorn sends a ping, unless told otherwise."""
MISSABLE_COUNT = 3
RESERVATION_S = 600.0
"""A chunk without a verdict is offered to others after this time, though its consumer lives."""
RETRY_S = 1.0
"""A client that is refused comes back at once; this is the least time between two refusals."""
CHUNKS_LIMIT = 1024
"""At most this many chunks go into one message."""
MESSAGE_LIMIT_BYTES = 15 << 20
"""The client takes frames up to 16 MiB."""
REASON_LIMIT_BYTES = 123
"""Why a WebSocket is closed is told in one frame of 125 bytes, with the code."""
PARKED_LIMIT = 256
NESTED_LIMIT = 6
"""Inside so many PreferDistinct, others make no difference any more."""

_BASIC: dict[str, Strategy] = {"Random": Random(), "Oldest": OldestFirst(), "Newest": NewestFirst()}


def strategy_of(wanted: messages.Strategy) -> Strategy:
    """A strategy in the language of opsq. A key that no submission can have prefers nothing."""
    keys: list[str] = []
    while not isinstance(wanted, str):
        keys.append(wanted.prefer_distinct.meta_key)
        wanted = wanted.prefer_distinct.underlying
    strategy = _BASIC[wanted]
    for key in reversed([key for key in keys if KEY.fullmatch(key)][:NESTED_LIMIT]):
        strategy = PreferDistinct(key, inner=strategy)
    return strategy


class Consumer:
    """The connection of one consumer.

    Args:
        submissions: shared with producers.
    """

    def __init__(
        self, context: Context, submissions: Submissions, websocket: WebSocket, queue: AsyncQueue, own: AsyncConsumer
    ) -> None:
        self._context = context
        self._submissions = submissions
        self._websocket = websocket
        self._queue = queue
        self._own = own
        self._send_pong = pong_sender(websocket)
        self._sending = asyncio.Lock()
        self._held: dict[messages.ChunkId, tuple[AsyncChunk, asyncio.TimerHandle]] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._failed: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    async def serve(self) -> None:
        """Answer until the client goes away.

        Raises:
            BadMessage: it sends what is no message.
            OpsqError: the daemon refuses something, or is gone.
        """
        connection_id = str(uuid.uuid4())
        await self._send(messages.init(connection_id, HEARTBEAT_S, MISSABLE_COUNT))
        reading = asyncio.get_running_loop().create_task(self._read())
        try:
            await asyncio.wait((reading, self._failed), return_when=asyncio.FIRST_COMPLETED)
            for ended in (reading, self._failed):
                if ended.done():
                    ended.result()
        finally:
            await self._end(reading)

    async def _end(self, reading: asyncio.Task[None]) -> None:
        for _, timer in self._held.values():
            timer.cancel()
        tasks = [reading, *self._tasks]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        self._failed.cancel()

    async def _read(self) -> None:
        with contextlib.suppress(WebSocketDisconnect):
            while True:
                await self._take(await self._websocket.receive_bytes())

    async def _take(self, message: bytes) -> None:
        nonce, request = messages.read_request(message)
        if isinstance(request, messages.WantToReserveChunks):
            if len(self._tasks) >= PARKED_LIMIT:
                raise messages.BadMessage(f"More than {PARKED_LIMIT} requests are waiting for chunks.")
            self._spawn(self._reserve(nonce, request))
            return
        self._send_pong()
        chunk, timer = self._held.pop(request.id, (None, None))
        if chunk is None or timer is None:
            return
        timer.cancel()
        if isinstance(request, messages.CompleteChunk):
            await chunk.complete(bytes(request.output_content or ()))
        else:
            await chunk.fail(request.failure)

    async def _reserve(self, nonce: int, request: messages.WantToReserveChunks) -> None:
        if request.max == 0:
            await self._send(messages.nothing_wanted(nonce))
            return
        strategy, count = strategy_of(request.strategy), min(request.max, CHUNKS_LIMIT)
        pairs: list[tuple[dict[str, Any], dict[str, Any]]] = []
        while not pairs:
            try:
                chunks = await self._own.reserve_chunks(count, strategy=strategy, wait_s=None)
            except Refused:
                chunks = []
            if not chunks:  # the daemon is being stopped, or has no room
                await asyncio.sleep(RETRY_S)
            pairs = await self._described(chunks)
        await self._send(messages.chunks_reserved(nonce, pairs))

    async def _described(self, chunks: list[AsyncChunk]) -> list[tuple[dict[str, Any], dict[str, Any]]]:
        """Chunks as the client gets them; what does not fit is given back, and what cannot be read fails."""
        pairs = []
        left_bytes = MESSAGE_LIMIT_BYTES
        for chunk in chunks:
            try:
                facts = await self._submissions.facts(self._queue, chunk.described)
                content = None if is_elsewhere(chunk.described.content) else await chunk.data()
            except NotFound:  # the submission was removed
                await chunk.release()
                continue
            except (ContentMissing, ContentChanged) as error:
                await chunk.fail(error.message, retry=not isinstance(error, ContentChanged))
                continue
            size_bytes = len(content or b"") + len(facts.metadata or b"") + 1024
            if size_bytes > MESSAGE_LIMIT_BYTES:
                limit_mib = MESSAGE_LIMIT_BYTES >> 20
                await chunk.fail(f"The chunk is larger than {limit_mib} MiB, which clients of Opsqueue cannot take.")
            elif size_bytes > left_bytes:
                await chunk.release()
            else:
                left_bytes -= size_bytes
                pairs.append((self._hold(chunk, content), shown(chunk.submission_id, facts, 0)))
        return pairs

    def _hold(self, chunk: AsyncChunk, content: bytes | None) -> dict[str, Any]:
        key = messages.ChunkId(chunk.submission_id, chunk.index)
        known = self._held.get(key)
        if known is not None:  # it was offered to others, and came back
            known[1].cancel()
            self._spawn(known[0].release())
        timer = asyncio.get_running_loop().call_later(RESERVATION_S, lambda: self._spawn(self._expire(key, chunk)))
        self._held[key] = (chunk, timer)
        return {
            "submission_id": chunk.submission_id,
            "chunk_index": chunk.index,
            "input_content": content,
            "retries": chunk.attempt,
        }

    async def _expire(self, key: messages.ChunkId, chunk: AsyncChunk) -> None:
        """Offer a chunk to others; it may still be completed."""
        await chunk.share()
        await self._send(messages.reservation_expired(key.submission_id, key.chunk_index))

    async def _send(self, message: bytes) -> None:
        with contextlib.suppress(WebSocketDisconnect):  # the reader learns of it too
            async with self._sending:
                await self._websocket.send_bytes(message)

    def _spawn(self, work: Any) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._done)

    def _done(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        error = None if task.cancelled() else task.exception()
        if error is not None and not self._failed.done():
            self._failed.set_exception(error)


async def serve(context: Context, submissions: Submissions, websocket: WebSocket) -> None:
    """Serve a consumer until it goes away; without a daemon it is not let in."""
    try:
        queue = await context.queue(websocket)
        async with queue.consumer(on_lost=lambda _: None) as own:
            await websocket.accept()
            code, reason = await _served(Consumer(context, submissions, websocket, queue, own))
    except OpsqError as error:
        await websocket.send_denial_response(problem(status_of(error), error.code, error.message, error.hint))
        return
    if code:
        with contextlib.suppress(WebSocketDisconnect):
            await websocket.close(code, printable(reason).encode()[:REASON_LIMIT_BYTES].decode(errors="ignore"))


async def _served(consumer: Consumer) -> tuple[int, str]:
    """Serve; the code with which to close, 0 if the client has, and the reason."""
    try:
        await consumer.serve()
    except messages.BadMessage as error:
        ended = (1007, str(error))
    except OpsqError as error:
        ended = (1011, error.message)
    else:
        return 0, ""
    await asyncio.sleep(RETRY_S)
    return ended

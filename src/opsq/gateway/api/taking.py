"""The endpoints of consumers: chunks are reserved as leases, completed, failed, released and extended.

It must not carry the content of chunks: `contents` does.
"""

from __future__ import annotations

import asyncio
import binascii
import contextlib
from collections import defaultdict
from typing import Annotated

import msgspec
from msgspec import UNSET, Meta, Struct

from opsq import traces
from opsq.client.core.follow_up_lines import FollowUpShape
from opsq.client.core.follow_ups import FollowUp, prepared
from opsq.client.core.refusals import check_refusals, held_chunks
from opsq.client.core.result_pages import only_described
from opsq.documents.chunk_inputs import ChunkInputs
from opsq.documents.submissions import ChangedDocument, ReservedChunk, ReserveDocument, input_fields
from opsq.errors import (
    ChunkTooLarge,
    Conflict,
    InvalidHandle,
    InvalidStrategy,
    NotFound,
    OpsqError,
    StorageFull,
    UsageError,
)
from opsq.gateway.api.call import Call
from opsq.gateway.api.conditions import WAIT_LIMIT_S
from opsq.gateway.api.endpoint import Endpoint
from opsq.gateway.blocking_queue import BlockingQueue
from opsq.gateway.waiting import is_gone
from opsq.ids import Handle, SubmissionId, parse_handle
from opsq.wire import messages as m

HandleText = Annotated[str, Meta(max_length=128, description="As `reserve` has named the chunk.")]
Handles = Annotated[list[HandleText], Meta(min_length=1, max_length=10_000)]


class ReserveBody(Struct, forbid_unknown_fields=True):
    """How many chunks, which, and for how long; without `lease_s` as long as their submissions say."""

    count: Annotated[int, Meta(ge=1, le=1000)] = 1
    strategy: m.StrategyText = "Random"
    lease_s: Annotated[float, Meta(ge=m.RESERVATION_MIN_S, le=1e9)] | None = None
    wait_s: Annotated[float, Meta(ge=0, le=WAIT_LIMIT_S, description="Wait up to this long for the first.")] = 0.0


class DoneChunk(Struct, forbid_unknown_fields=True):
    """A chunk that is done, with its result, if it has one: `text`, or `base64`; and its follow-ups."""

    handle: HandleText
    text: str | None = None
    base64: str | None = None
    then: Annotated[list[FollowUpShape], Meta(max_length=m.FOLLOW_UPS_LIMIT)] = []


class CompleteBody(Struct, forbid_unknown_fields=True):
    """Chunks that are done."""

    chunks: Annotated[list[DoneChunk], Meta(min_length=1, max_length=10_000)]


class FailBody(Struct, forbid_unknown_fields=True):
    """Chunks whose attempt failed; `delay_s` replaces the back-off, and `no_retry` makes them dead at once."""

    handles: Handles
    reason: m.Reason = ""
    delay_s: m.Duration | None = None
    no_retry: bool = False


class HandlesBody(Struct, forbid_unknown_fields=True):
    """Reserved chunks."""

    handles: Handles


class ExtendBody(Struct, forbid_unknown_fields=True):
    """Reserved chunks, and how long they may take from now; by default as long as before."""

    handles: Handles
    lease_s: m.PositiveDuration | None = None


async def reserve_chunks(call: Call, body: ReserveBody) -> ReserveDocument:
    """Reserve chunks as leases, which outlive the gateway; `chunks` is empty if nothing is free.

    The daemon answers a waiting request at once when it stops.
    """
    request = m.Reserve(call.next_id(), body.count, body.strategy, body.wait_s, body.lease_s or 0.0)
    asking = asyncio.ensure_future(call.ask(request, m.Reserved))
    await call.until(asking, body.wait_s or None)
    if not asking.done():
        call.queue.link.cancel([request.id])
    reply = await asking
    handles = reply.handles()

    def compose(daemon: BlockingQueue) -> ReserveDocument:
        inputs = ChunkInputs(daemon)
        inputs.look_up(handle.submission_id for _, handle in handles)
        chunks = [
            ReservedChunk(
                str(handle),
                str(handle.submission_id),
                handle.index,
                grant.attempt,
                **input_fields(inputs.of(handle.submission_id, handle.index)),
            )
            for grant, handle in handles
        ]
        return ReserveDocument(chunks, reply.deadline_s)

    document = await call.compose(compose)
    if handles and is_gone(call.request):
        held = m.HeldChunks.merged(handle for _, handle in handles)
        await call.ask(m.Release(call.next_id(), held), m.Completed)
    return document


async def complete_chunks(call: Call, body: CompleteBody) -> ChangedDocument:
    """Complete reserved chunks; durable when it answers.

    Their follow-ups, which only a producer may make, are submitted in the same commit; `created` has the ids.
    """
    results = [(parse_handle(chunk.handle), _result(chunk)) for chunk in body.chunks]
    then = [[shape.as_follow_up() for shape in chunk.then] for chunk in body.chunks]
    places = await _stored(call, [(handle, result) for handle, result in results if _is_large(result)])
    followed = {handle.submission_id for (handle, _), some in zip(results, then, strict=True) if some}
    contexts = await _contexts(call, followed)
    completions = [
        m.Completion(
            m.HeldChunks.of(handle),
            msgspec.Raw(msgspec.msgpack.encode([places.get(handle, result)])),
            then=await _prepared(call, followers, contexts.get(handle.submission_id)) if followers else [],
        )
        for (handle, result), followers in zip(results, then, strict=True)
    ]
    reply = await call.ask(m.Complete(call.next_id(), completions), m.Completed)
    check_refusals(reply)
    created = [str(one.submission_id) for one in reply.created]
    return ChangedDocument(len(completions), created=created if any(then) else UNSET)


async def _contexts(call: Call, submission_ids: set[SubmissionId]) -> dict[int, traces.TraceContext | None]:
    """What follow-ups of chunks belong to, by submission: the trace of the request, else that of the chunk."""
    context = traces.current()
    if context is not None or not submission_ids:
        return dict.fromkeys(submission_ids, context)
    reply = await call.ask(m.Describe(call.next_id(), list[int](submission_ids)), m.Described)
    return {one.submission_id: traces.carried_by(one.content) for one in reply.submissions if one.content}


async def _prepared(call: Call, then: list[FollowUp], context: traces.TraceContext | None) -> list[m.NewSubmission]:
    """Follow-ups with their content written."""
    queue = call.queue
    return await asyncio.to_thread(prepared, then, queue.contents, queue.link.welcome, context)


def _result(chunk: DoneChunk) -> bytes:
    if chunk.base64 is None:
        return (chunk.text or "").encode()
    if chunk.text is not None:
        raise UsageError(f"The result of {chunk.handle} is given twice.", hint="Give `text` or `base64`.")
    try:
        return binascii.a2b_base64(chunk.base64, strict_mode=True)
    except ValueError as error:
        raise UsageError(f"The result of {chunk.handle} is not base64: {error}.") from error


def _is_large(result: bytes) -> bool:
    return len(result) > m.RESULT_INLINE_BYTES


async def _stored(call: Call, results: list[tuple[Handle, bytes]]) -> dict[Handle, tuple[str, int, int]]:
    """Where large results were stored, by handle; those of one submission are in one object."""
    groups: defaultdict[SubmissionId, list[tuple[Handle, bytes]]] = defaultdict(list)
    for handle, result in results:
        groups[handle.submission_id].append((handle, result))
    places: dict[Handle, tuple[str, int, int]] = {}

    def store(described: m.SubmissionContent) -> None:
        group = groups[SubmissionId(described.submission_id)]
        with contextlib.closing(call.queue.contents.result_writer(described, "gateway")) as writer:
            places.update((handle, writer.append(result)) for handle, result in group)
            writer.sync()

    for submission_id in groups:
        reply = await call.ask(m.Describe(call.next_id(), [submission_id]), m.Described)
        await asyncio.to_thread(store, only_described(reply, submission_id))
    return places


async def fail_chunks(call: Call, body: FailBody) -> ChangedDocument:
    """Report failed attempts: the chunks are retried after a back-off, or die when their attempts are used up."""
    if body.no_retry and body.delay_s is not None:
        raise UsageError("`no_retry` and `delay_s` cannot be combined.")
    failures = [
        m.Failure(held, body.reason, delay_s=body.delay_s, is_final=body.no_retry) for held in held_chunks(body.handles)
    ]
    check_refusals(await call.ask(m.Fail(call.next_id(), failures), m.Completed))
    return ChangedDocument(len(body.handles))


async def release_chunks(call: Call, body: HandlesBody) -> ChangedDocument:
    """Release reserved chunks without counting an attempt."""
    check_refusals(await call.ask(m.Release(call.next_id(), held_chunks(body.handles)), m.Completed))
    return ChangedDocument(len(body.handles))


async def extend_chunks(call: Call, body: ExtendBody) -> ChangedDocument:
    """Move the deadline of reserved chunks to a full lease from now."""
    check_refusals(await call.ask(m.Extend(call.next_id(), held_chunks(body.handles), body.lease_s), m.Completed))
    return ChangedDocument(len(body.handles))


_FAILS: tuple[type[OpsqError], ...] = (InvalidHandle, NotFound, Conflict, StorageFull)

ENDPOINTS = (
    Endpoint("POST", "/reserve", reserve_chunks, (m.Reserve, m.Release), (InvalidStrategy, StorageFull)),
    Endpoint("POST", "/complete", complete_chunks, (m.Complete, m.Describe), (*_FAILS, ChunkTooLarge)),
    Endpoint("POST", "/fail", fail_chunks, (m.Fail,), _FAILS),
    Endpoint("POST", "/release", release_chunks, (m.Release,), _FAILS),
    Endpoint("POST", "/extend", extend_chunks, (m.Extend,), _FAILS),
)

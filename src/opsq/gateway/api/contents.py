"""The endpoints that carry content: a submission comes in as a body, chunks, results and attachments go out.

It must not read or write content: `gateway.transfer` does.
"""

from __future__ import annotations

import asyncio
import time
from typing import Annotated, Any

import msgspec
from msgspec import Meta, Struct
from msgspec.structs import replace
from starlette.responses import Response

from opsq.client.aio.submission import AsyncSubmission
from opsq.client.core.new_submission import new_request_key
from opsq.client.core.repeated_submission import check_same
from opsq.client.core.result_pages import ResultCursor, only_described, results_of
from opsq.client.core.unused_content import delete_content
from opsq.content.manifest import decode, encode
from opsq.content.result_joiner import content_of
from opsq.documents.submissions import SubmitDocument
from opsq.errors import (
    ChunkTooLarge,
    Conflict,
    ContentMissing,
    InputUnreadable,
    NoRoom,
    NotFinished,
    NotFound,
    StorageFull,
    UsageError,
    WorkFailed,
)
from opsq.gateway.api.call import Call
from opsq.gateway.api.conditions import WAIT_LIMIT_S, OfChunk, OfSubmission
from opsq.gateway.api.endpoint import JSON, Endpoint, check_media_type
from opsq.gateway.api.option_query import declared, made, query_of
from opsq.gateway.transfer.byte_range import satisfied, wanted_range
from opsq.gateway.transfer.download import Download, Extents, Streamed
from opsq.gateway.transfer.upload import Uploads
from opsq.gateway.waiting import Stopping, unless
from opsq.ids import BLOCK_CHUNKS, parse_submission_id
from opsq.options.chunk_options import Cutting, Dialect
from opsq.options.option import duration, option
from opsq.options.result_options import Shaping
from opsq.options.submission_options import Rules
from opsq.traces import carrying
from opsq.units import counted
from opsq.wire import messages as m
from opsq.wire.impossible_fields import checked

BYTES = "application/octet-stream"
LINES = "application/x-ndjson"
BODIES = (BYTES, "text/plain", "text/csv", LINES, "multipart/form-data")

_ROOM = option("--wait-for-room D", "If the queue is full, wait for room, for at most this long.", duration)
_FOLLOW = option("--follow", "Do not wait for the end: send each result as soon as it is next in order.")
_SKIP_DEAD = option("--skip-dead", "Leave out chunks that died or were skipped, instead of refusing.")

SubmitQuery = query_of("SubmitQuery", *declared(Cutting), *declared(Rules, "idempotency_key"), _ROOM)
ResultsQuery = query_of("ResultsQuery", _FOLLOW, _SKIP_DEAD, *declared(Shaping), *declared(Dialect))


_UNSAFE = {"X-Content-Type-Options": "nosniff", "Cache-Control": "no-cache"}
"""What others have written is no page of this site."""
_UPLOADS = Uploads()
_EXTENTS = Extents()


class SubmitHeaders(Struct, rename={"idempotency_key": "Idempotency-Key"}):
    """What names a submission."""

    idempotency_key: (
        Annotated[m.UserKey, Meta(description="If a submission has this key, finished or not, that one is meant.")]
        | None
    ) = None


async def submit(call: Call, query: SubmitQuery, headers: SubmitHeaders) -> SubmitDocument | Response:  # type: ignore[valid-type]
    """Submit the body, cut into chunks, or each file of a form.

    The parameters are the options of `opsq submit`. 200 instead of 201: there was one already with this key.
    """
    given: Any = query
    request = call.request
    media_type = check_media_type(request, *BODIES) if "content-type" in request.headers else BYTES
    has_header = "header=present" in request.headers.get("content-type", "").replace(" ", "").lower()
    is_csv = media_type == "text/csv"
    splitting = made(
        Cutting, given, csv=given.csv or is_csv, csv_header=given.csv_header or (is_csv and has_header)
    ).as_splitting()
    key = new_request_key()
    fields = made(Rules, given, idempotency_key=headers.idempotency_key).as_fields()
    new = checked(m.NewSubmission(key, 0, **fields))
    wait_s = 0.0 if given.wait_for_room is None else duration("wait_for_room", given.wait_for_room)
    if wait_s > WAIT_LIMIT_S:
        raise UsageError(f"wait_for_room may be {WAIT_LIMIT_S} seconds.")
    until = time.monotonic() + wait_s
    if not await _is_known(call, headers.idempotency_key):
        size_bytes = int(request.headers.get("content-length", "0"))
        asking = m.CheckCapacity(call.next_id(), 1, size_bytes, wait_s, new.unique_key)
        await unless(call.context.stopping, call.ask(asking, m.Capacity))
    content, attachment = await _UPLOADS.write(request, call.queue, splitting, key, call.context.stopping)
    new = replace(new, chunks_count=content.chunks_count, content=encode(carrying(content)), attachment=attachment)
    submission = await _hand_over(call, new, max(until - time.monotonic(), 0.0))
    if headers.idempotency_key is not None and not submission.is_new:
        await call.compose(check_same, submission.id, new, content)
    document = SubmitDocument(str(submission.id), submission.is_new, content.chunks_count, content.total_bytes)
    status = 201 if submission.is_new else 200
    return Response(
        msgspec.json.encode(document), status, {"Location": f"{request.url.path}/{submission.id}"}, media_type=JSON
    )


async def read_results(call: Call, path: OfSubmission, query: ResultsQuery) -> Response:  # type: ignore[valid-type]
    """The results of a submission, in chunk order: one after the other, or as JSON if that is accepted.

    Once it has ended, Range is served, unless results are changed by a parameter. If a result is lacking after the
    answer has begun, the connection is closed before its end.
    """
    given: Any = query
    submission_id = parse_submission_id(path.submission_id)
    state = await call.queue.submission(submission_id).state()
    is_final = state.finished_at is not None
    if not is_final and not given.follow:
        raise NotFinished(
            f"Submission {submission_id} is {state.state}, so it has no results yet.",
            hint="Wait for it, or follow it: ?follow=true.",
        )
    if is_final and not given.skip_dead and (lacking_count := state.dead_count + state.skipped_count):
        raise WorkFailed(
            f"Submission {submission_id} is {state.state}: {lacking_count} of its "
            f"{counted(state.chunks_count, 'chunk')} have no "
            "result.",
            hint=f"/api/v1/dead?submission_id={submission_id} says why; ?skip_dead=true leaves them out.",
        )

    def download() -> Download:
        cursor = ResultCursor(submission_id, is_following=given.follow, skip_dead=given.skip_dead)
        return Download(call.queue, cursor, None if is_final else call.context.stopping)

    name, accepted = f"results of submission {submission_id}", call.request.headers.get("accept", "")
    headers = {**_UNSAFE, "Content-Disposition": f'attachment; filename="results-{submission_id}"'}
    for media_type in (JSON, LINES):
        if media_type in accepted:
            found = download()
            pieces = found.as_json() if media_type == JSON else found.as_lines()
            return Streamed(pieces, name, 200, _UNSAFE, media_type)
    shaping = made(Shaping, given).as_shaping(made(Dialect, given).as_dialect())
    if not is_final or given.header_once or given.end_lines:
        return Streamed(download().as_bytes(shaping), name, 200, headers | {"Accept-Ranges": "none"}, BYTES)
    tag = f'"{_store(call)}-{submission_id}-{state.finished_at}-{state.completed_count}"'
    headers |= {"Accept-Ranges": "bytes", "ETag": tag}
    if call.request.headers.get("if-none-match") == tag:
        return Response(status_code=304, headers=headers)
    wanted = wanted_range(call.request.headers, tag)
    if wanted is None:
        if call.request.method == "HEAD":
            headers["Content-Length"] = str((await _EXTENTS.of(tag, download())).size_bytes)
        return Streamed(download().as_bytes(shaping), name, 200, headers, BYTES)
    extent = await _EXTENTS.of(tag, download())
    part = satisfied(wanted, extent.size_bytes)
    return Streamed(download().range(extent, part), name, 206, headers | part.headers, BYTES)


async def read_result(call: Call, path: OfChunk) -> Response:
    """The result of one chunk, as soon as there is one."""
    submission_id = parse_submission_id(path.submission_id)
    page = await call.ask(m.Results(call.next_id(), submission_id, path.index, 1), m.ResultRows)
    if path.index >= page.chunks_count:
        raise NotFound(f"There is no chunk {submission_id}/{path.index}.")
    if not page.completed[0] >> path.index % BLOCK_CHUNKS & 1:
        what = f"Chunk {submission_id}/{path.index} has no result"
        if page.is_final:
            raise WorkFailed(f"{what}: it died or was skipped; the submission is {page.state}.")
        raise NotFinished(f"{what} yet.")
    result = results_of(page.rows, submission_id).get(path.index, b"")
    if not isinstance(result, bytes):
        folder = decode((await _described(call, submission_id)).content).folder
        result = await asyncio.to_thread(lambda: content_of(result, call.queue.contents.store, folder))
    return _bytes(call, result, f"result-{submission_id}-{path.index}")


async def read_chunk(call: Call, path: OfChunk) -> Response:
    """The bytes of a chunk, as its consumer gets them."""
    submission_id = parse_submission_id(path.submission_id)
    described = await _described(call, submission_id)
    content = await asyncio.to_thread(lambda: call.queue.contents.reader(described).read(path.index))
    return _bytes(call, content, f"chunk-{submission_id}-{path.index}")


async def read_attachment(call: Call, path: OfSubmission) -> Response:
    """The attachment of a submission, which every consumer of its chunks gets."""
    submission_id = parse_submission_id(path.submission_id)
    found = await call.queue.submission(submission_id).attachment()
    if found is None:
        raise NotFound(f"Submission {submission_id} has no attachment.")
    return _bytes(call, found, f"attachment-{submission_id}")


# --- inside -----------------------------------------------------------------------------------------------------------


async def _is_known(call: Call, idempotency_key: str | None) -> bool:
    """Whether a key has made a submission, so that no room is needed; refuses who may not submit."""
    if idempotency_key is None:
        return False
    found = await call.ask(m.Find(call.next_id(), None, idempotency_key), m.Found)
    return found.submission_id is not None


async def _hand_over(call: Call, new: m.NewSubmission, wait_s: float) -> AsyncSubmission:
    """Submit what is written, and take it back if the gateway ends while it waits for room."""
    try:
        [submission] = await unless(call.context.stopping, call.queue.submit_many([new], wait_for_room=wait_s))
    except Stopping:
        made_before = await call.queue.withdraw(new.request_key)
        if made_before is None:
            await asyncio.to_thread(delete_content, [new], call.queue.contents)
            raise
        return made_before
    return submission


async def _described(call: Call, submission_id: int) -> m.SubmissionContent:
    return only_described(await call.ask(m.Describe(call.next_id(), [submission_id]), m.Described), submission_id)


def _store(call: Call) -> str:
    return call.queue.link.welcome.store_marker[:8]


def _bytes(call: Call, content: bytes, name: str) -> Response:
    """An answer with bytes that never change, or a range of them."""
    tag = f'"{_store(call)}-{name}"'
    headers = {
        **_UNSAFE,
        "Accept-Ranges": "bytes",
        "ETag": tag,
        "Content-Disposition": f'attachment; filename="{name}"',
    }
    wanted = wanted_range(call.request.headers, tag)
    if wanted is None:
        return Response(content, 200, headers, BYTES)
    part = satisfied(wanted, len(content))
    return Response(content[part.low : part.high], 206, headers | part.headers, BYTES)


_READING = (m.Results, m.Show, m.Describe)
_SUBMISSION = "/submissions/{submission_id}"
_CHUNK = f"{_SUBMISSION}/chunks/{{index}}"

ENDPOINTS = (
    Endpoint(
        "POST",
        "/submissions",
        submit,
        (m.Submit, m.CheckCapacity, m.Find, m.Withdraw),
        (ChunkTooLarge, InputUnreadable, NoRoom, StorageFull, Conflict),
        status=201,
        consumes=BODIES,
        statuses=(200,),
    ),
    Endpoint(
        "GET",
        f"{_SUBMISSION}/results",
        read_results,
        _READING,
        (NotFound, NotFinished, WorkFailed, ContentMissing),
        produces=BYTES,
        statuses=(206, 304, 416),
    ),
    Endpoint(
        "GET",
        f"{_CHUNK}/result",
        read_result,
        _READING,
        (NotFound, NotFinished, WorkFailed),
        produces=BYTES,
        statuses=(206, 416),
    ),
    Endpoint(
        "GET",
        f"{_CHUNK}/content",
        read_chunk,
        (m.Describe,),
        (NotFound, ContentMissing),
        produces=BYTES,
        statuses=(206, 416),
    ),
    Endpoint(
        "GET",
        f"{_SUBMISSION}/attachment",
        read_attachment,
        (m.GetAttachment,),
        (NotFound,),
        produces=BYTES,
        statuses=(206, 416),
    ),
)

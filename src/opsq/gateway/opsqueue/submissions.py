"""Which submission of opsq stands for one of Opsqueue's, and how one of opsq's looks to its clients.

A prefix is the idempotency key, user metadata the attachment, and strategic metadata the metadata. What opsq has no
place for (chunk size, trace) stands in the description of the content. This file must not know HTTP or WebSockets.
"""

from __future__ import annotations

import datetime as dt
import functools
from collections import OrderedDict
from collections.abc import Mapping
from typing import Any, NamedTuple

import msgspec
from msgspec.structs import replace

from opsq import traces
from opsq.client.aio.queue import AsyncQueue
from opsq.client.core.new_submission import new_request_key, new_submission
from opsq.content.manifest import Content, decode, encode
from opsq.errors import NotFound
from opsq.gateway.opsqueue.messages import BadMessage, Insert
from opsq.strategy.tree import KEY
from opsq.wire.messages import (
    Dead,
    DeadChunks,
    Describe,
    Described,
    NewSubmission,
    SubmissionContent,
    SubmissionState,
    Submit,
    Submitted,
)

MAX_ATTEMPTS = 10
_MAX_LOST = 1 << 31
"""Losing its consumer counts against no chunk."""
_BACKOFF = (0.0, 1.0, 0.0)
_ROOM_WAIT_S = 30.0
_KNOWN_LIMIT = 128
IN_PROGRESS = ("open", "scheduled", "blocked")


class Format(msgspec.Struct, tag_field="format", tag="opsqueue"):
    """The description of the chunks of a submission that came from a client of Opsqueue."""

    prefix: str | None = None
    chunk_size: int = 1
    trace: dict[str, str] = {}

    @property
    def carrier(self) -> str:
        """The trace as consumers get it."""
        return msgspec.json.encode(self.trace).decode()


_format = msgspec.json.Decoder(Format)


class Facts(NamedTuple):
    """What never changes about a submission."""

    format: Format
    strategic_metadata: dict[str, int]
    metadata: bytes | None
    chunks_count: int


@functools.lru_cache(_KNOWN_LIMIT)
def format_of(content: bytes) -> Format:
    """The description of the chunks; that of a submission by another producer says nothing."""
    try:
        return _format.decode(decode(content).about)
    except msgspec.DecodeError:
        return Format()


def is_elsewhere(content: bytes) -> bool:
    """Whether chunks are in the object store of their producer."""
    described = decode(content)
    return described.inline is None and not described.parts_count


def integers(metadata: Mapping[str, int | str]) -> dict[str, int]:
    """The pairs that clients of Opsqueue can understand."""
    return {key: value for key, value in metadata.items() if isinstance(value, int)}


def optional_bytes(numbers: list[int] | None) -> bytes | None:
    """Bytes from the numbers that stand for them."""
    return None if numbers is None else bytes(numbers)


async def insert(queue: AsyncQueue, given: Insert, trace: dict[str, str]) -> int:
    """Hand over a submission, and return its id: with a known prefix, that of the one which has it.

    Raises:
        BadMessage, OpsqError: it cannot be.
    """
    for name in given.strategic_metadata or ():
        if KEY.fullmatch(name) is None:
            raise BadMessage(f"{name!r} is not a metadata key: they have at most 64 of A-Z a-z 0-9 _ . -")
    contents = given.chunk_contents
    stored = contents.see_object_storage
    prefix = stored.prefix if stored is not None else None
    chunk_size = 1 if given.chunk_size is None else given.chunk_size
    about = msgspec.json.encode(Format(prefix, chunk_size, trace))
    options: dict[str, Any] = {
        "metadata": given.strategic_metadata or {},
        "attachment": optional_bytes(given.metadata),
        "max_attempts": MAX_ATTEMPTS,
        "max_lost": _MAX_LOST,
        "backoff": _BACKOFF,
    }
    if stored is not None:
        key = new_request_key()
        content = encode(traces.carrying(Content(key.hex(), stored.count, 0, about=about)))
        new = new_submission(key, content, stored.count, idempotency_key=stored.prefix or None, **options)
        reply = await queue.link.call(Submit(queue.link.next_id(), [new], _ROOM_WAIT_S), Submitted)
        return reply.created[0].submission_id
    if contents.direct is None:
        raise BadMessage("There are no chunks.")
    prepared: NewSubmission = await queue.prepare([bytes(chunk or ()) for chunk in contents.direct.contents], **options)
    described = replace(decode(prepared.content), about=about)
    made = await queue.submit_many([replace(prepared, content=encode(described))], wait_for_room=_ROOM_WAIT_S)
    return made[0].id


def shown(submission_id: int, facts: Facts, done_count: int) -> dict[str, Any]:
    """A submission as consumers get it with a chunk; producers get it with an array for the metadata."""
    return {
        "id": submission_id,
        "prefix": facts.format.prefix,
        "chunks_total": facts.chunks_count,
        "chunks_done": done_count,
        "chunk_size": facts.format.chunk_size,
        "metadata": facts.metadata,
        "strategic_metadata": facts.strategic_metadata,
        "otel_trace_carrier": facts.format.carrier,
    }


class Submissions:
    """What is known of submissions, so that who polls costs little."""

    def __init__(self) -> None:
        self._known: OrderedDict[int, Facts] = OrderedDict()

    async def facts(self, queue: AsyncQueue, described: SubmissionContent) -> Facts:
        """What never changes about a submission, asked only once."""
        submission_id = described.submission_id
        found = self._known.get(submission_id)
        if found is None:
            has_attachment = described.has_attachment
            found = Facts(
                format_of(described.content),
                integers(described.metadata),
                await queue.submission(submission_id).attachment() if has_attachment else None,
                described.chunks_count,
            )
            self._known[submission_id] = found
            if len(self._known) > _KNOWN_LIMIT:
                self._known.popitem(last=False)
        return found

    async def status(self, queue: AsyncQueue, submission_id: int) -> dict[str, Any] | None:
        """A submission as producers ask for it; None: there is none (any more)."""
        try:
            state = await queue.submission(submission_id).state()
            facts = self._known.get(submission_id)
            if facts is None:
                request = Describe(queue.link.next_id(), [submission_id])
                described = (await queue.link.call(request, Described)).submissions
                if not described:
                    return None
                facts = await self.facts(queue, described[0])
        except NotFound:
            return None
        metadata = None if facts.metadata is None else list(facts.metadata)
        row = shown(submission_id, facts, state.completed_count) | {"metadata": metadata}
        if state.state in IN_PROGRESS:
            return {"InProgress": row}
        ended_at = _instant(state.finished_at or state.submitted_at)
        if state.state == "completed":
            return {"Completed": row | {"completed_at": ended_at}}
        chunk = await _first_failed(queue, state, ended_at)
        return {"Failed": [row | {"failed_at": ended_at, "failed_chunk_id": chunk["chunk_index"]}, chunk]}


async def _first_failed(queue: AsyncQueue, state: SubmissionState, ended_at: str) -> dict[str, Any]:
    """The chunk that made a submission fail; if none did, it says how the submission ended."""
    submission_id = state.submission_id
    request = Dead(queue.link.next_id(), submission_id, (0, -1), 1)
    dead = (await queue.link.call(request, DeadChunks)).chunks
    index, failure = 0, f"The submission was {state.state}{f': {state.reason}' if state.reason else ''}."
    if dead and state.state == "failed":
        index, failure, ended_at = dead[0].index, dead[0].reason, _instant(dead[0].dead_at)
    chunk = {"submission_id": submission_id, "chunk_index": index, "input_content": None}
    return chunk | {"failure": failure, "failed_at": ended_at}


def _instant(at_ms: int) -> str:
    return dt.datetime.fromtimestamp(at_ms / 1000, dt.UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")

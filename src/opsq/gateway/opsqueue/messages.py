"""The shapes of Opsqueue's protocol: JSON bodies of producers, and CBOR messages of consumers.

It must not know what opsq makes of them. Bytes are arrays of numbers, and an enum is an object with one key.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Annotated, Any, Literal

import cbor2
import msgspec
from msgspec import Meta

from opsq.wire.messages import Id, Int64

VERSION = "v0.30.3"
"""What clients are told: those of another version only warn."""

Octets = list[Annotated[int, Meta(ge=0, le=255)]]
PREFIX_LIMIT = 1024
Prefix = Annotated[str, Meta(max_length=PREFIX_LIMIT)]


class BadMessage(ValueError):
    """A body or message is not what the protocol says; the text tells where."""


# --- producers --------------------------------------------------------------------------------------------------------


class SeeObjectStorage(msgspec.Struct):
    """Chunks that the producer has put into its own object store."""

    prefix: Prefix
    count: Annotated[int, Meta(ge=0, le=1 << 40)]


class Direct(msgspec.Struct):
    """Chunks in the request itself."""

    contents: list[Octets | None]


class ChunkContents(msgspec.Struct, rename="pascal"):
    """Where chunks are: one of the two."""

    see_object_storage: SeeObjectStorage | None = None
    direct: Direct | None = None


class Insert(msgspec.Struct):
    """The body of a new submission."""

    chunk_contents: ChunkContents
    metadata: Octets | None = None
    strategic_metadata: dict[str, Int64] | None = None
    chunk_size: Int64 | None = None


_insert = msgspec.json.Decoder(Insert)
_pairs = msgspec.json.Decoder(dict[str, Int64])


def read_insert(body: bytes) -> Insert:
    """The body of a new submission.

    Raises:
        BadMessage: it is none.
    """
    try:
        insert = _insert.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise BadMessage(str(error)) from error
    contents = insert.chunk_contents
    if (contents.see_object_storage is None) == (contents.direct is None):
        raise BadMessage("Either `SeeObjectStorage` or `Direct` is needed - at `$.chunk_contents`")
    return insert


def read_pairs(body: bytes) -> dict[str, int]:
    """The strategic metadata to look for.

    Raises:
        BadMessage: it is not that.
    """
    try:
        return _pairs.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise BadMessage(str(error)) from error


# --- consumers --------------------------------------------------------------------------------------------------------


class PreferDistinct(msgspec.Struct):
    """Prefer what has nothing in flight."""

    meta_key: str
    underlying: Literal["Random", "Oldest", "Newest"] | Nested


class Nested(msgspec.Struct, rename="pascal"):
    """The one strategy that has others inside."""

    prefer_distinct: PreferDistinct


Strategy = Literal["Random", "Oldest", "Newest"] | Nested


class WantToReserveChunks(msgspec.Struct):
    """Ask for chunks; answered when there are some."""

    max: Annotated[int, Meta(ge=0)]
    strategy: Strategy


class ChunkId(msgspec.Struct, frozen=True):
    """The name of a chunk."""

    submission_id: Id
    chunk_index: Id


class CompleteChunk(msgspec.Struct):
    """A chunk is done; not answered."""

    id: ChunkId
    output_content: Octets | bytes | None = None


class FailChunk(msgspec.Struct):
    """An attempt failed; not answered."""

    id: ChunkId
    failure: str


class Request(msgspec.Struct, rename="pascal"):
    """What a consumer may say: one of the three."""

    want_to_reserve_chunks: WantToReserveChunks | None = None
    complete_chunk: CompleteChunk | None = None
    fail_chunk: FailChunk | None = None


class Envelope(msgspec.Struct):
    """A message of a consumer, numbered."""

    nonce: Annotated[int, Meta(ge=0)]
    contents: Request


def read_request(message: bytes) -> tuple[int, WantToReserveChunks | CompleteChunk | FailChunk]:
    """A message of a consumer: its nonce, and what it wants.

    Raises:
        BadMessage: it is not that.
    """
    try:
        envelope = msgspec.convert(cbor2.loads(message), Envelope)
    except (cbor2.CBORDecodeError, msgspec.ValidationError, RecursionError, TypeError, ValueError) as error:
        raise BadMessage(str(error)) from error
    said = envelope.contents
    given = [one for one in (said.want_to_reserve_chunks, said.complete_chunk, said.fail_chunk) if one is not None]
    if len(given) != 1:
        raise BadMessage("One request is needed - at `$.contents`")
    return envelope.nonce, given[0]


def init(connection_id: str, heartbeat_s: int, missable_count: int) -> bytes:
    """The first message to a consumer."""
    interval = {"secs": heartbeat_s, "nanos": 0}
    said = {"max_missable_heartbeats": missable_count, "heartbeat_interval": interval}
    return cbor2.dumps({"Init": {**said, "version_info": VERSION, "conn_id": connection_id}})


def chunks_reserved(nonce: int, pairs: Iterable[tuple[dict[str, Any], dict[str, Any]]]) -> bytes:
    """The answer to a reserve: chunks, each with its submission."""
    return _sync(nonce, {"Ok": [list(pair) for pair in pairs]})


def nothing_wanted(nonce: int) -> bytes:
    """The answer to a reserve of no chunks."""
    return _sync(nonce, {"Err": []})


def reservation_expired(submission_id: int, index: int) -> bytes:
    """Tell a consumer that others may have a chunk of its now."""
    chunk = {"submission_id": submission_id, "chunk_index": index}
    return cbor2.dumps({"Async": {"ChunkReservationExpired": chunk}})


def _sync(nonce: int, reserved: dict[str, Any]) -> bytes:
    return cbor2.dumps({"Sync": {"nonce": nonce, "contents": {"ChunksReserved": reserved}}})

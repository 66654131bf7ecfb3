"""Frames: a 4-byte big-endian length, then that many bytes of MessagePack: an array of messages.

This file owns the byte format and its limits; it must not do I/O or know any message by name.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import cache
from typing import Any, Generic, TypeVar, cast, get_args

import msgspec

from opsq.errors import ProtocolError, UsageError
from opsq.printable import printable
from opsq.units import counted
from opsq.wire.messages import Reply, Request

FRAME_LIMIT_BYTES = 16 << 20
"""The longest frame that either side sends or accepts by default: 16 MiB."""

_REASON_CHARACTERS = 200

T = TypeVar("T")

_encoder = msgspec.msgpack.Encoder()


class ImpossibleRequest(msgspec.Struct, frozen=True):
    """What stands for a request with a field that cannot be: `error` is its answer. `id` None: it wants none."""

    id: int | None
    error: UsageError


def encode(messages: Sequence[Request | Reply]) -> bytes:
    """Encode messages, in order, as one frame."""
    frame = bytearray(4)
    _encoder.encode_into(messages, frame, 4)
    frame[:4] = (len(frame) - 4).to_bytes(4, "big")
    return bytes(frame)


def encode_requests(requests: Sequence[Request]) -> bytes:
    """Encode requests, in order, as one frame.

    Raises:
        UsageError: a field of one has a value that no message can carry; it is named.
    """
    try:
        return encode(requests)
    except (ValueError, TypeError, OverflowError, RecursionError):
        from opsq.wire.impossible_fields import UNENCODABLE, unencodable  # hot verbs do without it

        for request in requests:
            try:
                _encoder.encode(request)
            except UNENCODABLE as error:
                raise unencodable(request, error) from error
        raise


class UndecodableFrame(ValueError):
    """Bytes are not the messages that were wanted; the text says why, printable and short whatever they are."""


def decode(decoder: msgspec.msgpack.Decoder[T], frame: bytes | memoryview) -> T:
    """Decode one frame without its length.

    Raises:
        UndecodableFrame: it is not what the decoder wants, has text that is not UTF-8, or is nested too deeply.
    """
    try:
        return decoder.decode(frame)
    except (ValueError, RecursionError) as error:  # msgspec's own errors are ValueErrors too
        raise UndecodableFrame(printable(str(error))[:_REASON_CHARACTERS]) from error


class FrameReader(Generic[T]):
    """Decodes a stream of bytes into messages; keeps incomplete frames.

    Args:
        decoder: what a frame must hold.
        limit_bytes: the longest frame allowed.
        salvage: decodes the messages of a frame apart after `decoder` has refused it as a whole.
    """

    def __init__(
        self,
        decoder: msgspec.msgpack.Decoder[list[T]],
        limit_bytes: int = FRAME_LIMIT_BYTES,
        salvage: Callable[[bytes | memoryview], list[T]] | None = None,
    ) -> None:
        self._decoder = decoder
        self._salvage = salvage
        self._limit_bytes = limit_bytes
        self._buffer = bytearray()

    def feed(self, data: bytes | bytearray | memoryview) -> Iterator[T]:
        """Add received bytes; yields the messages of every frame that is now complete.

        Raises:
            ProtocolError: a frame exceeds the limit, or is not a list of known messages with fields in range (of
                requests: with ids in range); the stream cannot be used any more.
        """
        buffer = self._buffer
        if not buffer and type(data) is bytes and len(data) - 4 == int.from_bytes(data[:4], "big") <= self._limit_bytes:
            yield from self._decode(
                memoryview(data)[4:]
            )  # exactly one frame, the usual case: nothing needs to be copied
            return
        buffer += data
        start = 0
        try:
            while len(buffer) - start >= 4:
                length = int.from_bytes(buffer[start : start + 4], "big")
                if length > self._limit_bytes:
                    raise ProtocolError(
                        f"A frame of {counted(length, 'byte')} exceeds the limit of "
                        f"{counted(self._limit_bytes, 'byte')}."
                    )
                end = start + 4 + length
                if len(buffer) < end:
                    break
                frame = bytes(memoryview(buffer)[start + 4 : end])
                start = end
                yield from self._decode(frame)
        finally:
            del buffer[:start]

    def _decode(self, frame: bytes | memoryview) -> list[T]:
        try:
            try:
                return decode(self._decoder, frame)
            except UndecodableFrame:
                if self._salvage is None:
                    raise
            return self._salvage(frame)
        except UndecodableFrame as error:
            raise ProtocolError(f"A frame of {counted(len(frame), 'byte')} cannot be decoded: {error}.") from error


# Created on first use: each takes milliseconds, and neither side needs the other's.


@cache
def _requests() -> msgspec.msgpack.Decoder[list[Request | ImpossibleRequest]]:
    return cast("msgspec.msgpack.Decoder[list[Request | ImpossibleRequest]]", msgspec.msgpack.Decoder(list[Request]))


@cache
def _replies() -> msgspec.msgpack.Decoder[list[Reply]]:
    return msgspec.msgpack.Decoder(list[Reply])


@cache
def _kinds() -> dict[str, type[Request]]:
    return {kind.__name__: kind for kind in get_args(Request)}


def _decode_apart(frame: bytes | memoryview) -> list[Request | ImpossibleRequest]:
    """Decode each request of a frame by itself."""
    from opsq.wire.impossible_fields import refusal  # rarely needed

    found: list[Request | ImpossibleRequest] = []
    for raw in decode(msgspec.msgpack.Decoder(list[msgspec.Raw]), frame):
        try:
            name, *fields = decode(msgspec.msgpack.Decoder(list[Any]), raw)
        except (UndecodableFrame, ValueError) as error:
            raise UndecodableFrame(str(error)) from error
        kind = _kinds().get(name) if isinstance(name, str) else None
        if kind is None:
            raise UndecodableFrame(f"Invalid value {printable(str(name))[:_REASON_CHARACTERS]!r}")
        try:
            found.append(decode(msgspec.msgpack.Decoder(kind), raw))
        except UndecodableFrame as error:
            request_id = fields[0] if "id" in kind.__struct_fields__ and fields else None
            is_answerable = type(request_id) is int and 0 <= request_id < 1 << 63  # a boolean is an int, too
            if "id" in kind.__struct_fields__ and not is_answerable:
                raise
            found.append(ImpossibleRequest(request_id, refusal(kind, str(error))))
    return found


def request_reader(limit_bytes: int = FRAME_LIMIT_BYTES) -> FrameReader[Request | ImpossibleRequest]:
    """Return a reader for the daemon's side; a request with an impossible field costs no other its answer."""
    return FrameReader(_requests(), limit_bytes, _decode_apart)


def received(requests: Sequence[Request]) -> list[Request | ImpossibleRequest]:
    """The requests as a daemon would receive them, for an engine in the same process.

    Raises:
        UsageError: as `encode_requests`.
    """
    return list(request_reader(1 << 62).feed(encode_requests(requests)))


def reply_reader(limit_bytes: int = FRAME_LIMIT_BYTES) -> FrameReader[Reply]:
    """Return a reader for the client's side."""
    return FrameReader(_replies(), limit_bytes)

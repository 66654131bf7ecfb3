"""Frames: a 4-byte big-endian length, then that many bytes of MessagePack: an array of messages.

This file owns the byte format and its limits; it does no I/O and knows no message by name.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cache
from typing import Generic, TypeVar

import msgspec

from opsq.errors import ProtocolError
from opsq.wire.messages import Reply, Request

FRAME_LIMIT_BYTES = 16 << 20
"""The longest frame either side sends or accepts, by default 16 MiB."""

T = TypeVar("T")

_encoder = msgspec.msgpack.Encoder()


def encode(messages: Sequence[Request | Reply]) -> bytes:
    """One frame with these messages, in order."""
    frame = bytearray(4)
    _encoder.encode_into(messages, frame, 4)
    frame[:4] = (len(frame) - 4).to_bytes(4, "big")
    return bytes(frame)


class FrameReader(Generic[T]):
    """Turns a stream of bytes into messages; keeps what is incomplete.

    Args:
        decoder: what a frame must hold.
        limit_bytes: the longest frame allowed.
    """

    def __init__(self, decoder: msgspec.msgpack.Decoder[list[T]], limit_bytes: int = FRAME_LIMIT_BYTES) -> None:
        self._decoder = decoder
        self._limit_bytes = limit_bytes
        self._buffer = bytearray()

    def feed(self, data: bytes | bytearray | memoryview) -> Iterator[T]:
        """Add received bytes; yields the messages of every frame that is now complete.

        Raises:
            ProtocolError: the frame is longer than the limit, or is not a list of known messages with fields in range. The stream cannot
                be used any more.
        """
        buffer = self._buffer
        if not buffer and type(data) is bytes and len(data) - 4 == int.from_bytes(data[:4], "big") <= self._limit_bytes:
            yield from self._decode(memoryview(data)[4:])  # one whole frame, as most arrive: nothing needs to be copied
            return
        buffer += data
        start = 0
        try:
            while len(buffer) - start >= 4:
                length = int.from_bytes(buffer[start : start + 4], "big")
                if length > self._limit_bytes:
                    raise ProtocolError(f"A frame of {length} bytes is over the limit of {self._limit_bytes} bytes.")
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
            return self._decoder.decode(frame)
        except msgspec.DecodeError as error:
            raise ProtocolError(f"A frame of {len(frame)} bytes cannot be understood: {error}.") from error


# Made when first needed: each takes milliseconds, of which a hot verb has few, and neither side needs the other's.


@cache
def _requests() -> msgspec.msgpack.Decoder[list[Request]]:
    return msgspec.msgpack.Decoder(list[Request])


@cache
def _replies() -> msgspec.msgpack.Decoder[list[Reply]]:
    return msgspec.msgpack.Decoder(list[Reply])


def request_reader(limit_bytes: int = FRAME_LIMIT_BYTES) -> FrameReader[Request]:
    """A reader for the daemon's side."""
    return FrameReader(_requests(), limit_bytes)


def reply_reader(limit_bytes: int = FRAME_LIMIT_BYTES) -> FrameReader[Reply]:
    """A reader for the client's side."""
    return FrameReader(_replies(), limit_bytes)

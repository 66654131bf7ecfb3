"""Frames: a 4-byte big-endian length, then that many bytes of MessagePack: an array of messages.

This file owns the byte format and its limits; it must not do I/O or know any message by name.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cache
from typing import Generic, TypeVar

import msgspec

from opsq.errors import ProtocolError
from opsq.printable import printable
from opsq.wire.messages import Reply, Request

FRAME_LIMIT_BYTES = 16 << 20
"""The longest frame that either side sends or accepts by default: 16 MiB."""

_REASON_CHARACTERS = 200

T = TypeVar("T")

_encoder = msgspec.msgpack.Encoder()


def encode(messages: Sequence[Request | Reply]) -> bytes:
    """Encode messages, in order, as one frame."""
    frame = bytearray(4)
    _encoder.encode_into(messages, frame, 4)
    frame[:4] = (len(frame) - 4).to_bytes(4, "big")
    return bytes(frame)


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
    """

    def __init__(self, decoder: msgspec.msgpack.Decoder[list[T]], limit_bytes: int = FRAME_LIMIT_BYTES) -> None:
        self._decoder = decoder
        self._limit_bytes = limit_bytes
        self._buffer = bytearray()

    def feed(self, data: bytes | bytearray | memoryview) -> Iterator[T]:
        """Add received bytes; yields the messages of every frame that is now complete.

        Raises:
            ProtocolError: a frame exceeds the limit, or is not a list of known messages with fields in range; the
                stream cannot be used any more.
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
                    raise ProtocolError(f"A frame of {length} bytes exceeds the limit of {self._limit_bytes} bytes.")
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
            return decode(self._decoder, frame)
        except UndecodableFrame as error:
            raise ProtocolError(f"A frame of {len(frame)} bytes cannot be decoded: {error}.") from error


# Created on first use: each takes milliseconds, and neither side needs the other's.


@cache
def _requests() -> msgspec.msgpack.Decoder[list[Request]]:
    return msgspec.msgpack.Decoder(list[Request])


@cache
def _replies() -> msgspec.msgpack.Decoder[list[Reply]]:
    return msgspec.msgpack.Decoder(list[Reply])


def request_reader(limit_bytes: int = FRAME_LIMIT_BYTES) -> FrameReader[Request]:
    """Return a reader for the daemon's side."""
    return FrameReader(_requests(), limit_bytes)


def reply_reader(limit_bytes: int = FRAME_LIMIT_BYTES) -> FrameReader[Reply]:
    """Return a reader for the client's side."""
    return FrameReader(_replies(), limit_bytes)

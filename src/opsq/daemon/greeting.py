"""The first frame of a connection, which must hold one Hello and nothing else.

This file must not judge the hello. Nothing larger is buffered and nothing else is decoded before it.
"""

from __future__ import annotations

import msgspec

from opsq.errors import ProtocolError
from opsq.wire.frames import UndecodableFrame, decode
from opsq.wire.messages import Hello

HELLO_LIMIT_BYTES = 8192
"""Limit of the first frame."""

_hellos: msgspec.msgpack.Decoder[list[Hello]] = msgspec.msgpack.Decoder(list[Hello])


class Greeting:
    """Collects the first frame."""

    def __init__(self) -> None:
        self._received = bytearray()

    def feed(self, received: bytes) -> tuple[Hello, bytes] | None:
        """Add received bytes; the hello and the bytes after it once it is complete.

        Raises:
            ProtocolError: the frame is too long, or holds something else.
        """
        frame = self._received
        frame += received
        if len(frame) < 4:
            return None
        end = 4 + int.from_bytes(frame[:4], "big")
        if end > 4 + HELLO_LIMIT_BYTES:
            raise ProtocolError(
                f"The first frame must hold a Hello of at most {HELLO_LIMIT_BYTES} bytes; this one has {end - 4}."
            )
        if len(frame) < end:
            return None
        try:
            hellos = decode(_hellos, bytes(frame[4:end]))
        except UndecodableFrame as error:
            raise ProtocolError(f"The first frame must hold a Hello, but cannot be decoded: {error}.") from error
        if len(hellos) != 1:
            raise ProtocolError("The first frame must hold one Hello and nothing else.")
        return hellos[0], bytes(frame[end:])

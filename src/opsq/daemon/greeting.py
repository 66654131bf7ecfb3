"""The first frame of a connection, which must hold one Hello and nothing else, and the Welcome that answers it.

This file must not judge tokens and names. Nothing larger is buffered and nothing else is decoded before it.
"""

from __future__ import annotations

import msgspec

from opsq.errors import ProtocolError, VersionMismatch
from opsq.queue.engine import Engine
from opsq.settings import Settings
from opsq.version import __version__
from opsq.wire.frames import UndecodableFrame, decode
from opsq.wire.messages import VERSION, Hello, Welcome

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


def check_version(hello: Hello) -> None:
    """Refuse a client of another version of the protocol.

    Raises:
        VersionMismatch: it is one.
    """
    if hello.version != VERSION:
        raise VersionMismatch(
            f"The client uses protocol version {hello.version}, the daemon ({__version__}) version {VERSION}.",
            hint="Install the same opsq on both sides, and restart the daemon after an upgrade.",
        )


def welcome(
    hello: Hello, consumer: str, settings: Settings, store_marker: str, engine: Engine, *, is_operator: bool
) -> Welcome:
    """The answer to a hello that was accepted."""
    return Welcome(
        id=hello.id,
        version=VERSION,
        server=__version__,
        consumer=consumer,
        heartbeat_s=settings.heartbeat_s,
        frame_limit_bytes=settings.frame_limit_bytes,
        chunk_limit_bytes=settings.chunk_limit_bytes,
        is_operator=is_operator,
        is_durable=settings.is_durable,
        store=settings.store,
        store_marker=store_marker,
        shard=engine.shard,
        rules_revision=engine.rules_revision,
        makers=engine.makers,
    )

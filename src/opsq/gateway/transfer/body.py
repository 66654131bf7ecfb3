"""The body of a request as a thread reads it: what comes in, and what it holds if it is compressed, within bounds.

It must not look for chunks or parts. At most two pieces of a body are in memory; the client waits for the rest.
"""

from __future__ import annotations

import asyncio
import io
from collections import deque
from concurrent.futures import CancelledError, Future
from typing import IO, cast

from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request

from opsq.content.input_file import decompressor
from opsq.errors import InputUnreadable

CODINGS = {"gzip": ".gz", "x-gzip": ".gz", "zstd": ".zst"}
"""The values of Content-Encoding, and the suffix of such a file."""
WINDOW_LOG = 23
"""What is sent as zstd may ask for 8 MiB, as browsers and RFC 9659 have it."""
INFLATION_FREE_BYTES = 64 << 20
INFLATION_LIMIT = 200
"""What a compressed body holds may be so many times as long, beyond the first bytes."""
_AHEAD_BYTES = 1 << 20


class Body(io.RawIOBase):
    """What a client sends. Made on the event loop; read by one thread.

    Attributes:
        read_bytes: how much was read.
    """

    def __init__(self, request: Request) -> None:
        super().__init__()
        self._receive = request.receive
        self._is_whole = False
        self._loop = asyncio.get_running_loop()
        self._held: deque[memoryview] = deque()
        self._ahead: Future[list[memoryview]] | None = None
        self._failure: Exception | None = None
        self.read_bytes = 0

    def readable(self) -> bool:
        """It is."""
        return True

    def readinto(self, buffer: memoryview, /) -> int:  # type: ignore[override]  # all that is read into is one
        """Fill a part of `buffer`; returns 0 at the end.

        Raises:
            ClientDisconnect: the client has gone.
        """
        if not self._held:
            ahead = self._ahead or self._fetch()
            try:
                self._held.extend(ahead.result())
            except CancelledError:
                raise self._failure or EOFError from None
            self._ahead = self._fetch() if self._held else ahead
        count = 0
        while self._held and count < len(buffer):
            piece = self._held.popleft()
            taken = min(len(piece), len(buffer) - count)
            buffer[count : count + taken] = piece[:taken]
            count += taken
            if taken < len(piece):
                self._held.appendleft(piece[taken:])
        self.read_bytes += count
        return count

    def end(self, failure: Exception) -> None:
        """Have whoever reads it fail; called on the event loop."""
        self._failure = failure
        if self._ahead is not None:
            self._ahead.cancel()

    def _fetch(self) -> Future[list[memoryview]]:
        return asyncio.run_coroutine_threadsafe(self._next(), self._loop)

    async def _next(self) -> list[memoryview]:
        """The next pieces; none at the end."""
        if self._failure is not None:
            raise self._failure
        found: list[memoryview] = []
        size = 0
        while size < _AHEAD_BYTES and not self._is_whole:
            message = await self._receive()
            if message["type"] == "http.disconnect":
                raise ClientDisconnect
            self._is_whole = not message.get("more_body", False)
            if piece := message.get("body", b""):
                found.append(memoryview(piece))
                size += len(piece)
        return found


class Inflated(io.RawIOBase):
    """What a compressed stream holds.

    Args:
        packed: the stream.
        suffix: of such a file.
        name: for messages.
        body: what it came with, whose length bounds what comes out.
    """

    def __init__(self, packed: io.RawIOBase | io.BufferedIOBase, suffix: str, name: str, body: Body) -> None:
        super().__init__()
        self._plain, self._errors = decompressor(suffix, cast("IO[bytes]", packed), WINDOW_LOG)
        self._name = name
        self._body = body
        self._given_bytes = 0

    def readable(self) -> bool:
        """It is."""
        return True

    def readinto(self, buffer: memoryview, /) -> int:  # type: ignore[override]  # as above
        """Fill a part of `buffer`; returns 0 at the end.

        Raises:
            InputUnreadable: it is damaged, or ends too early.
            HTTPException: it holds far more than was sent.
        """
        try:
            count = self._plain.readinto(buffer)
        except self._errors as error:
            raise InputUnreadable(f"{self._name} cannot be decompressed: {str(error).rstrip('.')}.") from error
        self._given_bytes += count
        if self._given_bytes > INFLATION_FREE_BYTES + INFLATION_LIMIT * self._body.read_bytes:
            raise HTTPException(
                413, f"{self._name} is compressed, and holds more than {INFLATION_LIMIT} times what was sent."
            )
        return count

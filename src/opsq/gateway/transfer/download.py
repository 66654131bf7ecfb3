"""Gives the results of a submission out in chunk order, page by page, as a client takes them.

It must not decide which are wanted. Only a page of rows and a piece of about 1 MiB are in memory.
"""

from __future__ import annotations

import asyncio
import logging
from bisect import bisect_right
from collections import OrderedDict
from collections.abc import AsyncIterator, Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

import msgspec
from starlette.types import Send

from opsq.client.aio.queue import AsyncQueue
from opsq.client.core.result_pages import ResultCursor
from opsq.content.content_store import Store
from opsq.content.manifest import decode
from opsq.content.result_joiner import Result, content_of, join_pieces, range_of, size_of
from opsq.content.result_shaping import ResultShaping
from opsq.documents.shape import ErrorShape, text_or_base64
from opsq.documents.submissions import ResultShape
from opsq.errors import OpsqError, WorkFailed
from opsq.gateway.stream import Stream
from opsq.gateway.transfer.byte_range import ByteRange
from opsq.gateway.waiting import Stopping, unless
from opsq.wire.messages import ResultRows

EXTENTS_LIMIT_COUNT = 64
_GATHER_BYTES = 1 << 18
_log = logging.getLogger("opsq.gateway")

Shape = Callable[[Iterable[Result], Store, str], Iterator[bytes]]
"""Makes pieces of the results of a page; large ones are in a folder of the store."""


class Extent(NamedTuple):
    """How long the results of a submission are that has ended.

    Args:
        size_bytes: of all.
        indexes: the first chunk of each page.
        offsets: where its result begins among all.
        folder: of the submission in the store.
    """

    size_bytes: int
    indexes: list[int]
    offsets: list[int]
    folder: str


@dataclass
class Download:
    """The results of one submission.

    Args:
        cursor: before the first of them.
        stopping: set when the gateway begins to end: what has yet to come is not waited for then; None: all is there.

    Attributes:
        state: of the submission, as of the last page.
    """

    queue: AsyncQueue
    cursor: ResultCursor
    stopping: asyncio.Event | None = None
    folder: str = ""
    state: str = field(default="", init=False)

    async def as_bytes(self, shaping: ResultShaping) -> AsyncIterator[bytes]:
        """All of them, one after the other."""

        def shape(results: Iterable[Result], store: Store, folder: str) -> Iterator[bytes]:
            return join_pieces(shaping.apply(results, store, folder), store, folder)

        while not self.cursor.is_done:
            async for piece in self._pieces(shape):
                yield piece

    async def range(self, extent: Extent, wanted: ByteRange) -> AsyncIterator[bytes]:
        """The bytes of a range of all."""
        self.folder = extent.folder
        for number in range(bisect_right(extent.offsets, wanted.low) - 1, len(extent.offsets)):
            offset = extent.offsets[number]
            if offset >= wanted.high:
                return
            self.cursor.index = extent.indexes[number]

            def shape(results: Iterable[Result], store: Store, folder: str, offset: int = offset) -> Iterator[bytes]:
                low, high = max(wanted.low - offset, 0), wanted.high - offset
                return join_pieces(range_of(results, low, high), store, folder)

            async for piece in self._pieces(shape):
                yield piece

    async def as_json(self) -> AsyncIterator[bytes]:
        """The document of `opsq results --json`; it says at its end if it lacks some."""
        yield b'{"results":['
        separator, failure = b"", None
        try:
            while not self.cursor.is_done:
                async for piece in self._pieces(_encoded(b",", b"")):
                    yield separator + piece[1:]
                    separator = b","
        except OpsqError as error:
            failure = error
        rest = {"state": self.state} | ({} if failure is None else {"error": ErrorShape.of(failure)})
        yield b"]," + msgspec.json.encode(rest)[1:]

    async def as_lines(self) -> AsyncIterator[bytes]:
        """A line of JSON for each; the last one is an error if some are lacking."""
        try:
            while not self.cursor.is_done:
                async for piece in self._pieces(_encoded(b"", b"\n")):
                    yield piece
        except OpsqError as error:
            yield msgspec.json.encode({"error": ErrorShape.of(error)}) + b"\n"

    async def extent(self) -> Extent:
        """How long all of them are; reads no content."""
        found = Extent(0, [], [], "")
        while not self.cursor.is_done:
            found.indexes.append(self.cursor.index)
            found.offsets.append(found.size_bytes)
            page = await self._page()
            count_bytes = await asyncio.to_thread(sum, map(size_of, self.cursor.take(page)))
            found = found._replace(size_bytes=found.size_bytes + count_bytes, folder=self.folder)
        return found

    async def _pieces(self, shape: Shape) -> AsyncIterator[bytes]:
        """The next page; nothing empty."""
        page = await self._page()
        store = await asyncio.to_thread(lambda: self.queue.contents.store)
        pieces = shape(self.cursor.take(page), store, self.folder)
        while (piece := await asyncio.to_thread(next, pieces, None)) is not None:
            if piece:
                yield piece

    async def _page(self) -> ResultRows:
        link = self.queue.link
        page = await unless(self.stopping, link.call(self.cursor.request(link.next_id()), ResultRows))
        self.state = page.state
        if page.content:  # only the first page has it
            self.folder = decode(page.content).folder
        return page


class Extents:
    """Those that were found out lately, by the entity tags of the results."""

    def __init__(self) -> None:
        self._known: OrderedDict[str, Extent] = OrderedDict()

    async def of(self, etag: str, download: Download) -> Extent:
        """How long results are, which are found by a download of their own if that is not known."""
        found = self._known.get(etag)
        if found is None:
            found = self._known[etag] = await download.extent()
            if len(self._known) > EXTENTS_LIMIT_COUNT:
                self._known.popitem(last=False)
        return found


class Streamed(Stream):
    """An answer that comes in pieces. If it cannot be completed, the connection is closed, by which a client sees it.

    Args:
        pieces: of the body.
        name: of what is given, for the log.
    """

    def __init__(
        self, pieces: AsyncIterator[bytes], name: str, status_code: int, headers: dict[str, str], media_type: str
    ) -> None:
        super().__init__(pieces, status_code, headers, media_type)
        self._name = name

    async def stream_response(self, send: Send) -> None:
        """Send the pieces."""
        try:
            await super().stream_response(send)
        except (Stopping, WorkFailed):
            pass  # nothing that whoever runs the gateway could change
        except OpsqError as error:
            _log.warning("%s ended early: %s", self._name, error)


def _encoded(before: bytes, after: bytes) -> Shape:
    """Each result as JSON, with something before and behind it."""

    def shape(results: Iterable[Result], store: Store, folder: str) -> Iterator[bytes]:
        gathered = bytearray()
        try:
            for result in results:
                shown = ResultShape(**text_or_base64(content_of(result, store, folder)))
                gathered += before + msgspec.json.encode(shown) + after
                if len(gathered) >= _GATHER_BYTES:
                    yield bytes(gathered)
                    gathered.clear()
        except OpsqError:
            yield bytes(gathered)
            raise
        yield bytes(gathered)

    return shape

"""Writes the body of a request into the store as the content of a submission, in a thread of its own.

Nothing is left of it unless all of it came. It must not read options, nor submit anything.
"""

from __future__ import annotations

import asyncio
import io
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import cast

from starlette.exceptions import HTTPException
from starlette.requests import Request

from opsq.client.aio.queue import AsyncQueue
from opsq.content.content_writer import ContentWriter
from opsq.content.input_chunks import InputStream
from opsq.content.input_file import COMPRESSED, StrippedStream, suffix_of
from opsq.content.manifest import Content
from opsq.content.splitter import Splitting
from opsq.errors import UsageError
from opsq.gateway.transfer.body import CODINGS, Body, Inflated
from opsq.gateway.transfer.parts import Part, Parts

UPLOADS_LIMIT_COUNT = 64
"""At most so many bodies come in at once."""
LEAVE_S = 8.0
"""A body that is still coming in so long after the gateway began to end is given up."""
ATTACHMENT_LIMIT_BYTES = 1 << 20
"""As the daemon has it."""
_INFLATED = frozenset({".gz", ".bz2", ".zst"})
"""Parts with such names are taken as what they hold; an `.xz` may ask for any amount of memory."""
_PEEK_BYTES = 1 << 18


class Uploads:
    """The bodies that come in to this process."""

    def __init__(self) -> None:
        self._threads = ThreadPoolExecutor(UPLOADS_LIMIT_COUNT, "opsq-upload")
        self._count = 0

    async def write(
        self, request: Request, queue: AsyncQueue, splitting: Splitting, request_key: bytes, stopping: asyncio.Event
    ) -> tuple[Content, bytes | None]:
        """Read the body and write the content of a submission; also the attachment that is a part of it.

        Args:
            stopping: set when the gateway begins to end.

        Raises:
            ClientDisconnect: the client has gone.
            HTTPException: it is too slow or too large, or there are too many others.
            OpsqError: as `ContentWriter`, or the body is none of a form.
        """
        coding = request.headers.get("content-encoding", "identity").strip().lower()
        if coding not in {*CODINGS, "identity"}:
            raise HTTPException(415, f"The coding {coding} is not known.", {"Accept-Encoding": "gzip, zstd"})
        if self._count >= UPLOADS_LIMIT_COUNT:
            raise HTTPException(503, f"{self._count} bodies are coming in already.")
        body = Body(request)
        job = partial(
            _write,
            body,
            CODINGS.get(coding, ""),
            request.headers.get("content-type", ""),
            splitting,
            queue,
            request_key,
        )
        loop = asyncio.get_running_loop()
        self._count += 1
        writing = loop.run_in_executor(self._threads, job)
        writing.add_done_callback(self._ended)
        leaving = loop.create_task(_leave(stopping))
        try:
            await asyncio.wait((writing, leaving), return_when=asyncio.FIRST_COMPLETED)
            if not writing.done():
                body.end(HTTPException(503, "The gateway is stopping."))
            return await asyncio.shield(writing)
        finally:
            leaving.cancel()
            body.end(HTTPException(503, "The request was given up."))
            await asyncio.wait((writing,))

    def _ended(self, _: object) -> None:
        self._count -= 1


async def _leave(stopping: asyncio.Event) -> None:
    await stopping.wait()
    await asyncio.sleep(LEAVE_S)


def _write(
    body: Body, coding: str, content_type: str, splitting: Splitting, queue: AsyncQueue, request_key: bytes
) -> tuple[Content, bytes | None]:
    stream = Inflated(body, coding, "The body", body) if coding else body
    welcome = queue.link.welcome
    attachment: bytes | None = None
    files_count = 0
    with ContentWriter(
        queue.contents.store,
        request_key.hex(),
        chunk_limit_bytes=welcome.chunk_limit_bytes,
        is_durable=welcome.is_durable,
    ) as writer:
        if not content_type.startswith("multipart/"):
            writer.write_stream(_shaped(stream, splitting), splitting, "body")
            return writer.finish(), None
        for part in Parts(stream, content_type):
            if part.name == "attachment":
                attachment = _attachment(part)
            elif part.filename is None:
                raise UsageError(
                    f"The part {part.name[:100]!r} is no file.",
                    hint="Options are parameters of the query; a file has a filename: curl -F file=@access.log",
                )
            else:
                files_count += 1
                name = part.filename or part.name
                writer.write_stream(_shaped(_opened(part, name, splitting, body), splitting), splitting, name)
        if not files_count:
            raise UsageError("No part of the body is a file.", hint="For example: curl -F file=@access.log")
        return writer.finish(), attachment


def _shaped(stream: io.RawIOBase | io.BufferedIOBase, splitting: Splitting) -> InputStream:
    """What is to be cut."""
    found = cast(InputStream, stream)
    return StrippedStream(found.readinto) if splitting.strips_crlf else found


def _opened(part: Part, name: str, splitting: Splitting, body: Body) -> io.RawIOBase | io.BufferedIOBase:
    """A part as `opsq submit` opens a file: as what it holds, if its name and its bytes say that it is compressed."""
    suffix = suffix_of(name)
    if not splitting.decompresses or suffix not in COMPRESSED:
        return part
    file = io.BufferedReader(part, _PEEK_BYTES)
    if not file.peek().startswith(COMPRESSED[suffix]):
        return file
    if suffix not in _INFLATED:
        raise UsageError(f"{name} is compressed in a way that is not taken.", hint="Send what it holds, or use gzip.")
    return Inflated(file, suffix, name, body)


def _attachment(part: Part) -> bytes:
    found = io.BufferedReader(part).read(ATTACHMENT_LIMIT_BYTES + 1)
    if len(found) > ATTACHMENT_LIMIT_BYTES:
        raise HTTPException(413, f"An attachment may have {ATTACHMENT_LIMIT_BYTES} bytes.")
    return found

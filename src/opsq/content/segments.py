"""Cuts one stream into segments of bounded size, each of whole chunks, so that work starts before the stream ends.

This file must not submit anything; the caller provides a writer for the content of each segment.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from opsq.content.content_writer import ContentWriter
from opsq.content.input_chunks import InputStream, cut_stream
from opsq.content.manifest import Content
from opsq.content.splitter import DEFAULT_CHUNK_LIMIT_BYTES, Splitting

FIRST_BYTES = 4 << 20
"""Size of the first segment, small so that work starts soon; each next one is twice as large, up to the largest."""
LARGEST_BYTES = 64 << 20


def cut_segments(
    stream: InputStream,
    name: str,
    splitting: Splitting,
    open_writer: Callable[[], ContentWriter],
    *,
    chunk_limit_bytes: int = DEFAULT_CHUNK_LIMIT_BYTES,
) -> Iterator[Content]:
    """Write a whole stream in segments.

    Args:
        stream: read from its current position.
        name: for messages.
        splitting: the rule.
        open_writer: creates a writer for the next segment.
        chunk_limit_bytes: larger chunks are refused.

    Yields:
        Each segment as soon as it is complete, in order; at least one, with no chunks if the stream is empty.

    Raises:
        OpsqError: as `ContentWriter.write_stream`; yielded segments are kept, the unfinished one is deleted.
    """
    writer, start, position, limit_bytes = open_writer(), 0, 0, FIRST_BYTES
    try:
        for content, ends, header in cut_stream(stream, name, splitting, chunk_limit_bytes):
            known = position + len(content)
            if ends and ends[-1] >= position and ends[-1] - start >= limit_bytes:
                cut = ends[-1]
                writer.append(content[: cut - position], [end - start for end in ends], header, name, splitting, start)
                yield writer.finish()
                writer, start, limit_bytes = open_writer(), cut, min(limit_bytes * 2, LARGEST_BYTES)
                writer.append(content[cut - position :], [], header, name, splitting, start)
            else:
                writer.append(content, [end - start for end in ends], header, name, splitting, start)
            position = known
        if position > start or not start:
            yield writer.finish()
    finally:
        writer.abort()

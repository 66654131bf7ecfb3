"""Cuts one stream into contents of bounded size, each of whole chunks, so that work on the first begins before the stream ends.

This file must not submit anything; a writer for each content is made by whoever asks.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from opsq.content.content_writer import ContentWriter
from opsq.content.input_chunks import InputStream, cut_stream
from opsq.content.manifest import Content
from opsq.content.splitter import DEFAULT_CHUNK_LIMIT_BYTES, Splitting

FIRST_BYTES = 4 << 20
"""The first one is small, so that work begins soon; each next one is twice as large, up to the largest."""
LARGEST_BYTES = 64 << 20


def cut_segments(
    stream: InputStream,
    name: str,
    splitting: Splitting,
    open_writer: Callable[[], ContentWriter],
    *,
    chunk_limit_bytes: int = DEFAULT_CHUNK_LIMIT_BYTES,
) -> Iterator[Content]:
    """Write a stream to its end, in segments.

    Args:
        stream: read from where it stands.
        name: for messages.
        splitting: the rule.
        open_writer: makes a writer for the next segment.
        chunk_limit_bytes: a larger chunk is refused.

    Yields:
        Each segment as soon as it is whole, in the order of the stream: at least one, without a chunk if the stream is empty.

    Raises:
        OpsqError: as `ContentWriter.write_stream`; what was yielded stays, of the segment under way nothing is left.
    """
    writer, start, position, limit_bytes = open_writer(), 0, 0, FIRST_BYTES
    try:
        for content, ends, header in cut_stream(stream, name, splitting, chunk_limit_bytes):
            known = position + len(content)
            if ends and ends[-1] >= position and ends[-1] - start >= limit_bytes:
                cut = ends[-1]
                writer.append(content[: cut - position], [end - start for end in ends], header, name, splitting)
                yield writer.finish()
                writer, start, limit_bytes = open_writer(), cut, min(limit_bytes * 2, LARGEST_BYTES)
                writer.append(content[cut - position :], [], header, name, splitting)
            else:
                writer.append(content, [end - start for end in ends], header, name, splitting)
            position = known
        if position > start or not start:
            yield writer.finish()
    finally:
        writer.abort()

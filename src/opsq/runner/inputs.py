"""What a program is fed: the content of a chunk, in memory or as a range of an open file, and how many records that is.

This file must not start anything; who gets a range closes its descriptor.
"""

from __future__ import annotations

import os

from opsq.client.chunk import Chunk
from opsq.runner.driven import DrivenConsumer
from opsq.runner.pipes import Range

SHORT_BYTES = 1 << 16
"""Up to this size a chunk is read; to open a longer one and have the system send it costs less than the copy."""
_READ_BYTES = 1 << 18


def content_of(consumer: DrivenConsumer, chunk: Chunk) -> bytes | Range:
    """The content of a chunk that `consumer` holds.

    Raises:
        NotFound: its submission was removed.
        ContentMissing, ContentChanged: it cannot be had.
    """
    reader = consumer.reader(chunk.submission_id)
    content = reader.read_short(chunk.index, SHORT_BYTES)
    if content is not None:
        return content
    place = reader.open_range(chunk.index)
    if place is None:
        return reader.read(chunk.index)
    return Range(place.descriptor, place.offset_bytes, place.size_bytes, reader.header, f"Chunk {chunk.submission_id}/{chunk.index}")


def operations_count(stdin: bytes | Range, separator: bytes) -> int:
    """How many records a chunk has; what follows the last separator is one too. Cost: a look at each of its bytes."""
    if isinstance(stdin, bytes):
        return stdin.count(separator) + (bool(stdin) and not stdin.endswith(separator))
    count, offset, end = 0, stdin.offset, stdin.offset + stdin.length
    piece = b""
    while offset < end and (read := os.pread(stdin.fd, min(_READ_BYTES, end - offset), offset)):
        offset += len(read)
        piece = (piece[1 - len(separator) :] if len(separator) > 1 else b"") + read  # a separator may lie across the cut
        count += piece.count(separator)
    return count + (bool(piece) and not piece.endswith(separator))

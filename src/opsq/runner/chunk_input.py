"""What a program is fed: the content of a chunk, in memory or as a range of an open file, and how many records that is.

This file must not start programs.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from opsq.client.sync.chunk import Chunk
from opsq.errors import OpsqError
from opsq.runner.polled_consumer import PolledConsumer
from opsq.runner.process.pipes import Range

if TYPE_CHECKING:
    from concurrent.futures import Future, ThreadPoolExecutor

AHEAD_COUNT = 16
AHEAD_BYTES = 32 << 20
"""At most this many chunks, or bytes of them, are read ahead from a service."""
SHORT_BYTES = 1 << 16
"""Up to this size a chunk is read; to open a longer one and have the system send it costs less than the copy."""
_READ_BYTES = 1 << 18


class ChunkInputs:
    """The contents of the chunks of one consumer. For one thread; `close` it.

    In a service over the network each read waits for an answer, and programs would start one answer apart however many
    slots there are: chunks that are reserved and not started are read ahead there, several at a time.

    Args:
        consumer: holds the chunks.
    """

    def __init__(self, consumer: PolledConsumer) -> None:
        self._consumer = consumer
        self._threads: ThreadPoolExecutor | None = None
        self._ahead: dict[tuple[int, int], Future[bytes]] = {}

    def content_of(self, chunk: Chunk) -> bytes | Range:
        """The content of a chunk; who gets a range closes its descriptor.

        Raises:
            NotFound: its submission was removed.
            ContentMissing, ContentChanged: it cannot be had.
        """
        reader = self._consumer.reader(chunk.submission_id)
        if reader.is_remote:
            started = self._ahead.pop((chunk.submission_id, chunk.index), None)
            self._read_ahead()
            return reader.read(chunk.index) if started is None else started.result()
        content = reader.read_short(chunk.index, SHORT_BYTES)
        if content is not None:
            return content
        place = reader.open_range(chunk.index)
        if place is None:
            return reader.read(chunk.index)
        return Range(
            place.descriptor,
            place.offset_bytes,
            place.size_bytes,
            reader.header,
            f"Chunk {chunk.submission_id}/{chunk.index}",
        )

    def close(self) -> None:
        """Begin no read any more."""
        if self._threads is not None:
            self._threads.shutdown(wait=False, cancel_futures=True)

    def _read_ahead(self) -> None:
        """Read what comes next, and forget what was read for others: their chunks were given back or taken away."""
        from concurrent.futures import ThreadPoolExecutor  # 5 ms that only this needs

        if self._threads is None:
            self._threads = ThreadPoolExecutor(AHEAD_COUNT, "opsq-inputs")
        wanted: dict[tuple[int, int], Future[bytes]] = {}
        room_bytes = AHEAD_BYTES
        for key in self._consumer.upcoming(AHEAD_COUNT):
            submission_id, index = key
            try:
                described, reader = self._consumer.describe(submission_id), self._consumer.reader(submission_id)
                room_bytes -= reader.size(index)
                if room_bytes < 0:
                    break
                if reader.is_remote:
                    wanted[key] = self._ahead.get(key) or self._threads.submit(
                        self._consumer.read_here, described, index
                    )
            except OpsqError:
                break  # reported when its turn comes
        self._ahead = wanted


def operations_count(stdin: bytes | Range, separator: bytes) -> int:
    """How many records a chunk has; what follows the last separator is one too. Cost: a look at each of its bytes."""
    if isinstance(stdin, bytes):
        return stdin.count(separator) + (bool(stdin) and not stdin.endswith(separator))
    count, offset, end = 0, stdin.offset, stdin.offset + stdin.length
    piece = b""
    while offset < end and (read := os.pread(stdin.fd, min(_READ_BYTES, end - offset), offset)):
        offset += len(read)
        piece = (piece[1 - len(separator) :] if len(separator) > 1 else b"") + read  # a separator may span the cut
        count += piece.count(separator)
    return count + (bool(piece) and not piece.endswith(separator))

"""Follow-ups of a chunk, as programs describe them: their content is written here, before the completion leaves.

This file sends nothing. What it wrote for a completion that is refused, the daemon sweeps up.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, Unpack

import msgspec

from opsq import traces
from opsq.client.core.arguments import converted, count
from opsq.client.core.content_access import Contents
from opsq.client.core.new_submission import (
    SubmitOptions,
    new_request_key,
    new_submission,
    write_content,
)
from opsq.client.core.unused_content import delete_content
from opsq.errors import UsageError
from opsq.serialisation import Serialisation
from opsq.units import counted
from opsq.wire.messages import FOLLOW_UPS_LIMIT, NewSubmission, Welcome

if TYPE_CHECKING:
    from opsq.content.manifest import Content

REST_BYTES = 64 << 10
"""How much of a frame is left for the rest of a completion."""


class FollowUp:
    """A submission that is made in the commit of the completion of a chunk, or not at all.

    Give it to `Chunk.complete`, or return it in `opsq.Done`. One chunk is completed once, however often it is worked
    on, so its follow-ups are made once. They come in whether there is room or not.

    Args:
        chunks: as for `Producer.submit`; read when the chunk is completed.
        serialisation: cut operations into chunks in this format; None: the chunks are bytes already.
        operations_per_chunk: how many operations go into a chunk.
        options: those of `Producer.submit`, but for `ack`: it is acknowledged with the completion.

    Raises:
        UsageError: a value is out of its range, or two cannot be combined.
    """

    __slots__ = ("_chunks", "_options", "_per_chunk", "_serialisation")

    def __init__(
        self,
        chunks: Iterable[Any],
        *,
        serialisation: Serialisation | str | None = None,
        operations_per_chunk: int = 1000,
        **options: Unpack[SubmitOptions],
    ) -> None:
        converted("chunks", chunks, iter, "an iterable of bytes")
        if options.get("ack") is not None:
            raise UsageError("A follow-up is acknowledged with its completion: leave out ack.")
        self._chunks = chunks
        self._serialisation = serialisation
        self._per_chunk = count("operations_per_chunk", operations_per_chunk)
        self._options = options
        new_submission(bytes(16), b"", 0, **options)  # complains where it is made

    def prepare(self, contents: Contents, welcome: Welcome) -> NewSubmission:
        """Write its content; what a completion carries."""
        from opsq.content.manifest import encode

        key = new_request_key()
        content = self._write(key, contents, welcome)
        return new_submission(key, encode(traces.carrying(content)), content.chunks_count, **self._options)

    def _write(self, key: bytes, contents: Contents, welcome: Welcome) -> Content:
        chunks = self._chunks
        if self._serialisation is not None:
            from opsq.client.core.operation_chunks import chunks_of

            chunks = chunks_of(chunks, self._serialisation, self._per_chunk)
        return write_content(chunks, key, contents, welcome)


Follower = FollowUp | NewSubmission
"""A follow-up, or one whose content is written already."""


def prepared(
    then: Iterable[Follower], contents: Contents, welcome: Welcome, context: traces.TraceContext | None
) -> list[NewSubmission]:
    """Write the content of follow-ups; what a completion carries.

    Args:
        context: what they belong to; None: what `traces.current` says.

    Raises:
        UsageError: one is none, or they are too many or too long for one completion.
        StoreNotVisible, ChunkTooLarge, StorageFull: as `write_content`. Nothing is left that was written here.
    """
    made: list[NewSubmission] = []
    written: list[NewSubmission] = []
    try:
        with contextlib.nullcontext() if context is None else traces.given(context):
            for one in converted("then", then, iter, "an iterable of follow-ups"):
                if not isinstance(one, FollowUp | NewSubmission):
                    raise UsageError(
                        f"One of the follow-ups is {type(one).__name__}.", hint="opsq.FollowUp(chunks, …) makes one."
                    )
                if isinstance(one, FollowUp):
                    written.append(one.prepare(contents, welcome))
                made.append(written[-1] if isinstance(one, FollowUp) else one)
                if len(made) > FOLLOW_UPS_LIMIT:
                    raise UsageError(
                        f"A chunk may have {FOLLOW_UPS_LIMIT} follow-ups.",
                        hint="Make one with many chunks, or some that make others.",
                    )
        size_bytes = len(msgspec.msgpack.encode(made))
        if size_bytes > welcome.frame_limit_bytes - REST_BYTES:
            raise UsageError(
                f"The {counted(len(made), 'follow-up')} of a chunk take "
                f"{counted(size_bytes, 'byte')}, more than a frame has room for.",
                hint="Make fewer with more chunks, or raise the daemon's frame_limit_bytes.",
            )
    except BaseException:
        delete_content(written, contents)  # what was given may be in use
        raise
    return made

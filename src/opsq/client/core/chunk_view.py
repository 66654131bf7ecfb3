"""A chunk as a function sees it that runs elsewhere than the consumer that holds it: in a worker process, in a thread.

It is read only; it knows nothing of verdicts and of the reservation.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

from opsq.ids import Handle, SubmissionId
from opsq.wire.messages import NewSubmission, SubmissionContent

if TYPE_CHECKING:
    from opsq.client.core.follow_ups import Follower
    from opsq.content.chunk_reader import ChunkReader
    from opsq.content.manifest import InputRange


class ChunkView:
    """What can be read of a chunk under the names of `Chunk`.

    Attributes:
        submission_id: the submission that it belongs to.
        index: its place in the submission, from 0.
        attempt: how many attempts failed or were lost before.
        handle: what names it for any other process.
        metadata: the strategic metadata of its submission.
        chunks_count: how many chunks its submission has.
        content: the description of the content of its submission, encoded.
    """

    def __init__(
        self,
        described: SubmissionContent,
        handle: Handle,
        open_reader: Callable[[], ChunkReader],
        read_attachment: Callable[[], bytes | None],
        prepare: Callable[[Iterable[Follower]], list[NewSubmission]],
    ) -> None:
        self.submission_id = SubmissionId(described.submission_id)
        self.index: int = handle.index
        self.attempt = handle.token.attempt
        self.handle = handle
        self.metadata = described.metadata
        self.chunks_count = described.chunks_count
        self.content = described.content
        self._open_reader = open_reader
        self._read_attachment = read_attachment
        self._prepare = prepare

    def __repr__(self) -> str:
        return f"<ChunkView {self.submission_id}/{self.index}>"

    @property
    def reader(self) -> ChunkReader:
        """What reads the chunks of its submission."""
        return self._open_reader()

    @property
    def data(self) -> bytes:
        """Its bytes, read again on each access; see `Chunk.data`."""
        return self._open_reader().read(self.index)

    @property
    def input(self) -> InputRange | None:
        """Its input; see `Chunk.input`."""
        return self._open_reader().input_of(self.index)

    def __bytes__(self) -> bytes:
        return self.data

    def attachment(self) -> bytes | None:
        """The attachment of its submission; see `Chunk.attachment`."""
        return self._read_attachment()

    def prepare(self, then: Iterable[Follower]) -> list[NewSubmission]:
        """Write the content of follow-ups; see `Chunk.prepare`."""
        return self._prepare(then)

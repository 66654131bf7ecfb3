"""What content says of submissions and their chunks, for documents: asks for the content, and reads its tables.

It must not print. What cannot be read here, because its submission was removed, or its shard or store is not seen, is
unknown.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from opsq import traces
from opsq.documents.asking import AskedForContent
from opsq.errors import OpsqError, Unreachable
from opsq.ids import mask_indexes
from opsq.wire.messages import Describe, Described, HistoryEvent

if TYPE_CHECKING:
    from opsq.content.chunk_reader import ChunkReader
    from opsq.content.content_store import Store
    from opsq.content.manifest import InputRange
    from opsq.traces import TraceContext

_ASKED_COUNT = 1000
_KEPT_COUNT = 1000


class ChunkInputs:
    """The inputs of the chunks of any submission.

    Args:
        daemon: knows the content of submissions.
    """

    def __init__(self, daemon: AskedForContent) -> None:
        self._daemon = daemon
        self._store: Store | None = None
        self._readers: dict[int, ChunkReader | None] = {}
        """By submission, the one that was asked for first first; None: nothing is known of it."""

    def of(self, submission_id: int, index: int) -> InputRange | None:
        """The input of a chunk, if it is known."""
        from opsq.content.manifest import known_input

        reader = self._reader(submission_id)
        return None if reader is None else known_input(lambda: reader.input_of(index))

    def of_events(self, events: Sequence[HistoryEvent]) -> dict[int, InputRange]:
        """The input of the first chunk of each event, by the seq of the event, as far as it is known."""
        self.look_up(event.submission_id for event in events)
        input_ranges = (
            (event.seq, self.of(event.submission_id, next(mask_indexes(event.block, event.mask))))
            for event in events
            if event.mask
        )
        return {seq: input_range for seq, input_range in input_ranges if input_range is not None}

    def names(self, submission_id: int, limit: int) -> tuple[int, list[str]]:
        """How many inputs a submission has, and the names of the first."""
        reader = self._reader(submission_id)
        try:
            return (0, []) if reader is None else reader.input_names(limit)
        except OpsqError:
            return 0, []

    def trace(self, submission_id: int) -> TraceContext | None:
        """The trace that a submission belongs to, if it is known."""
        reader = self._reader(submission_id)
        return None if reader is None else traces.of_content(reader.content)

    def _reader(self, submission_id: int) -> ChunkReader | None:
        if submission_id not in self._readers:
            self.look_up([submission_id])
        return self._readers[submission_id]

    def look_up(self, submission_ids: Iterable[int]) -> None:
        """Ask for many submissions at once, before each is asked for. Cost: a question for as many as fit a reply."""
        from opsq.content.chunk_reader import ChunkReader
        from opsq.content.manifest import decode

        wanted = [found for found in dict.fromkeys(submission_ids) if found not in self._readers]
        while len(self._readers) > _KEPT_COUNT:
            del self._readers[next(iter(self._readers))]
        while wanted:
            asked = wanted[:_ASKED_COUNT]
            try:
                described = self._daemon.call(Describe(self._daemon.next_id(), asked), Described).submissions
            except Unreachable as error:
                if not error.cause:
                    raise
                described = []  # a shard is away
            # What stands behind the last that came may only not have fitted.
            seen = asked.index(described[-1].submission_id) + 1 if described else len(asked)
            self._readers.update(dict.fromkeys(asked[:seen]))
            for found in described:
                try:
                    self._readers[found.submission_id] = ChunkReader(self._open_store(), decode(found.content))
                except OpsqError:
                    continue
            wanted = wanted[seen:]

    def _open_store(self) -> Store:
        from opsq.content.store_kinds import open_store

        if self._store is None:
            self._store = open_store(self._daemon.store_url)
        return self._store

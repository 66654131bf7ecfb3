"""Which submission holds a unique key, also one whose commit is in progress. Must not refuse anything."""

from __future__ import annotations

import apsw

from opsq.ids import SubmissionId
from opsq.store import arriving, submissions


class UniqueKeys:
    """The unique keys of unfinished submissions."""

    def __init__(self, reader: apsw.Connection) -> None:
        self._reader = reader
        self._taken: dict[str, SubmissionId] = {}
        """Keys that will be held once the batches in progress are committed."""
        self.has_arriving = False
        """Whether submissions are moving here, which will hold their keys."""
        self.has_until_start = submissions.has_until_start(reader)
        """Whether, since the start, any submission held its unique key until a chunk of it is handed out."""

    def holder(self, unique_key: str) -> SubmissionId | None:
        """The submission that has this key now."""
        return (
            self._taken.get(unique_key)
            or submissions.by_unique_key(self._reader, unique_key)
            or (arriving.by_unique_key(self._reader, unique_key) if self.has_arriving else None)
        )

    def take(self, unique_key: str, submission_id: SubmissionId, *, until_start: bool) -> None:
        """A submission has this key once its batch is committed; `release` must follow when that has ended."""
        self._taken[unique_key] = submission_id
        self.has_until_start |= until_start

    def release(self, unique_key: str | None, submission_id: SubmissionId) -> None:
        """The batch has ended: the file says who has the key."""
        if unique_key is not None and self._taken.get(unique_key) == submission_id:
            del self._taken[unique_key]

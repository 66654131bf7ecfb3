"""A request about many dead chunks, and the entry of the batch for each of its slices.

Must not choose chunks; `dead` does.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import NamedTuple

from opsq.clock import Now
from opsq.errors import Conflict, OpsqError
from opsq.ids import SubmissionId
from opsq.queue.peer import Peer
from opsq.store.dead import Place, Where
from opsq.wire.messages import Changed, DeadFilter, DeadSelection, Drop, ErrorReply, Reply

NOTHING = DeadFilter()


class Job:
    """A request that is served slice by slice."""

    def __init__(self, peer: Peer, request: DeadSelection, where: Where, indexes: list[int] | None) -> None:
        self.peer = peer
        self.request = request
        self.where = where
        self.indexes = indexes
        """Ascending; those that are still to be looked at."""
        self.is_drop = isinstance(request, Drop)
        self.after: Place | None = (0, -1)
        self.count = 0
        self.committed_count = 0
        self.touched = 0
        """The submission of which an earlier slice has revived chunks."""
        self.refused: list[tuple[SubmissionId, SubmissionId, str]] = []
        """Submissions that cannot be revived, each with the one that has its unique key."""

    def copy(self) -> Job:
        """The job as it stands, whatever becomes of this one."""
        found = copy.copy(self)
        found.refused = [*self.refused]
        return found

    @property
    def is_whole(self) -> bool:
        """All of one submission is meant, so that it is revived even if none of its chunks is dead."""
        return self.request.submission_id is not None and self.indexes is None and self.request.where == NOTHING

    def result(self) -> Reply:
        """What to answer once the last slice is committed."""
        if not self.refused:
            return Changed(self.request.id, self.count)
        cause = "key_taken" if len(self.refused) == 1 else "keys_taken"
        submission_id, holder, unique_key = self.refused[0]
        error = Conflict(cause=cause, submission_id=submission_id, holder=holder, unique_key=unique_key)
        return ErrorReply.of(self.request.id, error, others=len(self.refused) - 1, done=self.count)


def masks_of(chunks: list[int]) -> dict[int, int]:
    """Chunks as masks by block."""
    masks: dict[int, int] = {}
    for chunk in chunks:
        masks[chunk // 64] = masks.get(chunk // 64, 0) | 1 << chunk % 64
    return masks


def refusal(job: Job, error: OpsqError) -> ErrorReply:
    """The error that ends a request, with what was committed before."""
    return ErrorReply.of(job.request.id, error, done=job.committed_count)


class Slice(NamedTuple):
    """Dead chunks of one submission that are requeued or dropped with a batch: an entry of it."""

    request_id: int
    submission_id: SubmissionId
    masks: dict[int, int]
    is_drop: bool
    settle: Callable[[Now], None]
    cancel: Callable[[Now], None]

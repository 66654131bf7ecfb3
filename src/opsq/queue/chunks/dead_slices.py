"""A request about many dead letters, and what waits for the commit of each of its slices. It must not choose letters; `letters` does."""

from __future__ import annotations

from typing import TYPE_CHECKING

from opsq.clock import Now
from opsq.errors import Conflict, OpsqError
from opsq.ids import SubmissionId
from opsq.queue.chunks.live_submission import BlockWork, LiveSubmission
from opsq.queue.state import Peer
from opsq.store.dead import Place, Where
from opsq.store.history import HistoryRow
from opsq.wire.messages import Changed, DeadFilter, DeadSelection, Drop, ErrorReply, Reply

if TYPE_CHECKING:
    from opsq.queue.chunks.dead import DeadLetters

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


def event_row(submission_id: SubmissionId, event: str, block: int, mask: int, now: Now) -> HistoryRow:
    """What the history tells of chunks that nobody holds."""
    return HistoryRow(now.wall, event, submission_id, block, mask, 0, 0, "", 0.0, 0.0, 0.0, None, None, "")


def refusal(job: Job, error: OpsqError) -> ErrorReply:
    """The error that ends a request, with what was committed before."""
    return ErrorReply.of(job.request.id, error, done=job.committed_count)


class Requeued:
    """Dead chunks of one submission that have new attempts once their batch is committed."""

    __slots__ = ("_at", "_dead_letters", "_skipped", "_submission", "_works", "masks", "request_id")

    def __init__(
        self,
        dead_letters: DeadLetters,
        request_id: int,
        submission: LiveSubmission,
        works: dict[int, BlockWork],
        masks: dict[int, int],
        skipped: int,
        at: int,
    ) -> None:
        self._dead_letters = dead_letters
        self.request_id = request_id
        self._submission = submission
        self._works = works
        self.masks = masks
        self._skipped = skipped
        self._at = at

    @property
    def submission_id(self) -> SubmissionId:
        """Whose chunks they are."""
        return self._submission.id

    def settle(self, now: Now) -> None:
        """They have."""
        self._dead_letters.settle_requeued(self._submission, self._works, self.masks, self._at)

    def cancel(self, now: Now) -> None:
        """They have not."""
        self._dead_letters.not_requeued(
            self._submission, self._works, sum(mask.bit_count() for mask in self.masks.values()) + self._skipped
        )


class Dropped:
    """Dead chunks of one submission that are given up once their batch is committed."""

    __slots__ = ("_dead_letters", "_submission", "masks", "request_id")

    def __init__(
        self, dead_letters: DeadLetters, request_id: int, submission: LiveSubmission, masks: dict[int, int]
    ) -> None:
        self._dead_letters = dead_letters
        self.request_id = request_id
        self._submission = submission
        self.masks = masks

    @property
    def submission_id(self) -> SubmissionId:
        """Whose chunks they are."""
        return self._submission.id

    def settle(self, now: Now) -> None:
        """They are."""
        self._dead_letters.settle_dropped(self._submission, self.masks)

    def cancel(self, now: Now) -> None:
        """They are not."""
        self._dead_letters.not_dropped(self._submission)

"""Replies to reserves, with the submissions whose content a connection has not been sent yet.

Owns what a reply may take of a frame for them. Must not reserve anything.
"""

from __future__ import annotations

from collections.abc import Iterable

from opsq.queue.live_submission import LiveSubmission, Reservation
from opsq.queue.peer import Peer
from opsq.queue.state import EngineState
from opsq.store import lanes, submissions
from opsq.wire.messages import Grant, Reserved, SubmissionContent

DESCRIBED_KEPT = 4_096
"""Submissions of which is remembered that a connection has their content; then all are described again."""
DESCRIPTION_BYTES = 4_096
"""What a description may have besides content: metadata, at most 64 pairs, mostly far less."""
DESCRIBED_BYTES = 4 << 20
"""Descriptions of submissions in one reply; a client asks for those that are left out."""


class Descriptions:
    """Describes submissions to those who are to read their chunks."""

    def __init__(self, state: EngineState) -> None:
        self._state = state

    def reserved(self, peer: Peer, request_id: int, reservation: Reservation, grants: list[Grant]) -> Reserved:
        """The reply to a reserve; it describes the submissions whose content this connection has not been sent yet."""
        state, sent = self._state, peer.described
        described: list[SubmissionContent] = []
        room_bytes = DESCRIBED_BYTES
        for grant in grants:
            submission_id = grant.submission_id
            if submission_id not in sent and room_bytes > 0:
                if len(sent) >= DESCRIBED_KEPT:
                    sent.clear()
                sent.add(submission_id)
                described.append(self._describe(state.live[submission_id]))
                room_bytes -= len(described[-1].content) + DESCRIPTION_BYTES
        return Reserved(request_id, reservation.id, reservation.length_s, grants, described)

    def _describe(self, submission: LiveSubmission) -> SubmissionContent:
        """What a consumer needs to read the chunks of a submission."""
        content = submission.row.short_content
        if content is None:
            content = submissions.content(self._state.reader, submission.id)
        return SubmissionContent(
            submission.id,
            submission.total,
            content,
            dict(submission.metadata),
            bool(submission.row.has_attachment),
            submission.row.submitter,
        )

    def first(self, submission_ids: Iterable[int]) -> list[SubmissionContent]:
        """The descriptions of as many of the first as fit into a reply; what there is not is left out.

        They are read from the file: who lists old work must not drive out of memory what is at work.
        """
        described: list[SubmissionContent] = []
        room_bytes = DESCRIBED_BYTES
        rows = submissions.contents(self._state.reader, submission_ids)
        for submission_id, chunks_count, content, stored, has_attachment, submitter in rows:
            metadata = {key: value for key, (_, value) in lanes.decode(stored).items()}
            described.append(
                SubmissionContent(submission_id, chunks_count, content, metadata, bool(has_attachment), submitter)
            )
            room_bytes -= len(content) + DESCRIPTION_BYTES
            if room_bytes <= 0:
                break
        return described

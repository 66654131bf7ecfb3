"""Unique keys that are held until a chunk of their submission is handed out: freed in time.

Once a consumer may have started, the key must be free, even after a crash: so the first grants of such a submission are
sent only after the commit that frees the key. Must not decide what is handed out.
"""

from __future__ import annotations

from functools import partial

from opsq.errors import OpsqError
from opsq.queue.batch import Batch, nothing_to_undo
from opsq.queue.chunks.reservations import Reservations
from opsq.queue.live_submission import LiveSubmission
from opsq.queue.peer import Peer
from opsq.queue.state import EngineState
from opsq.store import submissions
from opsq.wire.messages import HeldChunks, Reserved


class UniqueUntilStart:
    """Holds back replies until the keys of the submissions they start are free."""

    def __init__(self, state: EngineState, reservations: Reservations) -> None:
        self._state = state
        self._reservations = reservations

    def look(self) -> None:
        """Keep back those replies in the outbox that hand out of a submission whose key is to be freed by that.

        Cost: the grants in it.
        """
        state = self._state
        if not state.unique_keys.has_until_start:
            return
        kept = [entry for entry in state.outbox if isinstance(entry[1], Reserved) and self._starting(entry[1])]
        if not kept:
            return
        state.outbox[:] = [entry for entry in state.outbox if not any(entry is one for one in kept)]
        for peer, reply in kept:
            if isinstance(reply, Reserved):
                state.batch.replies.append((peer, reply))
                state.batch.started |= dict.fromkeys(self._starting(reply))
                state.batch.on_failed.append(partial(self._not_granted, peer, reply))

    def _starting(self, reply: Reserved) -> list[LiveSubmission]:
        supplies = self._state.live
        return [
            submission
            for grant in reply.grants
            if (submission := supplies.get(grant.submission_id)) is not None
            and submission.row.unique_until == submissions.UNTIL_START
        ]

    def _not_granted(self, peer: Peer, reply: Reserved, _: OpsqError) -> None:
        peer.described.clear()
        for grant in reply.grants:
            part = self._reservations.find(HeldChunks.of_grant(reply.reservation_id, grant))
            if part is not None:
                self._reservations.free(part.submission, part.work, part.mask)

    def write(self, batch: Batch) -> None:
        """Have a batch free the keys of all that it lets start, by leases too."""
        if not self._state.unique_keys.has_until_start:
            return
        leased = (
            part.submission
            for part in batch.leased.values()
            if part.submission.row.unique_until == submissions.UNTIL_START
        )
        batch.started |= dict.fromkeys(leased)
        if batch.started:
            batch.add(
                lambda _: _settle(list(batch.started)),
                nothing_to_undo,
                lambda database, batch: submissions.set_started(database.writer, [one.id for one in batch.started]),
            )


def _settle(started: list[LiveSubmission]) -> None:
    for submission in started:
        submission.row = submission.row._replace(unique_until=submissions.STARTED)

"""Copies that have come here and are not to become active: has them removed, though not their content, the source's.

Must not decide who moves submissions (`target` does), nor delete rows (`retention` does).
"""

from __future__ import annotations

from collections.abc import Iterable

from opsq.clock import Now
from opsq.errors import Conflict
from opsq.queue.batch import Batch
from opsq.queue.folding import Folding
from opsq.queue.peer import Peer
from opsq.queue.state import EngineState
from opsq.store import arriving, removals
from opsq.store.database import Database
from opsq.wire.messages import Changed, GiveUpMoved, GiveUpSource, SourceGivenUp


class GivingUp:
    """Gives copies up, for a mover or for an operator."""

    def __init__(self, state: EngineState, folding: Folding) -> None:
        self._state = state
        self._folding = folding
        state.arriving = dict(removals.on_the_way(state.reader))
        given_up = arriving.given_up(state.reader)
        if given_up:
            self._remove_later(given_up)

    def of_mover(self, peer: Peer, request: GiveUpMoved) -> None:
        """Give up what the only mover from a source names.

        Raises:
            Conflict: one of them is being written.
        """
        state = self._state
        if not state.staging.isdisjoint(request.submission_ids):
            [first, *_] = state.staging.intersection(request.submission_ids)
            raise Conflict(cause="clearing", submission_id=first)
        found = [
            known.submission_id
            for one in dict.fromkeys(request.submission_ids)
            if (known := arriving.find(state.reader, one)) is not None
            and known.source == request.source
            and not known.is_given_up
            and one not in state.activating
        ]
        self._give_up(found)
        state.batch.replies.append((peer, Changed(request.id, len(found))))

    def of_source(self, peer: Peer, request: GiveUpSource, _: Now) -> None:
        """Give up what has come from a source that is gone for good.

        A copy that is not complete cannot be what a source has given away; one that is complete may be all there is.
        What is being written or activated is left.
        """
        state = self._state
        under_way = state.staging | state.activating
        known = arriving.listed(state.reader, request.source)
        found = [
            one.submission_id
            for one in known
            if (request.with_complete or one.next_slice is not None) and one.submission_id not in under_way
        ]
        self._give_up(found)
        state.batch.replies.append((peer, SourceGivenUp(request.id, len(found), len(known) - len(found))))

    def _give_up(self, submission_ids: Iterable[int]) -> None:
        """Have these removed."""
        state, ids, batch = self._state, list(submission_ids), self._state.batch

        def end(_: Now) -> None:
            state.staging.difference_update(ids)

        def write(database: Database, _: Batch) -> None:
            for submission_id in ids:
                arriving.give_up(database.writer, submission_id)

        state.staging.update(ids)
        batch.add(end, end, write)
        batch.after.append(lambda _: self._remove_later(ids))

    def _remove_later(self, ids: list[int]) -> None:
        """Have what was given up removed, as soon as its history is folded: what is not can only be found by a scan."""
        state, folding = self._state, self._folding

        def remove(_: Now) -> None:
            for submission_id in ids:
                removed = state.arriving.pop(submission_id, None)
                if removed is not None:
                    state.removing[submission_id] = removed

        folding.after(folding.last_seq, remove)

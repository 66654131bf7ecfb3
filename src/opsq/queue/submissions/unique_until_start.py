"""Unique keys that are held until a chunk of their submission is handed out (`--unique-until start`): freeing them in time.

Whoever may have begun to work must find the key free, also after a crash: so nobody is told of the first grants of such a submission before
it is committed that the key is free. Must not decide what is handed out.
"""

from __future__ import annotations

from functools import partial

from opsq.clock import Now
from opsq.errors import OpsqError
from opsq.queue.batch import Batch
from opsq.queue.chunks.live_submission import Supply
from opsq.queue.chunks.reservations import Reservations
from opsq.queue.state import Core, Peer
from opsq.store import submissions
from opsq.store.database import Database
from opsq.wire.messages import HeldChunks, Reserved


class Starts:
    """Sees to it that submissions have started before anybody is told so."""

    def __init__(self, core: Core, reservations: Reservations) -> None:
        self._core = core
        self._reservations = reservations

    def look(self) -> None:
        """Keep back those replies in the outbox that hand out of a submission whose key is to be freed by that. Cost: the grants in it."""
        core = self._core
        if not core.has_until_start:
            return
        kept = [entry for entry in core.outbox if isinstance(entry[1], Reserved) and self._starting(entry[1])]
        if not kept:
            return
        core.outbox[:] = [entry for entry in core.outbox if not any(entry is one for one in kept)]
        for peer, reply in kept:
            if isinstance(reply, Reserved):
                core.batch.replies.append((peer, reply))
                core.batch.started |= dict.fromkeys(self._starting(reply))
                core.batch.on_failed.append(partial(self._not_granted, peer, reply))

    def _starting(self, reply: Reserved) -> list[Supply]:
        supplies = self._core.supplies
        return [
            supply
            for grant in reply.grants
            if (supply := supplies.get(grant.submission_id)) is not None
            and supply.row.unique_until == submissions.UNTIL_START
        ]

    def _not_granted(self, peer: Peer, reply: Reserved, _: OpsqError) -> None:
        peer.described.clear()
        for grant in reply.grants:
            held = HeldChunks(
                grant.submission_id, grant.block, grant.mask, reply.reservation_id, grant.attempt, grant.mask, grant.mac
            )
            part = self._reservations.find(held)
            if part is not None:
                self._reservations.free(part.supply, part.work, part.mask)

    def write(self, batch: Batch) -> None:
        """Have a batch free the keys of all that it lets start, by leases too."""
        if not self._core.has_until_start:
            return
        leased = (
            part.supply for part in batch.leased.values() if part.supply.row.unique_until == submissions.UNTIL_START
        )
        batch.started |= dict.fromkeys(leased)
        if batch.started:
            batch.statements.append(_free_keys)
            batch.entries += [_Started(supply) for supply in batch.started]


def _free_keys(database: Database, batch: Batch) -> None:
    submissions.set_started(database.writer, [supply.id for supply in batch.started])


class _Started:
    __slots__ = ("_supply",)

    def __init__(self, supply: Supply) -> None:
        self._supply = supply

    def settle(self, now: Now) -> None:
        self._supply.row = self._supply.row._replace(unique_until=submissions.STARTED)

    def cancel(self, now: Now) -> None:
        """The key is held as before."""

"""Writes a batch into its transaction; if a row of it cannot be written, finds out whose it is, request by request.

It must not commit, and does not know what requests mean: it has them handled again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial
from typing import NoReturn

import apsw

from opsq.clock import Now
from opsq.errors import OpsqError, Refused
from opsq.queue.batch import Again, Batch, request_id
from opsq.queue.peer import Peer
from opsq.queue.state import EngineState
from opsq.store.database import Deposed
from opsq.wire.messages import ErrorReply

_OF_A_ROW = (
    apsw.SQLError,
    apsw.ConstraintError,
    apsw.MismatchError,
    apsw.RangeError,
    apsw.TooBigError,
    apsw.BindingsError,
)
"""What SQLite says of a row. All else it says is about the file, which would refuse any row."""


class BatchWriter:
    """Writes batches.

    Args:
        ended: is called for a batch that is gone.
        prepare: adds to a batch what its requests bring with them.
    """

    def __init__(self, state: EngineState, ended: Callable[[Batch], None], prepare: Callable[[Batch], None]) -> None:
        self._state = state
        self._ended = ended
        self._prepare = prepare

    def write(self, batch: Batch, now: Now) -> list[Again] | None:
        """Begin a transaction, and write a batch.

        Returns:
            None: it is written. Else it was undone, and the transaction with it: what `write_apart` is to handle again.

        Raises:
            apsw.Error: the file takes no rows. The batch is to be cancelled.
            Deposed: the file has another owner.
        """
        database = self._state.database
        database.begin()
        try:
            batch.apply(database, now)
        except Exception as error:
            if not _is_of_a_row(error) or not database.rollback():
                raise
            batch.cause = error
            return self._undo(batch, now)
        return None

    def write_apart(self, requests: list[Again], batch: Batch, now: Now) -> bool:
        """Handle requests again, each under a savepoint, and gather in `batch` what could be written.

        Returns:
            Whether one of them was refused for its rows; False: they came from something else.

        Raises:
            apsw.Error, Deposed: as `write`. `batch` is to be cancelled, which refuses what is left.
        """
        state = self._state
        state.database.begin()
        has_found = False
        for number, (verb, peer, request) in enumerate(requests):
            rest, state.batch = state.batch, Batch()
            state.batch.told_count, state.batch.tried_rows = batch.told_count, batch.tried_rows
            state.attempt(peer, request_id(request), partial(verb, peer, request, now))
            own, state.batch = state.batch, rest
            self._prepare(own)
            own.first_seq = batch.next_seq
            try:
                with state.database.savepoint():
                    own.apply(state.database, now)
            except Exception as error:  # noqa: BLE001  # the request gets it as an answer
                if not _is_of_a_row(error):
                    batch.absorb(own)
                    self._give_up(requests[number + 1 :], batch, error)
                has_found = True
                self._ended(own)
                answer = error if isinstance(error, OpsqError) else state.report(error)
                state.outbox += [(one, reply) for one, reply in own.cancel(answer, now) if one.is_connected]
            else:
                batch.absorb(own)
        return has_found

    def _undo(self, batch: Batch, now: Now) -> list[Again]:
        """Cancel a batch, and take the answer from those of its requests that are handled again.

        The others are refused, as for lack of room: clients ask again after a while.
        """
        outbox = self._state.outbox
        said_before = len(outbox)
        again: dict[tuple[object, int], Again] = {}
        for one in batch.again:
            again.setdefault((one[1], request_id(one[2])), one)
        self._ended(batch)
        refusals = batch.cancel(Refused(cause="batch_undone"), now)
        said = [*outbox[said_before:], *refusals]
        del outbox[said_before:]
        outbox += [
            (peer, reply)
            for peer, reply in said
            if peer.is_connected and not (isinstance(reply, ErrorReply) and (peer, reply.id) in again)
        ]
        return list(again.values())

    def _give_up(self, left: Iterable[Again], batch: Batch, error: Exception) -> NoReturn:
        """The file takes no rows: what was not handled again is refused with the batch."""
        batch.on_failed += [partial(self._refuse, peer, request_id(request)) for _, peer, request in left]
        raise error

    def _refuse(self, peer: Peer, number: int, error: OpsqError) -> None:
        self._state.reply(peer, ErrorReply.of(number, error))


def _is_of_a_row(error: Exception) -> bool:
    return isinstance(error, _OF_A_ROW) or not isinstance(error, apsw.Error | Deposed | OSError)

"""What a mover asks after one was killed: which submissions are on their way."""

from __future__ import annotations

from opsq.queue.peer import Peer
from opsq.queue.state import EngineState
from opsq.store import arriving, moved
from opsq.wire.messages import DepartedSubmission, Moves, ShowMoves

LISTED = 10_000


def show_moves(state: EngineState, peer: Peer, request: ShowMoves) -> None:
    """Answer with the identity of the file, and what is on its way from it and to it."""
    coming = [] if request.source is None else arriving.listed(state.reader, request.source, LISTED)
    state.reply(
        peer,
        Moves(
            request.id,
            moved.identity(state.reader),
            [DepartedSubmission(*row) for row in moved.unconfirmed(state.reader, request.after, LISTED)],
            [row.submission_id for row in coming],
        ),
    )

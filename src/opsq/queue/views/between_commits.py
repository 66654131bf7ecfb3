"""When questions are answered: while a batch is being committed the file is ahead of memory, so they wait for its end.

Then all views say the same at any instant. Must not know what is asked.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from opsq.clock import Now
from opsq.errors import OpsqError
from opsq.queue.peer import Peer
from opsq.queue.state import EngineState
from opsq.wire.messages import ErrorReply

Answer = Callable[[Peer, Any, Now], None]


class BetweenCommits:
    """Puts questions off."""

    def __init__(self, state: EngineState, is_committing: Callable[[], bool]) -> None:
        self._state = state
        self._is_committing = is_committing
        self._waiting: list[Callable[[Now], None]] = []

    def put_off(self, answer: Answer) -> Answer:
        """`answer`, called at once, or as soon as no commit is under way."""

        def ask(peer: Peer, request: Any, now: Now) -> None:
            if self._is_committing():
                self._waiting.append(partial(self._answer_late, answer, peer, request))
            else:
                answer(peer, request, now)

        return ask

    def serve(self, now: Now) -> None:
        """A commit has ended: answer what has waited for that."""
        waiting, self._waiting = self._waiting, []
        for ask in waiting:
            ask(now)

    def _answer_late(self, answer: Answer, peer: Peer, request: Any, now: Now) -> None:
        try:
            answer(peer, request, now)
        except OpsqError as error:
            self._state.reply(peer, ErrorReply.of(request.id, error))

"""When questions are answered: while a batch is being committed the file is ahead of memory, so they wait for its end.

Then all views say the same at any instant. Must not know what is asked.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from opsq.clock import Now
from opsq.queue.peer import Peer
from opsq.queue.state import EngineState

Answer = Callable[[Peer, Any, Now], None]


class BetweenCommits:
    """Puts questions off."""

    def __init__(self, state: EngineState, is_committing: Callable[[], bool]) -> None:
        self._state = state
        self._is_committing = is_committing
        self._waiting: list[tuple[Answer, Peer, Any]] = []

    def __len__(self) -> int:
        return len(self._waiting)

    def put_off(self, answer: Answer) -> Answer:
        """`answer`, called at once, or as soon as no commit is under way."""

        def ask(peer: Peer, request: Any, now: Now) -> None:
            if self._is_committing():
                self._waiting.append((answer, peer, request))
            else:
                answer(peer, request, now)

        return ask

    def serve(self, now: Now) -> None:
        """A commit has ended: answer what has waited for that."""
        waiting, self._waiting = self._waiting, []
        for answer, peer, request in waiting:
            self._state.attempt(peer, request.id, partial(answer, peer, request, now))

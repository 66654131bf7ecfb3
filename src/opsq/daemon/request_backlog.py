"""Connections with requests that were received and not handled: some requests in each turn of the event loop.

The more connections have some, the fewer of each are handled at once, and of long answers there are few in a turn: who
sends one request waits for some milliseconds, not for what all others have sent. While enough wait for a commit, none
of these is handled: at its end all would be, in one turn. This file must not know requests.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import islice
from typing import Protocol

TURN_REQUESTS = 256
"""Requests that are handled in one turn, all of one connection if no other has any."""

TURN_LONG_ANSWERS = 4
"""Of all requests in a turn, so many may have an answer of megabytes."""

COMMIT_REQUESTS = 512
"""So many may wait for a commit before those that were kept have to wait for it too."""


class Behind(Protocol):
    """A connection with requests to be handled."""

    def go_on(self, most: int) -> int:
        """Handle some; returns how many. With more left it adds itself again."""


class RequestBacklog:
    """Connections that wait for their turn, in order.

    Args:
        soon: has a function called in the next turn of the event loop, after replies were written.
        committing_count: how many requests wait for a commit now.
    """

    def __init__(self, soon: Callable[[Callable[[], None]], object], committing_count: Callable[[], int]) -> None:
        self._soon = soon
        self._committing_count = committing_count
        self._waiting: dict[Behind, None] = {}
        self._has_turn = False
        self._long_left = TURN_LONG_ANSWERS

    @property
    def share(self) -> int:
        """How many requests of one connection may be handled at once now."""
        return max(TURN_REQUESTS // (len(self._waiting) + 1), 1)

    def may_answer_long(self) -> bool:
        """Whether there may be one more long answer in this turn, which is counted; else its request waits for one."""
        self._long_left -= 1
        return self._long_left >= 0

    def add(self, connection: Behind) -> None:
        """Give a connection a turn, after the others."""
        self._waiting[connection] = None
        self.wake()

    def wake(self) -> None:
        """Have the next turn come, if there is anything to do; to be called after each commit."""
        if self._waiting and not self._has_turn and not self._is_full():
            self._has_turn = True
            self._soon(self._turn)

    def forget(self, connection: Behind) -> None:
        """A connection has ended; harmless for one that does not wait."""
        self._waiting.pop(connection, None)

    def _turn(self) -> None:
        share, left = max(TURN_REQUESTS // max(len(self._waiting), 1), 1), TURN_REQUESTS
        self._long_left = TURN_LONG_ANSWERS
        for connection in list(islice(self._waiting, TURN_REQUESTS)):
            if left <= 0 or self._is_full():
                break
            self._waiting.pop(connection, None)
            left -= connection.go_on(share)
        self._has_turn = False
        self.wake()

    def _is_full(self) -> bool:
        return self._committing_count() >= COMMIT_REQUESTS

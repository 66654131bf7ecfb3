"""Connections with requests that were received and not handled: some requests in each turn of the event loop.

The more connections have some, the fewer of each are handled at once, and of long answers there are few in a turn: who
sends one request waits for some milliseconds, not for what all others have sent. When many send something in one turn,
only the first are handled as it arrives. While enough wait for a commit, none of those that are kept is handled: at its
end all would be, in one turn. This file must not know requests.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from itertools import islice
from typing import Protocol

TURN_REQUESTS = 256
"""Requests that are handled in one turn, all of one connection if no other has any; as many more as they arrive."""

TURN_LONG_ANSWERS = 4
"""Of all requests in a turn, so many may have an answer of megabytes."""

TURN_LONG_S = 0.005
"""After so long there are no more of these in a turn; one always comes."""

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
        clock: seconds.
    """

    def __init__(
        self,
        soon: Callable[[Callable[[], None]], object],
        committing_count: Callable[[], int],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._soon = soon
        self._committing_count = committing_count
        self._clock = clock
        self._waiting: dict[Behind, None] = {}
        self._waiting_long: dict[Behind, None] = {}
        """Those whose next request has a long answer."""
        self._has_turn = False
        self._arriving_left = TURN_REQUESTS
        self._long_left = TURN_LONG_ANSWERS
        self._long_until_s = 0.0

    @property
    def share(self) -> int:
        """How many requests of one connection may be handled as they arrive; 0: it must wait for its turn."""
        return min(max(TURN_REQUESTS // (self._count() + 1), 1), self._arriving_left)

    def note_arrived(self, count: int) -> None:
        """So many were handled as they arrived."""
        self._arriving_left = max(self._arriving_left - count, 0)

    def note_written(self) -> None:
        """Replies were written: a turn of the event loop is over."""
        self._arriving_left = TURN_REQUESTS
        self.wake()

    def may_answer_long(self) -> bool:
        """Whether there may be one more long answer in this turn, which is counted; else its request waits for one."""
        may_answer = self._has_room_for_long()
        self._long_left -= 1
        return may_answer

    def add(self, connection: Behind, *, is_long: bool = False) -> None:
        """Give a connection a turn, after the others.

        Args:
            is_long: its next request has a long answer.
        """
        (self._waiting_long if is_long else self._waiting)[connection] = None
        self.wake()

    def wake(self) -> None:
        """Have the next turn come, if there is anything to do."""
        if self._count() and not self._has_turn and not self._is_full():
            self._has_turn = True
            self._soon(self._turn)

    def forget(self, connection: Behind) -> None:
        """A connection has ended; harmless for one that does not wait."""
        self._waiting.pop(connection, None)
        self._waiting_long.pop(connection, None)

    def _turn(self) -> None:
        share, left = max(TURN_REQUESTS // max(self._count(), 1), 1), TURN_REQUESTS
        self._long_left, self._long_until_s = TURN_LONG_ANSWERS, self._clock() + TURN_LONG_S
        for connection in list(islice(self._waiting_long, TURN_LONG_ANSWERS)):
            if not self._has_room_for_long() or self._is_full():
                break
            self._waiting_long.pop(connection, None)
            left -= connection.go_on(share)
        for connection in list(islice(self._waiting, TURN_REQUESTS)):
            if left <= 0 or self._is_full():
                break
            self._waiting.pop(connection, None)
            left -= connection.go_on(share)
        self._has_turn = False
        self.wake()

    def _count(self) -> int:
        return len(self._waiting) + len(self._waiting_long)

    def _has_room_for_long(self) -> bool:
        left = self._long_left
        return left == TURN_LONG_ANSWERS or (left > 0 and self._clock() < self._long_until_s)

    def _is_full(self) -> bool:
        return self._committing_count() >= COMMIT_REQUESTS

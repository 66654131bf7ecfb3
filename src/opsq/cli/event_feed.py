"""Where events come from: the daemon, the one after it if it is restarted, or the file of one that is stopped.

It must not know what is done with them.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterator, Sequence

from opsq.cli.caller import Caller
from opsq.cli.lasting_connection import LastingConnection
from opsq.cli.stopped_queue import asked
from opsq.documents.asking import Asked
from opsq.documents.event_cursor import EventCursor
from opsq.errors import UsageError
from opsq.wire.messages import EventRows, Events

NOW, OLDEST = EventCursor(-1), EventCursor(-2)
"""Words in place of cursors."""


def cursor(origin: str, text: str) -> EventCursor:
    """A cursor, or a word in place of one."""
    if text in {"oldest", "now"}:
        return OLDEST if text == "oldest" else NOW
    if (place := EventCursor.parse(text)) is not None:
        return place
    raise UsageError(f"{origin} {text}: give the cursor of an event, oldest or now.")


class Feed:
    """Answers with pages of events."""

    def __init__(self, daemon: Asked) -> None:
        self._daemon = daemon

    def page(self, since: EventCursor | None, limit: int, wait_s: float, kinds: Sequence[str] = ()) -> EventRows:
        """The next events behind a cursor (None: from the oldest); none after `wait_s` without one."""
        seq, at = since or (None, None)
        request = Events(self._daemon.next_id(), seq, limit, wait_s, list(kinds), at)
        return self._daemon.call(request, EventRows)

    def newest(self) -> EventCursor:
        """The cursor behind all that there is."""
        last = self.page(None, 1, 0.0).last_seq
        return EventCursor.behind(self.page(EventCursor(max(last - 1, 0)), 1, 0.0))


@contextlib.contextmanager
def open_feed(caller: Caller, *, is_lasting: bool) -> Iterator[Feed]:
    """Events of the daemon.

    Args:
        is_lasting: wait for as long as it takes when the daemon goes away; else a stopped queue answers, too.

    Raises:
        Unreachable: no daemon answers now.
    """
    if is_lasting:
        with LastingConnection(caller, reconnect_s=math.inf) as daemon:
            yield Feed(daemon)
    else:
        with asked(caller) as answering:
            yield Feed(answering)

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
from opsq.errors import UsageError
from opsq.units import parse_count
from opsq.wire.messages import EventRows, Events

NOW, OLDEST = -1, -2
"""Words in place of cursors."""


def cursor(origin: str, text: str) -> int:
    """A cursor, or a word in place of one."""
    if text in {"oldest", "now"}:
        return OLDEST if text == "oldest" else NOW
    if (place := parse_count(text)) is not None:
        return place
    raise UsageError(f"{origin} {text}: give the cursor of an event, oldest or now.")


class Feed:
    """Answers with pages of events."""

    def __init__(self, daemon: Asked) -> None:
        self._daemon = daemon

    def page(self, since: int | None, limit: int, wait_s: float, kinds: Sequence[str] = ()) -> EventRows:
        """The next events behind a cursor; none after `wait_s` without one."""
        request = Events(self._daemon.next_id(), since, limit, wait_s, list(kinds))
        return self._daemon.call(request, EventRows)

    def newest(self) -> int:
        """The cursor behind all that there is."""
        return self.page(None, 1, 0.0).last_seq


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

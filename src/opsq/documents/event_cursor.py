"""How far a reader of events has come, and how that is written.

It must not know what happens at an event.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from opsq.wire.messages import EventRows

PATTERN = "^[0-9]{1,18}(@-?[0-9]{1,18})?$"


class EventCursor(NamedTuple):
    """Behind an event: its number, and when it was.

    In a queue that was put back to an older state, another event gets this number later. The instant tells them apart.
    """

    seq: int
    at: int | None = None
    """In ms since 1970; None: not known, and not compared."""

    def __str__(self) -> str:
        return str(self.seq) if self.at is None else f"{self.seq}@{self.at}"

    @classmethod
    def parse(cls, text: str) -> EventCursor | None:
        """Parse a cursor, with or without an instant; None: the text is none."""
        if re.match(PATTERN, text) is None:
            return None
        seq, _, at = text.partition("@")
        return cls(int(seq), int(at) if at else None)

    @classmethod
    def behind(cls, page: EventRows) -> EventCursor:
        """Behind a page of events."""
        return cls(page.next_since, page.next_at)

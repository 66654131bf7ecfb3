"""Replies that peers do not read, over all connections: many slow ones must not take the memory of the machine.

Each connection has a limit of its own, which this file does not know. It must not write anything.
"""

from __future__ import annotations

from typing import Protocol

from opsq.units import format_size

LIMIT_BYTES = 512 << 20
"""How much all slow peers together may leave unread."""


class Slow(Protocol):
    """A connection whose peer does not read."""

    @property
    def unread_bytes(self) -> int:
        """What it has not read now."""

    def cut_off(self, why: str) -> None:
        """Close at once."""


class Unread:
    """Slow connections, the one that is slow for longest first."""

    def __init__(self) -> None:
        self._sizes: dict[Slow, int] = {}
        self._total_bytes = 0

    def note(self, connection: Slow) -> None:
        """A slow connection was written to.

        Effects: over the limit, those that are slow for longest are closed.
        """
        size_bytes = connection.unread_bytes
        self._total_bytes += size_bytes - self._sizes.get(connection, 0)
        self._sizes[connection] = size_bytes
        if self._total_bytes > LIMIT_BYTES:
            self._sizes = {each: each.unread_bytes for each in self._sizes}  # they may have read since
            self._total_bytes = sum(self._sizes.values())
            while self._total_bytes > LIMIT_BYTES:
                slowest = next(iter(self._sizes))
                self.forget(slowest)
                slowest.cut_off(f"is the slowest of those that leave {format_size(LIMIT_BYTES)} of replies unread")

    def forget(self, connection: Slow) -> None:
        """A connection reads again, or has ended; harmless for one that was never slow."""
        self._total_bytes -= self._sizes.pop(connection, 0)

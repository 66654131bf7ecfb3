"""One connection, as the engine knows it. Must not refer to what it holds or waits for except by ids."""

from __future__ import annotations

import secrets

from opsq.clock import MonoNs, Now


class Peer:
    """A connected producer or consumer."""

    __slots__ = ("consumer", "described", "heard", "is_connected", "reservation_ids", "watches")

    def __init__(self, name: str, now: Now) -> None:
        self.consumer = f"{name or 'anonymous'}-{secrets.token_hex(4)}"
        self.heard: MonoNs = now.mono
        """When it last sent something: heartbeats keep its reservations."""
        self.is_connected = True
        self.reservation_ids: dict[int, None] = {}
        """What it holds by its connection, oldest first."""
        self.watches: dict[int, int] = {}
        """Submission by the request that waits for its end or its results."""
        self.described: set[int] = set()
        """Submissions whose content it has been sent."""

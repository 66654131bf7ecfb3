"""One connection, as the engine knows it. Must not refer to what it holds or waits for except by ids."""

from __future__ import annotations

import secrets

from opsq.clock import MonoNs, Now
from opsq.errors import Refused, UsageError

PARKED_LIMIT = 16_384
"""How many calls of one connection may wait: for chunks, for results, for the end of submissions, for room."""


class Peer:
    """A connected producer or consumer.

    Args:
        uid: the user of its process, if that is on this machine.
        host: where its process runs, as it says itself; "": unknown.
        pid: of that process; 0: unknown.
    """

    __slots__ = (
        "awaiting_copy",
        "consumer",
        "described",
        "heard",
        "host",
        "is_connected",
        "parked_ids",
        "pid",
        "place",
        "reservation_ids",
        "uid",
        "user",
        "watches",
    )

    def __init__(self, name: str, now: Now, uid: int | None = None, host: str = "", pid: int = 0) -> None:
        self.consumer = f"{name or 'anonymous'}-{secrets.token_hex(4)}"
        self.heard: MonoNs = now.mono
        """When it last sent something: heartbeats keep its reservations."""
        self.uid = uid
        self.host = host
        self.pid = pid
        self.user: str | None = None
        """Who it is and, in `place`, on which host, as the system or its token says; None: unknown."""
        self.place: str | None = None
        self.is_connected = True
        self.parked_ids: set[int] = set()
        """Its requests that wait."""
        self.reservation_ids: dict[int, None] = {}
        """What it holds by its connection, oldest first."""
        self.watches: dict[int, int] = {}
        """Submission by the request that waits for its end or its results."""
        self.awaiting_copy: set[int] = set()
        """Requests whose answers, which are there, have to wait until the replica has what they acknowledge."""
        self.described: set[int] = set()
        """Submissions whose content it has been sent."""

    def check_parked(self, request_id: int) -> None:
        """Refuse a call that may have to wait; what parks it has its id in `parked_ids` until it is answered.

        Raises:
            UsageError: a call with its id waits already.
            Refused: too many wait.
        """
        if request_id in self.parked_ids:
            raise UsageError(cause="id_in_use", request_id=request_id)
        if len(self.parked_ids) >= PARKED_LIMIT:
            raise Refused(cause="too_many_parked", limit=PARKED_LIMIT)

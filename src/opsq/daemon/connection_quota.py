"""How many connections there may be: greeted ones, and, apart, those that have not said hello.

This file must not read from a connection, nor know who is at its other end; it decides by counting alone.
"""

from __future__ import annotations

from typing import Protocol

from opsq.daemon.sockets import BACKLOG
from opsq.errors import OpsqError, TooManyConnections
from opsq.units import counted

WAITING_LIMITS = {False: 2 * BACKLOG, True: BACKLOG}
"""How many connections may not have said hello, over TCP (True) and over the Unix socket. One more ends the oldest:
a client says hello at once, so only a flood is as slow as that."""

LOCAL_RESERVE = 16
"""Connections that clients over TCP cannot take from those of this machine; of a small limit, a quarter."""

DESCRIPTORS_RESERVED = 128 + sum(WAITING_LIMITS.values())
"""Descriptors kept for the database, the log, content, refused connections that linger, and those without a hello."""


class Waiting(Protocol):
    """A connection that has not said hello."""

    def end(self, error: OpsqError) -> None:
        """Tell the peer why, and close."""


class ConnectionQuota:
    """Counts connections, and says no.

    Args:
        limit: how many greeted connections there may be.
    """

    def __init__(self, limit: int) -> None:
        self._limits = {False: limit, True: limit - min(LOCAL_RESERVE, max(limit // 4, 1))}
        self._waiting: dict[bool, dict[Waiting, None]] = {False: {}, True: {}}
        self._greeted: dict[bool, set[Waiting]] = {False: set(), True: set()}

    @property
    def count(self) -> int:
        """All connections that are not refused."""
        return sum(len(some) for kinds in (self._waiting, self._greeted) for some in kinds.values())

    def enter(self, connection: Waiting, *, is_tcp: bool) -> OpsqError | None:
        """Count a new connection; the error to send if there are too many.

        Effects: may end the connection that has waited longest with its hello.
        """
        if (refusal := self._refusal(is_tcp=is_tcp)) is not None:
            return refusal
        waiting = self._waiting[is_tcp]
        waiting[connection] = None
        if len(waiting) > WAITING_LIMITS[is_tcp]:
            oldest = next(iter(waiting))
            del waiting[oldest]
            oldest.end(TooManyConnections("Too many connections have not said hello; this one was the oldest."))
        return None

    def greet(self, connection: Waiting, *, is_tcp: bool) -> None:
        """A connection has said hello.

        Raises:
            TooManyConnections: others were faster.
        """
        if (refusal := self._refusal(is_tcp=is_tcp)) is not None:
            raise refusal
        self._waiting[is_tcp].pop(connection, None)
        self._greeted[is_tcp].add(connection)

    def leave(self, connection: Waiting) -> None:
        """A connection has ended; harmless for one that was refused."""
        for is_tcp in (False, True):
            self._waiting[is_tcp].pop(connection, None)
            self._greeted[is_tcp].discard(connection)

    def _refusal(self, *, is_tcp: bool) -> TooManyConnections | None:
        """Why there may be no other greeted connection of a kind; None: there may be."""
        greeted = len(self._greeted[False]) + len(self._greeted[True])
        if is_tcp and len(self._greeted[True]) >= self._limits[True]:
            return TooManyConnections(
                f"The daemon has reached its limit of {counted(self._limits[True], 'connection')} over TCP.",
                hint="Raise connection_limit and the limit of file descriptors (ulimit -n).",
            )
        if greeted >= self._limits[False]:
            return TooManyConnections(
                f"The daemon has reached its limit of {counted(self._limits[False], 'connection')}.",
                hint="Raise connection_limit and the limit of file descriptors (ulimit -n).",
            )
        return None

"""The connections of a daemon: how many there may be, which have said hello, and how they end with the daemon.

This file must not read or write anything on one, nor know chunks.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable

from opsq.daemon.access_tokens import AccessTokens
from opsq.daemon.claims import Claims
from opsq.daemon.connection_quota import ConnectionQuota
from opsq.daemon.session import Session
from opsq.errors import NotPermitted, OpsqError
from opsq.queue.engine import Peer
from opsq.wire.messages import Claim

LINGERING_LIMIT = 64
_CLOSE_S = 2.0


class Connections:
    """All connections, from accepting them until they are lost.

    Args:
        limit: how many greeted ones there may be.
        on_none: called when the last one is lost.
    """

    def __init__(self, limit: int, on_none: Callable[[], None]) -> None:
        self.quota = ConnectionQuota(limit)
        self.all: set[Session] = set()
        self.greeted: dict[Peer, Session] = {}
        self._claims = Claims()
        self._lingering: set[Session] = set()
        self._on_none = on_none
        self._none_left = asyncio.Event()

    def admit(self, session: Session) -> OpsqError | None:
        """Count a new connection; the error to send if there are too many."""
        self.all.add(session)
        return self.quota.enter(session, is_tcp=session.is_tcp)

    def greet(self, session: Session, claim: Claim | None) -> None:
        """A connection has said hello, under a name that it may claim.

        Raises:
            TooManyConnections, NameTaken: others were faster.
        """
        self.quota.greet(session, is_tcp=session.is_tcp)
        if claim is not None:
            self._claims.take(claim, session)

    def leave(self, session: Session, peer: Peer) -> None:
        """A greeted connection ends; its name is free again."""
        self._claims.leave(session)
        self.greeted.pop(peer, None)

    def forget(self, session: Session) -> None:
        """Drop a lost connection."""
        self.quota.leave(session)
        self.all.discard(session)
        self._lingering.discard(session)
        if not self.all:
            self._none_left.set()
            self._on_none()

    def may_linger(self, session: Session) -> bool:
        """Whether one more refused connection may stay open until its peer has read the reason."""
        if len(self._lingering) >= LINGERING_LIMIT:
            return False
        self._lingering.add(session)
        return True

    def end_revoked(self, tokens: AccessTokens) -> None:
        """End the connections whose token is not in force any more."""
        for session in list(self.greeted.values()):
            if session.access.digest and not tokens.is_in_force(session.access):
                session.end(NotPermitted(f"The token {session.access.name} was changed or revoked."))

    async def close(self) -> None:
        """Close all after what was written has been sent, for a moment at most."""
        for session in list(self.all):
            session.close()
        if self.all:
            self._none_left.clear()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_CLOSE_S):
                    await self._none_left.wait()
        for session in list(self.all):
            session.abort()

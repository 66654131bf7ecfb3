"""Brings the engine's replies to their connections, once what they may acknowledge is where it must be.

This file must not decide what is said. Replies come into the engine's outbox after their commit; when an operator's act
is not in the audit yet, they wait for that too.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from opsq.daemon.audit import Audit
from opsq.daemon.session import Session
from opsq.queue.engine import Engine, Peer
from opsq.wire.messages import DaemonState, Reply

if TYPE_CHECKING:
    from opsq.daemon.no_replica import NoReplica
    from opsq.daemon.replication import Replication


class Delivery:
    """The way from the engine to the sessions.

    Args:
        engine: whose outbox it empties.
        sessions: who gets what.
        audit: what replies wait for.
        replication: says what may be said.
        complete: adds to a state what the engine does not know.
        pulse_soon: has `deliver` called again.
    """

    def __init__(
        self,
        engine: Engine,
        sessions: Mapping[Peer, Session],
        audit: Audit,
        replication: Replication | NoReplica,
        *,
        complete: Callable[[DaemonState], DaemonState],
        pulse_soon: Callable[[], None],
    ) -> None:
        self._engine = engine
        self._sessions = sessions
        self._audit = audit
        self._replication = replication
        self._complete = complete
        self._pulse_soon = pulse_soon
        self._unflushed: list[Session] = []
        self._auditing: asyncio.Task[None] | None = None
        """Waits until an act is in the audit; what is said meanwhile stays in the outbox."""
        self._audited: list[tuple[Peer, Reply]] = []
        """What waits for the next `deliver` at which this daemon is the owner."""

    def flush_soon(self, session: Session) -> None:
        """Have `Session.flush` called with the next `deliver`."""
        self._unflushed.append(session)

    def deliver(self) -> None:
        """Hand over what is in the outbox, and have sessions write what they have collected."""
        if self._audited and self._replication.is_owner:
            audited, self._audited = self._audited, []
            self._collect(audited)
        outbox = self._engine.outbox
        sayable = self._replication.sayable(outbox)
        if sayable is not outbox:
            outbox[:] = sayable
        if outbox and self._auditing is None:
            if self._audit.is_behind:
                self._auditing = asyncio.get_running_loop().create_task(self._await_audit(outbox[:]))
            else:
                self._collect(outbox)
            outbox.clear()
        if self._unflushed:
            unflushed, self._unflushed = self._unflushed, []
            for session in unflushed:
                session.flush()

    async def catch_up(self) -> None:
        """Return when nothing that was said waits for the audit any more."""
        await self._audit.catch_up()
        if self._auditing is not None:
            await self._auditing

    async def _await_audit(self, replies: list[tuple[Peer, Reply]]) -> None:
        await self._audit.catch_up()
        self._audited += replies  # the daemon may not be sure to be the owner any more
        self._auditing = None
        self._pulse_soon()

    def _collect(self, addressed: list[tuple[Peer, Reply]]) -> None:
        sessions = self._sessions
        latest: Peer | None = None
        replies: list[Reply] | None = None
        for peer, reply in addressed:
            if peer is not latest:  # consecutive replies often go to one connection
                latest, session = peer, sessions.get(peer)
                replies = session.collecting() if session is not None else None
            if replies is not None:
                replies.append(self._complete(reply) if type(reply) is DaemonState else reply)

"""When replies reach their sessions."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

from opsq.daemon.delivery import Delivery
from opsq.wire.messages import Changed


def test_reply_that_waited_for_the_audit_is_said_by_the_owner_only() -> None:
    """The lease may have run out while the audit was written."""
    audit = SimpleNamespace(is_behind=True)
    replication = SimpleNamespace(is_owner=True, sayable=list)
    said: list[Any] = []
    peer: Any = object()
    engine = SimpleNamespace(outbox=[(peer, Changed(1))])

    async def catch_up() -> None:
        audit.is_behind = replication.is_owner = False

    audit.catch_up = catch_up

    async def story() -> None:
        parts: Any = (engine, {peer: SimpleNamespace(collecting=lambda: said)}, audit, replication)
        delivery = Delivery(*parts, complete=lambda state: state, pulse_soon=lambda: None)
        delivery.deliver()
        await delivery.catch_up()
        delivery.deliver()
        assert not said
        replication.is_owner = True
        delivery.deliver()

    asyncio.run(story())
    assert said == [Changed(1)]

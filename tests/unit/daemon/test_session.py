"""A session beside others: what it does with requests that come when a turn has no room for them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from types import SimpleNamespace
from unittest.mock import Mock

from opsq.clock import now
from opsq.daemon.request_backlog import TURN_REQUESTS, RequestBacklog
from opsq.daemon.session import Session
from opsq.queue.peer import Peer
from opsq.settings import load
from opsq.wire.frames import encode
from opsq.wire.messages import VERSION, Heartbeat, Hello, Message


def test_request_that_comes_when_a_turn_is_full_is_kept_and_nothing_more_is_read_until_its_turn() -> None:
    calls: list[Callable[[], None]] = []
    handled: list[Message] = []
    backlog = RequestBacklog(calls.append, lambda: 0)
    engine = SimpleNamespace(
        handle=lambda _peer, request, _now: handled.append(request), shard=None, rules_revision=0, makers=[]
    )
    peer = Peer("", now())
    host = Mock(settings=load({}), store_marker="", backlog=backlog, engine=engine, is_stopping=False)
    host.admit.return_value = None
    host.connect.return_value = peer
    transport = Mock()
    transport.is_closing.return_value = False

    async def main() -> None:
        session = Session(host, is_tcp=False)
        session.connection_made(transport)
        session.data_received(encode([Hello(1, VERSION, "", "")]))
        backlog.note_arrived(TURN_REQUESTS)
        transport.reset_mock()
        session.data_received(encode([Heartbeat(2), Heartbeat(3)]))

    asyncio.run(main())
    assert handled == []
    transport.pause_reading.assert_called_once()
    backlog.note_written()
    calls.pop()()
    assert handled == [Heartbeat(2), Heartbeat(3)]
    transport.resume_reading.assert_called_once()

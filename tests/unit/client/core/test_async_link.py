"""The link of asyncio programs: what is left of one that was closed, and of a request that is too long."""

from __future__ import annotations

import asyncio
import socket
import threading
from typing import Any
from unittest.mock import Mock

import pytest

from opsq.client.aio.verdict_sender import AsyncVerdictSender
from opsq.client.core import async_transport
from opsq.client.core.async_link import AsyncLink
from opsq.errors import OpsqError, Unreachable
from opsq.wire import messages as m
from opsq.wire.frames import encode, request_reader

WELCOME = m.Welcome(1, m.VERSION, "0", "c", 10.0, 1 << 12, 1 << 20, True, True, "/store", "mark")


def test_socket_of_a_dial_that_nobody_waits_for_is_closed() -> None:
    ours, theirs = socket.socketpair()
    is_dialling, is_let = threading.Event(), threading.Event()

    def connect(_: object) -> socket.socket:
        is_dialling.set()
        is_let.wait()
        return ours

    async def work() -> None:
        link = AsyncLink("/nowhere", name="", token="", connect=connect)
        link.keep_dialling()
        await asyncio.to_thread(is_dialling.wait)
        await link.close()
        is_let.set()

    asyncio.run(work())
    assert theirs.recv(1) == b""
    theirs.close()


def test_what_an_awaited_consumer_had_leased_it_leases_again() -> None:
    """A link reclaims what is held whenever it has been greeted."""
    ours, theirs = socket.socketpair()
    theirs.settimeout(60)
    held = m.HeldChunks(7, 0, 1, 1, 0, 1, 99)

    def requests() -> list[Any]:
        return request_reader(1 << 20).feed(theirs.recv(1 << 16))

    async def work() -> list[Any]:
        def make_link(**options: Any) -> AsyncLink:
            options["holdings"] = lambda: ([held], [])
            return AsyncLink("/nowhere", name="", token="", connect=lambda _: ours, **options)

        sender = AsyncVerdictSender(make_link, lease_s=60.0)
        opening = asyncio.create_task(sender._link.open())
        await asyncio.to_thread(requests)
        theirs.sendall(encode([WELCOME]))
        await opening
        sent = await asyncio.to_thread(requests)
        await sender._link.close()
        return sent

    [reclaim] = asyncio.run(work())
    theirs.close()
    assert (reclaim.held, reclaim.lease_s) == ([held], 60.0)


def test_link_dials_again_when_no_thread_could_be_started(monkeypatch: pytest.MonkeyPatch) -> None:
    ours, theirs = socket.socketpair()
    theirs.settimeout(60)
    threads = [Mock(start=Mock(side_effect=RuntimeError("can't start new thread")))]
    stub = Mock(Thread=lambda **options: threads.pop() if threads else threading.Thread(**options))
    monkeypatch.setattr(async_transport, "threading", stub)
    states: list[OpsqError | None] = []

    async def work() -> None:
        link = AsyncLink("/nowhere", name="", token="", connect=lambda _: ours, on_state=states.append)
        link.keep_dialling()
        assert await asyncio.to_thread(theirs.recv, 1)
        await link.close()

    asyncio.run(work())
    theirs.close()
    assert [type(state) for state in states] == [Unreachable]


def test_request_that_is_too_long_fails_alone() -> None:
    """Those that were sent with it are sent."""
    ours, theirs = socket.socketpair()
    theirs.settimeout(60)
    answers: list[Any] = []
    reader = request_reader(1 << 20)

    def requests(count: int) -> list[Any]:
        found: list[Any] = []
        while len(found) < count:
            found += reader.feed(theirs.recv(1 << 16))
        return found

    async def work() -> None:
        link = AsyncLink("/nowhere", name="", token="", connect=lambda _: ours)
        opening = asyncio.create_task(link.open())
        await asyncio.to_thread(requests, 1)
        theirs.sendall(encode([WELCOME]))
        await opening
        long = m.Submit(link.next_id(), [m.NewSubmission(b"k" * 16, 1, b"x" * (1 << 13))])
        link.send_soon([m.Status(link.next_id()), long, m.Status(link.next_id())], answers.append)
        sent = await asyncio.to_thread(requests, 2)
        assert [type(request) for request in sent] == [m.Status, m.Status]
        await link.close()

    asyncio.run(work())
    theirs.close()
    assert [answer.code for answer in answers] == ["usage", "unreachable", "unreachable"]

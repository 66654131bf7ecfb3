"""A consumer of Opsqueue whose time runs out, with a gateway in this process."""

from __future__ import annotations

import contextlib
import socket
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import uvicorn

from acceptance.opsqueue_client import Consumer, Producer
from daemons import running
from opsq.gateway.access import Exposure
from opsq.gateway.app import make_app
from opsq.gateway.connections import Connections
from opsq.gateway.context import Context
from opsq.gateway.opsqueue import consumer
from opsq.gateway.websocket import WebSocketProtocol
from waiting import wait_until

DEADLINE_S = 180


@pytest.fixture
def address() -> Iterator[str]:
    """Where a gateway serves."""
    with tempfile.TemporaryDirectory(prefix="opsq-", dir="/tmp") as folder, running(Path(folder)) as settings:
        context = Context(
            Connections(settings.socket, name="gateway", token=""), Exposure.LOOPBACK, str(Path(folder) / "queues")
        )
        config = uvicorn.Config(make_app(context), ws=WebSocketProtocol, lifespan="on", log_config=None)
        server = uvicorn.Server(config)
        with socket.create_server(("127.0.0.1", 0)) as listening:
            thread = threading.Thread(target=server.run, args=([listening],))
            thread.start()
            wait_until(lambda: server.started, DEADLINE_S, "the gateway serves")
            yield f"127.0.0.1:{listening.getsockname()[1]}"
            server.should_exit = True
            thread.join()


@pytest.fixture
def producer(address: str) -> Iterator[Producer]:
    """A producer."""
    producer = Producer(address)
    with producer.client:
        yield producer


def is_completed(producer: Producer, submission_id: int) -> bool:
    """Whether a submission is done."""
    return "Completed" in producer.status(submission_id)


def expired(consumer: Consumer) -> Any:
    """The chunk of which a consumer is told that others may have it."""
    return consumer.receive()["Async"]["ChunkReservationExpired"]


def test_chunk_that_takes_too_long_goes_to_others_and_may_still_be_completed(
    address: str, producer: Producer, monkeypatch: pytest.MonkeyPatch
) -> None:
    submission_id = producer.stored("slow", 1)
    with contextlib.closing(Consumer(address)) as slow, contextlib.closing(Consumer(address)) as other:
        monkeypatch.setattr(consumer, "RESERVATION_S", 0.0)
        [[chunk, _]] = slow.reserve()
        assert expired(slow) == {"submission_id": submission_id, "chunk_index": 0}
        monkeypatch.undo()
        assert other.reserve()[0][0] == chunk
        slow.complete(chunk)
        wait_until(lambda: is_completed(producer, submission_id), DEADLINE_S)


def test_chunk_that_comes_back_to_who_let_it_expire_can_be_completed(
    address: str, producer: Producer, monkeypatch: pytest.MonkeyPatch
) -> None:
    submission_id = producer.stored("forgotten", 1)
    with contextlib.closing(Consumer(address)) as forgetful:
        monkeypatch.setattr(consumer, "RESERVATION_S", 0.0)
        for _ in range(3):  # as a client does that does not find the input
            [[chunk, _]] = forgetful.reserve()
            assert chunk["retries"] == 0
            expired(forgetful)
        monkeypatch.undo()
        [[chunk, _]] = forgetful.reserve()
        forgetful.complete(chunk)
        wait_until(lambda: is_completed(producer, submission_id), DEADLINE_S)

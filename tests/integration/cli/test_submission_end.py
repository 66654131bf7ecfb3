"""A wait for the end of submissions, against the real engine in this process."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from opsq.cli import submission_end
from opsq.cli.caller import Caller
from opsq.client.embedded import EmbeddedEngine, EmbeddedWire
from opsq.client.sync.queue import Queue
from opsq.errors import TimedOut
from opsq.ids import SubmissionId
from opsq.queue import peer
from waiting import wait_until


class Connection:
    """A connection to the engine, as a verb has it."""

    def __init__(self, wire: EmbeddedWire) -> None:
        self.peer, self.welcome, self.send, self.receive = wire.peer, wire.welcome, wire.send, wire.receive
        self.next_id = itertools.count(1).__next__
        self._wire = wire

    def __enter__(self) -> Connection:
        return self

    def __exit__(self, *exc: object) -> None:
        self._wire.close()


class OfEngine(Caller):
    """A caller whose connections are those of an engine in this process."""

    def __init__(self, engine: EmbeddedEngine) -> None:
        super().__init__({"quiet": True}, frozenset())
        self.connections: list[Connection] = []
        self._engine = engine

    def connect(self, **_: Any) -> Any:
        self.connections.append(Connection(self._engine.open_wire()))
        return self.connections[-1]


@pytest.fixture
def engine(runtime_dir: Path) -> Iterator[EmbeddedEngine]:
    engine = EmbeddedEngine(runtime_dir, None, is_durable=False)
    yield engine
    engine.close()


def test_no_more_is_asked_for_at_once_than_may_wait() -> None:
    assert 0 < submission_end._ASKED_COUNT < peer.PARKED_LIMIT


def test_more_submissions_than_calls_may_wait_are_waited_for(
    engine: EmbeddedEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(peer, "PARKED_LIMIT", 4)
    monkeypatch.setattr(submission_end, "_ASKED_COUNT", 3)
    caller = OfEngine(engine)
    queue = Queue(engine.open_wire)
    submissions = [queue.submit([b"x"]) for _ in range(7)]
    ids = [SubmissionId(submission.id) for submission in submissions]
    with pytest.raises(TimedOut, match="7 submissions had not ended in time"):
        submission_end.wait_for(caller, ids, 0.0)
    found: list[str] = []
    waiting = threading.Thread(
        target=lambda: found.extend(state.state for state in submission_end.wait_for(caller, ids, None))
    )
    waiting.start()
    wait_until(lambda: len(caller.connections[-1].peer.parked_ids) == 3)
    for submission in reversed(submissions):
        submission.cancel()
    waiting.join()
    assert found == ["cancelled"] * 7
    queue.close()

"""Requests that a mover sends together: it waits for as long as the daemon lives, and no longer."""

from __future__ import annotations

import itertools
import time
from collections.abc import Sequence
from typing import Any

import pytest

from opsq.cli.moving import Together
from opsq.client.core.transport import MISSES
from opsq.client.sync.connection import Connection
from opsq.errors import Unreachable
from opsq.wire.messages import Alive, Changed, GiveUpMoved, Reply
from scripted import welcome

HEARTBEAT_S = 0.01
REQUEST = GiveUpMoved(7, [1], bytes(16), 1)


class Line:
    """A connection on which something comes each heartbeat, or nothing; in the end the answers."""

    welcome = welcome(HEARTBEAT_S)
    address = "/there.sock"
    call = None
    silent = Connection.silent

    def __init__(self, *, comes: list[Reply] | None, rounds: int, answers: Sequence[Reply]) -> None:
        self._comes = comes
        self._rounds = rounds
        self._answers = list(answers)
        self._ids = itertools.count(1)
        self.heard_at = 0.0

    def next_id(self) -> int:
        return next(self._ids)

    def send(self, requests: Sequence[Any]) -> None:
        assert requests

    def receive(self, timeout_s: float) -> list[Reply]:
        time.sleep(timeout_s)
        self._rounds -= 1
        if self._rounds < 0:
            return self._answers
        if self._comes is not None:
            self.heard_at = time.monotonic()
        return self._comes or []


def test_requests_sent_together_are_given_up_when_the_daemon_is_silent() -> None:
    line: Any = Line(comes=None, rounds=100, answers=[Changed(7, 1)])
    with pytest.raises(Unreachable, match=r"there\.sock no longer answers"):
        Together(line).call_all([REQUEST], Changed)


@pytest.mark.parametrize("comes", [[Alive(1)], []], ids=["heartbeats are answered", "a long reply comes in parts"])
def test_requests_sent_together_are_waited_for_while_the_daemon_lives(comes: list[Reply]) -> None:
    line: Any = Line(comes=comes, rounds=5 * MISSES, answers=[Changed(7, 1)])
    assert Together(line).call_all([REQUEST], Changed) == [Changed(7, 1)]

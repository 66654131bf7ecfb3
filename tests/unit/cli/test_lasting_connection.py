"""A question outlives the connection that it was asked over, and no other error."""

from __future__ import annotations

from typing import Any

import pytest

from opsq.cli.caller import Caller
from opsq.cli.lasting_connection import RECONNECT_S, LastingConnection
from opsq.errors import Conflict, NotFound, Unreachable
from opsq.wire.messages import Changed, Prune, Request


class Daemon:
    """One connection: answers with what it was told, in order."""

    def __init__(self, first_id: int, *answers: int | Exception) -> None:
        self.ids = iter(range(first_id, 100))
        self.answers = list(answers)
        self.asked: list[Request] = []
        self.is_closed = False

    def next_id(self) -> int:
        return next(self.ids)

    def call(self, request: Prune, kind: type[Changed]) -> Changed:
        self.asked.append(request)
        answer = self.answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return kind(request.id, answer)

    def receive(self, timeout_s: float) -> list[object]:
        raise Unreachable("it has gone")

    def close(self) -> None:
        self.is_closed = True


class OfDaemons(Caller):
    """A caller that meets one daemon after the other."""

    def __init__(self, *daemons: Daemon) -> None:
        super().__init__({}, frozenset())
        self.daemons = list(daemons)
        self.patience: list[float] = []

    def connect(self, *, reconnect_s: float = 0.0, **_: Any) -> Any:
        self.patience.append(reconnect_s)
        if not self.daemons:
            raise Unreachable("gone")
        return self.daemons.pop(0)


def test_question_is_asked_again_as_often_as_the_daemon_goes_away() -> None:
    first, second, third = Daemon(2, 1, Unreachable("lost")), Daemon(7, Unreachable("lost")), Daemon(2, 5, 6)
    caller = OfDaemons(first, second, third)
    with LastingConnection(caller) as daemon:
        found = [daemon.call(Prune(daemon.next_id(), 9.0), Changed).count for _ in range(3)]
    assert found == [1, 5, 6]
    assert second.asked == [Prune(7, 9.0)]
    assert third.asked == [Prune(2, 9.0), Prune(3, 9.0)]
    assert [each.is_closed for each in (first, second, third)] == [True, True, True]
    assert caller.patience == [0.0, RECONNECT_S, RECONNECT_S]


def test_daemon_that_stays_away_is_the_error() -> None:
    with pytest.raises(Unreachable, match="gone"), LastingConnection(OfDaemons(Daemon(2, Unreachable("lost")))) as one:
        one.call(Prune(one.next_id(), 9.0), Changed)


def test_refusal_is_the_error_at_once() -> None:
    caller = OfDaemons(Daemon(2, NotFound("no")), Daemon(2, 5))
    with pytest.raises(NotFound), LastingConnection(caller) as one:
        one.call(Prune(one.next_id(), 9.0), Changed)
    assert len(caller.daemons) == 1


def test_steps_that_a_stopping_daemon_leaves_are_for_the_next_and_all_are_counted() -> None:
    stopping = Conflict(cause="stopping", done=3)
    first, second = Daemon(2, stopping), Daemon(7, 4)
    caller = OfDaemons(first, second)
    with LastingConnection(caller) as daemon:
        assert daemon.change(Prune(1, 9.0)) == 7
        assert daemon.restarts_count == 1
    assert [*first.asked, *second.asked] == [Prune(2, 9.0), Prune(7, 9.0)]


def test_nothing_is_asked_for_once_nothing_is_left() -> None:
    caller = OfDaemons(Daemon(2, Unreachable("lost")), Daemon(7))
    with LastingConnection(caller) as daemon:
        assert daemon.change(Prune(1, 9.0), lambda request: None) == 0


def test_other_conflict_ends_a_change() -> None:
    caller = OfDaemons(Daemon(2, Conflict(cause="not_dead", submission_id=1, index=2)), Daemon(7))
    with pytest.raises(Conflict), LastingConnection(caller) as daemon:
        daemon.change(Prune(1, 9.0))
    assert len(caller.daemons) == 1

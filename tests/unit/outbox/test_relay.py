"""What a relay asks of the database and of the daemon while one of them is away, or has no room."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from typing import Any

import pytest

from opsq.errors import NoRoom, OpsqError, Unreachable
from opsq.outbox.hand_over import Outcome
from opsq.outbox.relay import Relay
from opsq.outbox.waiting_rows import SUBMISSIONS, Completion, Left, Submission


class Pair:
    """An outbox and a daemon that say what was asked of them, and a stop that comes when the story is over.

    Attributes:
        rows, completions: what waits.
        answers: what the daemon does next, to a connection or to rows: nothing, or this error.
        asked: what was asked, in order.
    """

    name = "shop"
    fileno = -1

    def __init__(self) -> None:
        self.rows = [Submission(seq, b"", None) for seq in range(1, 6)]
        self.completions: list[Completion] = []
        self.dials: list[OpsqError | None] = []
        self.answers: list[OpsqError | None] = []
        self.asked: list[str] = []

    @property
    def count(self) -> int:
        """1 once nothing waits."""
        return int(not (self.rows or self.completions))

    def wait(self, *_: Any) -> None:
        """Waits for nothing."""

    def take_submissions(self, limit: int) -> list[Submission]:
        """Note how many."""
        self.asked.append(f"take {limit}")
        return self.rows[:limit]

    def take_completions(self, limit: int) -> list[Completion]:
        """Note how many of them, if there are any."""
        if self.completions:
            self.asked.append(f"take {limit} completed")
        return self.completions[:limit]

    def settle(self, table: str, done: list[int], refused: dict[int, str]) -> None:
        """Forget those that are done."""
        if table == SUBMISSIONS:
            self.rows = [row for row in self.rows if row.seq not in done]
        else:
            self.completions = [row for row in self.completions if row.seq not in done]

    def leave(self) -> None:
        """Nothing to let go of."""

    def prune(self, _: float) -> None:
        """Nothing to delete."""

    def left(self) -> Left:
        """How many wait."""
        return Left(len(self.rows), 0)

    def open(self) -> None:
        """Connect the database."""

    def close(self) -> None:
        """Nothing to close."""


class Daemon:
    """The daemon of a pair."""

    def __init__(self, pair: Pair) -> None:
        self._pair = pair

    def open(self) -> None:
        """Connect, or fail as the story says."""
        self._pair.asked.append("dial")
        if self._pair.dials and (error := self._pair.dials.pop(0)):
            raise error

    def submit(self, rows: Sequence[Submission]) -> Outcome:
        """Take all, or only the first of several and say why."""
        held_back: Any = self._pair.answers.pop(0) if self._pair.answers else None
        taken = rows[: len(rows) // 2] if held_back else rows
        return Outcome(done=[row.seq for row in taken], held_back=held_back)

    def complete(self, rows: Sequence[Completion]) -> Outcome:
        """Take all; from now on there is room."""
        self._pair.answers = []
        return Outcome(done=[row.seq for row in rows])

    def close(self) -> None:
        """Nothing to close."""


@pytest.fixture
def pair() -> Iterator[Pair]:
    made = Pair()
    made.fileno, write_fd = os.pipe()
    yield made
    os.close(made.fileno)
    os.close(write_fd)


def run(pair: Pair) -> Relay:
    """Relay until nothing waits."""
    relay = Relay(
        pair,
        Daemon(pair),  # type: ignore[arg-type]  # what a relay uses of it
        batch=4,
        poll_s=1.0,
        keep_s=1.0,
        on_aside=lambda _: None,
        on_outage=lambda _: None,
    )
    relay.run(pair)
    return relay


def test_no_row_is_read_while_no_daemon_answers(pair: Pair) -> None:
    pair.dials = [Unreachable(), Unreachable(), None]
    run(pair)
    assert pair.asked == ["dial"] * 3 + ["take 4", "dial", "take 4"]


def test_one_row_at_a_time_is_tried_while_there_is_no_room(pair: Pair) -> None:
    pair.answers = [NoRoom(), NoRoom(), NoRoom(), None]
    assert run(pair).submitted_count == 5
    takes = [each for each in pair.asked if each != "dial"]
    assert takes == ["take 4", "take 1", "take 1", "take 1", "take 4"]


def test_completions_go_on_while_there_is_no_room_for_submissions(pair: Pair) -> None:
    """They may be what makes room."""
    pair.answers = [NoRoom()] * 100
    pair.completions = [Completion(seq, "", b"") for seq in range(1, 10)]
    assert run(pair).completed_count == 9
    takes = [each for each in pair.asked if each != "dial"]
    assert takes[:4] == ["take 4", "take 4 completed", "take 1", "take 4 completed"]

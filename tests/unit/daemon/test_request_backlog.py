"""Turns of connections that have requests to be handled: each has its share, and none comes while enough wait."""

from __future__ import annotations

from collections.abc import Callable

from opsq.daemon.request_backlog import (
    COMMIT_REQUESTS,
    TURN_LONG_ANSWERS,
    TURN_LONG_S,
    TURN_REQUESTS,
    RequestBacklog,
)


class Loop:
    """Calls what it is given, one turn after the other; `committing` requests wait for a commit."""

    def __init__(self) -> None:
        self.calls: list[Callable[[], None]] = []
        self.committing = 0
        self.now_s = 0.0
        self.backlog = RequestBacklog(self.calls.append, lambda: self.committing, lambda: self.now_s)

    def turn(self) -> None:
        """One turn."""
        self.calls.pop()()
        assert len(self.calls) <= 1


class Peer:
    """A connection that has sent a number of requests, each of which waits for a commit, or is long, if it says so."""

    def __init__(self, loop: Loop, count: int, *, commits: bool = False, is_long: bool = False) -> None:
        self.loop = loop
        self.left = count
        self.handled: list[int] = []
        self.commits = commits
        self.is_long = is_long
        loop.backlog.add(self, is_long=is_long)

    def go_on(self, most: int) -> int:
        """Handle some."""
        count = min(most, self.left)
        if self.is_long:
            count = int(self.loop.backlog.may_answer_long())
            self.loop.now_s += TURN_LONG_S / 2
        self.left -= count
        self.handled.append(count)
        self.loop.committing += count * self.commits
        if self.left:
            self.loop.backlog.add(self, is_long=self.is_long)
        return count


def test_whoever_is_alone_has_the_whole_turn() -> None:
    loop = Loop()
    assert loop.backlog.share == TURN_REQUESTS
    peer = Peer(loop, 3 * TURN_REQUESTS)
    loop.turn()
    assert peer.handled == [TURN_REQUESTS]
    while loop.calls:
        loop.turn()
    assert peer.left == 0


def test_turn_is_shared_and_no_longer_for_that() -> None:
    loop = Loop()
    peers = [Peer(loop, 1000) for _ in range(1000)]
    loop.turn()
    assert sum(sum(peer.handled) for peer in peers) == TURN_REQUESTS
    assert [sum(peer.handled) for peer in peers] == [1] * TURN_REQUESTS + [0] * (1000 - TURN_REQUESTS)
    for _ in range(3):
        loop.turn()
    assert {sum(peer.handled) for peer in peers} == {1, 2}


def test_nothing_more_joins_those_that_wait_for_a_commit_until_that_is_over() -> None:
    loop = Loop()
    peer = Peer(loop, 10_000, commits=True)
    while loop.calls:
        loop.turn()
    assert COMMIT_REQUESTS <= sum(peer.handled) < COMMIT_REQUESTS + TURN_REQUESTS
    loop.backlog.add(peer)
    assert not loop.calls
    loop.committing = 0
    loop.backlog.wake()
    loop.turn()
    assert sum(peer.handled) > COMMIT_REQUESTS


def test_few_of_a_turn_have_long_answers() -> None:
    """Whoever wants one more waits for the next turn; what is short does not."""
    loop = Loop()
    Peer(loop, 1)
    loop.turn()
    answered = [loop.backlog.may_answer_long() for _ in range(TURN_LONG_ANSWERS + 3)]
    assert answered == [True] * TURN_LONG_ANSWERS + [False] * 3
    Peer(loop, 1)
    loop.turn()
    assert loop.backlog.may_answer_long()


def test_long_answers_that_take_long_come_one_in_a_turn() -> None:
    loop = Loop()
    for _ in range(2):
        Peer(loop, 1)
        loop.turn()
        loop.now_s += TURN_LONG_S
        assert [loop.backlog.may_answer_long() for _ in range(3)] == [True, False, False]


def test_those_who_want_long_answers_have_their_turn_and_leave_the_others_theirs() -> None:
    loop = Loop()
    long_ones = [Peer(loop, 2, is_long=True) for _ in range(5)]
    other = Peer(loop, 1)
    loop.turn()
    assert [sum(peer.handled) for peer in long_ones] == [1, 1, 0, 0, 0]
    assert other.left == 0
    for _ in range(4):
        loop.turn()
    assert not any(peer.left for peer in long_ones)
    assert [peer.handled for peer in long_ones] == [[1, 1]] * 5


def test_who_comes_after_many_in_one_turn_waits_for_its_own() -> None:
    loop = Loop()
    backlog = loop.backlog
    backlog.note_arrived(TURN_REQUESTS - 1)
    assert backlog.share == 1
    backlog.note_arrived(1)
    assert backlog.share == 0
    late = Peer(loop, 1)
    backlog.note_written()
    loop.turn()
    assert late.handled == [1]
    assert backlog.share == TURN_REQUESTS


def test_connection_that_has_ended_has_no_turn() -> None:
    loop = Loop()
    gone, other = Peer(loop, 1), Peer(loop, 1)
    loop.backlog.forget(gone)
    loop.backlog.forget(gone)
    loop.turn()
    assert (gone.handled, other.handled) == ([], [1])
    assert not loop.calls

"""Turns of connections that have requests to be handled: each has its share, and none comes while enough wait."""

from __future__ import annotations

from collections.abc import Callable

from opsq.daemon.request_backlog import COMMIT_REQUESTS, TURN_LONG_ANSWERS, TURN_REQUESTS, RequestBacklog


class Loop:
    """Calls what it is given, one turn after the other; `committing` requests wait for a commit."""

    def __init__(self) -> None:
        self.calls: list[Callable[[], None]] = []
        self.committing = 0
        self.backlog = RequestBacklog(self.calls.append, lambda: self.committing)

    def turn(self) -> None:
        """One turn."""
        self.calls.pop()()
        assert len(self.calls) <= 1


class Peer:
    """A connection that has sent a number of requests, each of which waits for a commit if it says so."""

    def __init__(self, loop: Loop, count: int, *, commits: bool = False) -> None:
        self.loop = loop
        self.left = count
        self.handled: list[int] = []
        self.commits = commits
        loop.backlog.add(self)

    def go_on(self, most: int) -> int:
        """Handle some."""
        count = min(most, self.left)
        self.left -= count
        self.handled.append(count)
        self.loop.committing += count * self.commits
        if self.left:
            self.loop.backlog.add(self)
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
    answered = [loop.backlog.may_answer_long() for _ in range(TURN_LONG_ANSWERS + 3)]
    assert answered == [True] * TURN_LONG_ANSWERS + [False] * 3
    Peer(loop, 1)
    loop.turn()
    assert loop.backlog.may_answer_long()


def test_connection_that_has_ended_has_no_turn() -> None:
    loop = Loop()
    gone, other = Peer(loop, 1), Peer(loop, 1)
    loop.backlog.forget(gone)
    loop.backlog.forget(gone)
    loop.turn()
    assert (gone.handled, other.handled) == ([], [1])
    assert not loop.calls

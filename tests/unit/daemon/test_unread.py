"""Replies that many slow peers do not read: over the limit, those that are slow for longest end."""

from __future__ import annotations

import pytest

from opsq.daemon import unread
from opsq.daemon.unread import Unread


class Peer:
    """A connection with so many bytes unread."""

    def __init__(self, unread_bytes: int) -> None:
        self.unread_bytes = unread_bytes
        self.why = ""

    def cut_off(self, why: str) -> None:
        """Note it."""
        self.why = why


@pytest.fixture(autouse=True)
def limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(unread, "LIMIT_BYTES", 100)


def noted(*peers: Peer) -> Unread:
    found = Unread()
    for peer in peers:
        found.note(peer)
    return found


def test_slowest_ends_when_all_together_leave_too_much() -> None:
    peers = [Peer(40), Peer(30), Peer(30)]
    slow = noted(*peers)
    assert not any(peer.why for peer in peers)
    slow.note(last := Peer(20))
    assert "of replies unread" in peers[0].why
    assert not any(peer.why for peer in (*peers[1:], last))


def test_what_was_read_since_or_has_ended_counts_no_more() -> None:
    first, second, third = Peer(60), Peer(40), Peer(50)
    slow = noted(first, second)
    first.unread_bytes = 10
    slow.note(third)
    assert not any(peer.why for peer in (first, second, third))
    slow.forget(second)
    slow.forget(second)
    third.unread_bytes = 90
    slow.note(third)
    assert not first.why
    third.unread_bytes = 91
    slow.note(third)
    assert first.why
    assert not third.why


def test_one_that_leaves_too_much_alone_ends() -> None:
    peer = Peer(101)
    slow = noted(peer)
    assert peer.why
    slow.note(other := Peer(100))
    assert not other.why

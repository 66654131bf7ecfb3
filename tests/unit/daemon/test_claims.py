"""Names that one connection has for itself."""

from __future__ import annotations

import pytest

from opsq.daemon.claims import Claims
from opsq.errors import NameTaken
from opsq.wire.messages import Claim

FIRST, SECOND = b"1" * 16, b"2" * 16


def test_name_is_refused_while_another_has_it_and_free_when_that_one_leaves():
    claims = Claims()
    claims.take(Claim("nightly", FIRST), "a")
    with pytest.raises(NameTaken, match="nightly"):
        claims.take(Claim("nightly", SECOND), "b")
    claims.take(Claim("hourly", SECOND), "b")
    claims.leave("a")
    claims.take(Claim("nightly", SECOND), "c")


def test_same_key_takes_over_and_the_end_of_the_earlier_connection_frees_nothing():
    """A consumer that reconnects before the daemon has noticed the loss keeps its name."""
    claims = Claims()
    claims.take(Claim("nightly", FIRST), "a")
    claims.take(Claim("nightly", FIRST), "again")
    claims.leave("a")
    with pytest.raises(NameTaken):
        claims.take(Claim("nightly", SECOND), "b")
    claims.leave("again")
    claims.take(Claim("nightly", SECOND), "b")


def test_connection_without_a_name_leaves_without_effect():
    claims = Claims()
    claims.leave("nobody")

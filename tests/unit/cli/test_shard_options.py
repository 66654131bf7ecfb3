"""What verbs say of several shards."""

from __future__ import annotations

import pytest

from opsq.cli.caller import Caller
from opsq.cli.shard_options import are_sharded, divided, need_shards
from opsq.errors import UsageError
from opsq.wire.messages import Limit


def caller(address: str) -> Caller:
    return Caller({"address": address}, frozenset({"address"}))


def test_each_shard_gets_its_part_of_a_limit_and_at_least_one_chunk() -> None:
    whole = Limit(1, "tenant", "acme", 10, 6.0, 2, "me", 60.0)
    assert divided(whole, 4) == Limit(1, "tenant", "acme", 2, 1.5, 1, "me", 60.0)
    assert divided(Limit(1, "tenant", concurrency=3), 8) == Limit(1, "tenant", concurrency=1)


def test_option_for_shards_is_refused_where_there_is_one_daemon() -> None:
    need_shards(caller("a:1,b:2"), "--split")
    assert are_sharded(caller("a:1,b:2"))
    with pytest.raises(UsageError, match="--split concerns several shards"):
        need_shards(caller("a:1"), "--split")

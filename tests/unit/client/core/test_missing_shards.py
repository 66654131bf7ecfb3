"""Who is told which shards have no part in an answer."""

from __future__ import annotations

from typing import Any

import pytest

from opsq.client.core.missing_shards import MissingShards
from opsq.client.core.pending_requests import LinkBase
from opsq.wire.messages import ShardsMissing


def test_each_shard_is_named_once() -> None:
    told: list[str] = []
    missing = MissingShards(told.append)
    missing(ShardsMissing(1, ["3 (b:7400)"]))
    missing(ShardsMissing(2, ["3 (b:7400)", "c:7400"]))
    assert told == [
        "shard 3 (b:7400) did not answer: what it has is not shown.",
        "shard c:7400 did not answer: what it has is not shown.",
    ]


def test_link_logs_them(caplog: pytest.LogCaptureFixture) -> None:
    link = LinkBase()
    for _ in range(2):
        link._deliver(ShardsMissing(1, ["3 (b:7400)"]))
    assert caplog.messages == ["shard 3 (b:7400) did not answer: what it has is not shown."]


@pytest.mark.parametrize(
    ("effect", "said"),
    [
        ("missing", "what it has is not shown"),
        ("unchanged", "nothing was changed there"),
        ("rules", "it gets the rules when it is back"),
        ("waiting", "it is waited for"),
    ],
)
def test_what_it_means_depends_on_what_was_asked(effect: Any, said: str) -> None:
    told: list[str] = []
    MissingShards(told.append)(ShardsMissing(1, ["c:7400"], effect))
    assert told == [f"shard c:7400 did not answer: {said}."]

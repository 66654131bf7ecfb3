"""What a verb says on stderr beside its output."""

from __future__ import annotations

import pytest

from opsq.cli.caller import Caller


def test_shard_that_did_not_answer_is_named_once(capsys: pytest.CaptureFixture[str]) -> None:
    caller = Caller({}, frozenset())
    caller.warn_of_missing(["3 (b:7400)"])
    caller.drawn().warn_of_missing(["3 (b:7400)", "c:7400"])
    assert capsys.readouterr().err.splitlines() == [
        "opsq: shard 3 (b:7400) did not answer: what it has is missing.",
        "opsq: shard c:7400 did not answer: what it has is missing.",
    ]


def test_screen_is_not_spoilt_by_shards_that_did_not_answer(capsys: pytest.CaptureFixture[str]) -> None:
    caller = Caller({}, frozenset())
    caller.is_drawing = True
    caller.warn_of_missing(["3 (b:7400)"])
    assert capsys.readouterr().err == ""

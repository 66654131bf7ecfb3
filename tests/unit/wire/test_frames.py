"""Frames of requests: what cannot be costs the request that has it its answer, and no other."""

from __future__ import annotations

import os
from typing import Any

import msgspec
import pytest

from opsq.errors import ProtocolError, UsageError
from opsq.wire import messages as m
from opsq.wire.frames import ImpossibleRequest, encode_requests, received, request_reader


def framed(*requests: Any) -> bytes:
    content = msgspec.msgpack.encode(requests)
    return len(content).to_bytes(4, "big") + content


def test_request_with_an_impossible_field_is_told_apart_from_its_neighbours() -> None:
    found = list(request_reader().feed(framed(["Heartbeat", 1], ["Show", 2, -1], ["Show", 3, 4])))
    assert [found[0], found[2]] == [m.Heartbeat(1), m.Show(3, 4)]
    refused = found[1]
    assert isinstance(refused, ImpossibleRequest)
    assert refused.id == 2
    assert refused.error.message == "submission_id is not possible: Expected `int` >= 0."


@pytest.mark.parametrize(
    ("request_", "field"),
    [
        (["Submit", 1, [[b"k" * 16, 1, b"", {"a": 1}, None, 1 << 63]]], "submissions[0].priority"),
        (["Submit", 1, [[b"k" * 16, 1, b"", {"a": []}]]], "submissions[0].metadata"),
        (["Submit", 1, [[b"k" * 16, 1, b"", {"a\n": 1}]]], "submissions[0].metadata"),
        (["Submit", 1, [[b"k", 1]]], "submissions[0].request_key"),
        (["Submit", 1, [[]]], "submissions[0]"),
        (["Reserve", 1], "Reserve"),
        (["Reserve", 1, 5, "Random", float("nan")], "wait_s"),
        (["Dead", 1, None, [0, 0, 0]], "after"),
        (["History", 1, [None, None, [], "", {}, None, None, "", [256]]], "where.exit_statuses[0]"),
        (["Extend", 1, [[1, 0, 1, 0, 0, 1, -1]]], "held[0].mac"),
    ],
)
def test_impossible_field_is_named(request_: list[Any], field: str) -> None:
    [refused] = request_reader().feed(framed(request_))
    assert isinstance(refused, ImpossibleRequest)
    assert refused.error.details["field"] == field


def test_one_way_message_with_an_impossible_field_has_no_id() -> None:
    [refused] = request_reader().feed(framed(["Started", [[1, 2]]]))
    assert isinstance(refused, ImpossibleRequest)
    assert refused.id is None


@pytest.mark.parametrize("request_", [5, [], [5], ["Teleport", 1], ["Show", -1, 1], ["Show", "x", 1], ["Show"]])
def test_what_cannot_be_answered_is_the_end_of_the_connection(request_: Any) -> None:
    with pytest.raises(ProtocolError, match="cannot be decoded"):
        list(request_reader().feed(framed(["Heartbeat", 1], request_)))


@pytest.mark.parametrize("number", [False, True])
def test_boolean_for_an_id_is_not_answered_by_one(number: bool) -> None:
    """No client can decode a reply with such an id, nor what else is in its frame."""
    with pytest.raises(ProtocolError, match="cannot be decoded"):
        list(request_reader().feed(framed(["Heartbeat", 1], ["Show", number, 1])))


@pytest.mark.parametrize(
    ("new", "field"),
    [
        (m.NewSubmission(os.urandom(16), 1, metadata={"a": "\udc80"}), "submissions[1].metadata"),
        (m.NewSubmission(os.urandom(16), 1, unique_key="\ud800"), "submissions[1].unique_key"),
        (m.NewSubmission(os.urandom(16), 1 << 70), "submissions[1].chunks_count"),
        (m.NewSubmission(os.urandom(16), object()), "submissions[1].chunks_count"),  # type: ignore[arg-type]  # hostile
    ],
)
def test_value_that_no_message_can_carry_is_named_before_it_is_sent(new: m.NewSubmission, field: str) -> None:
    requests = [m.Heartbeat(1), m.Submit(2, [m.NewSubmission(os.urandom(16), 1), new])]
    with pytest.raises(UsageError) as refused:
        encode_requests(requests)
    assert refused.value.details["field"] == field


def test_requests_are_received_as_they_were_sent() -> None:
    requests: list[m.Request] = [m.Heartbeat(1), m.Show(2, 3), m.Submit(4, [m.NewSubmission(os.urandom(16), 1)])]
    assert received(requests) == requests

"""How a JSON document is filled from a message of the wire."""

from __future__ import annotations

import msgspec
import pytest

from opsq.documents.shape import text_or_base64
from opsq.documents.strategies import LimitShape, PauseShape
from opsq.documents.submissions import DeadShape, DependencyShape, SubmissionShape
from opsq.wire.messages import Backoff, DeadChunk, DependencyEdge, LimitState, PauseState, SubmissionState


def test_ids_and_instants_become_text() -> None:
    shape = DeadShape.from_message(DeadChunk(1 << 60, 3, 5, 0, 1500, "broke", 1, None))
    assert msgspec.to_builtins(shape) == {
        "submission_id": str(1 << 60),
        "index": 3,
        "attempts": 5,
        "lost": 0,
        "dead_at": "1970-01-01T00:00:01.500Z",
        "reason": "broke",
        "exit_status": 1,
        "signal": None,
        "input": None,
        "offset": None,
        "length": None,
    }


def test_id_that_is_not_there_stays_null() -> None:
    edge = DependencyEdge(7, "blocked", None, "k", 1, None, "ended", "run", None)
    assert DependencyShape.from_message(edge) == (
        DependencyShape("7", "blocked", None, None, "k", 1, "ended", "run", None)
    )


def test_counts_and_names_lose_their_suffix() -> None:
    limit = LimitShape.from_message(LimitState("tenant", None, 2, None, None, "ada", 0, 7, "a"))
    assert (limit.reserved, limit.by, limit.busiest) == (7, "ada", "a")
    assert PauseShape.from_message(PauseState({}, True, "ada", 0)).by == "ada"


def test_waiting_chunks_are_those_without_an_end_a_reservation_or_a_delay() -> None:
    state = SubmissionState(
        7, "open", 10, 3, 1, 1, 2, 1, {}, 0, 5, 5, Backoff(), True, 600.0, 0, None, None, None, "key", False, ""
    )
    shape = SubmissionShape.from_state(state)
    assert (shape.waiting, shape.on_dead, shape.unique, shape.unique_until) == (2, "keep", "key", "done")
    assert b'attempts"' not in msgspec.json.encode(shape).replace(b"max_attempts", b"")


def test_field_that_a_message_lacks_must_be_given() -> None:
    with pytest.raises(TypeError, match="submission_id"):
        DeadShape.from_message(PauseState({}, False, "", 0))


def test_bytes_are_text_if_they_are_utf_8_and_base64_otherwise() -> None:
    assert text_or_base64("é".encode()) == {"text": "é"}
    assert text_or_base64(b"\xff") == {"base64": "/w=="}

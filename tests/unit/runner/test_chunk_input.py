"""What is read ahead from a service: what comes next, once, within bounds, and nothing of what was given back."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from opsq.errors import ContentMissing, NotFound, OpsqError
from opsq.runner import chunk_input
from opsq.runner.chunk_input import ChunkInputs


class Remote:
    """A consumer whose contents lie in a service; it notes each read."""

    def __init__(self, sizes: dict[tuple[int, int], int]) -> None:
        self.sizes = sizes
        self.reads: list[tuple[int, int]] = []
        self.waiting = list(sizes)
        self.failures: dict[tuple[int, int], OpsqError] = {}

    def describe(self, submission_id: int) -> int:
        if submission_id < 0:
            raise NotFound("it was removed")
        return submission_id

    def reader(self, submission_id: int) -> Any:
        self.describe(submission_id)
        return SimpleNamespace(
            is_remote=True,
            size=lambda index: self.sizes[submission_id, index],
            read=lambda index: self.read_here(submission_id, index),
        )

    def read_here(self, described: int, index: int) -> bytes:
        self.reads.append((described, index))
        if (described, index) in self.failures:
            raise self.failures[described, index]
        return b"%d/%d" % (described, index)

    def upcoming(self, limit_count: int) -> list[tuple[int, int]]:
        return self.waiting[:limit_count]

    def take(self, of: ChunkInputs) -> bytes | Any:
        submission_id, index = self.waiting.pop(0)
        return of.content_of(SimpleNamespace(submission_id=submission_id, index=index))  # type: ignore[arg-type]


def reading(consumer: Remote) -> ChunkInputs:
    return ChunkInputs(consumer)  # type: ignore[arg-type]


def test_each_chunk_is_read_once_and_those_that_come_next_ahead() -> None:
    consumer = Remote({(1, index): 10 for index in range(100)})
    of = reading(consumer)
    assert consumer.take(of) == b"1/0"
    assert of._threads is not None
    of._threads.shutdown()
    assert sorted(consumer.reads) == [(1, index) for index in range(chunk_input.AHEAD_COUNT + 1)]


def test_all_come_in_order_and_none_twice() -> None:
    consumer = Remote({(1, index): 10 for index in range(100)})
    of = reading(consumer)
    assert [consumer.take(of) for _ in range(100)] == [b"1/%d" % index for index in range(100)]
    assert sorted(consumer.reads) == [(1, index) for index in range(100)]
    of.close()


def test_no_more_bytes_than_allowed_are_read_ahead(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(chunk_input, "AHEAD_BYTES", 25)
    consumer = Remote({(1, index): 10 for index in range(9)})
    of = reading(consumer)
    consumer.take(of)
    assert of._threads is not None
    of._threads.shutdown()
    assert sorted(consumer.reads) == [(1, 0), (1, 1), (1, 2)]


def test_what_was_given_back_is_forgotten() -> None:
    consumer = Remote({(1, index): 10 for index in range(3)} | {(2, 0): 10})
    of = reading(consumer)
    consumer.take(of)
    consumer.waiting = [(2, 0)]
    assert consumer.take(of) == b"2/0"
    assert of._ahead == {}
    of.close()


def test_failure_of_a_read_ahead_is_that_of_its_own_chunk() -> None:
    consumer = Remote({(1, 0): 10, (1, 1): 10, (-3, 0): 10})
    consumer.failures[1, 1] = ContentMissing("gone")
    of = reading(consumer)
    assert consumer.take(of) == b"1/0"
    with pytest.raises(ContentMissing):
        consumer.take(of)
    with pytest.raises(NotFound):
        consumer.take(of)
    of.close()

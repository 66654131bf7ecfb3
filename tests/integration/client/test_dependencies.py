"""Dependencies in Python: blocking, from asyncio, and with the engine in the process."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import opsq
from daemons import running
from opsq.errors import Conflict, NotFound, UsageError
from opsq.wire.messages import Dependency


@pytest.fixture
def queue(runtime_dir: Path) -> Iterator[opsq.Queue]:
    with opsq.Queue.open(runtime_dir) as queue:
        yield queue


def test_submission_is_handed_out_after_what_it_waits_for(queue: opsq.Queue) -> None:
    first = queue.submit([b"first"])
    second = queue.submit([b"second"], after=[first])
    third = queue.submit([b"third"], after=[(second.id, "ended"), {"batch": 7}, Dependency(first.id)])
    last = queue.submit([b"last"], metadata={"batch": 7}, after=(first, second.id))
    assert [one.state().state for one in (first, second, third, last)] == ["open", "blocked", "blocked", "blocked"]
    edges = [(edge.submission_id, edge.on_submission_id) for edge in second.dependencies()]
    assert edges == [(second.id, first.id), (third.id, second.id), (last.id, second.id)]
    found = []
    for chunk in queue.consume("OldestFirst"):
        found.append(chunk.data)
        chunk.complete()
    assert found == [b"first", b"second", b"last", b"third"]


def test_failed_dependency_cancels_unless_asked_otherwise(queue: opsq.Queue) -> None:
    first = queue.submit([b"first"])
    second = queue.submit([b"second"], after=[first.id])
    third = queue.submit([b"third"], after=[first.id], on_failed_dependency="run")
    first.cancel()
    assert (second.wait().state, third.state().state) == ("cancelled", "open")


@pytest.mark.parametrize(
    "after",
    [
        (n for n in [1]),
        [None],
        ["7x"],
        [{}],
        [{"a": 1, "b": 2}],
        [(7, "failed")],
        7,
        [{"not a key": 1}],
        [(1, "ended", 2)],
    ],
)
def test_what_cannot_be_waited_for_is_refused(queue: opsq.Queue, after: Any) -> None:
    with pytest.raises(UsageError, match="after"):
        queue.submit([b"a"], after=after)


def test_refusals_of_the_engine_are_errors(queue: opsq.Queue) -> None:
    with pytest.raises(NotFound):
        queue.submit([b"a"], after=[4711])
    with pytest.raises(Conflict, match="wait for itself"):
        queue.submit([b"a"], metadata={"k": 1}, after=[{"k": 1}])
    with pytest.raises(UsageError, match="on_failed_dependency"):
        queue.submit([b"a"], on_failed_dependency="stop")  # type: ignore[arg-type]
    assert list(queue.submissions()) == []


def test_follow_ups_keep_a_group_unfinished(queue: opsq.Queue) -> None:
    """Those of the last chunk are there before its submission ends."""
    queue.submit([b"1"], metadata={"batch": 7})
    join = queue.submit([b"join"], after=[{"batch": 7}])
    order = []
    for chunk in queue.consume("OldestFirst"):
        order.append(chunk.data)
        n = int(chunk.data) if chunk.data.isdigit() else 9
        chunk.complete(then=[opsq.FollowUp([b"%d" % (n + 1)], metadata={"batch": 7})] if n < 4 else [])
    assert order == [b"1", b"2", b"3", b"4", b"join"]
    assert join.state().state == "completed"


def test_dependencies_from_asyncio(runtime_dir: Path) -> None:
    async def work() -> None:
        async with opsq.connect_async(str(runtime_dir / "opsq.sock")) as queue:
            first = await queue.submit([b"first"])
            second = await queue.submit([b"second"], after=[first.id])
            [edge] = await second.dependencies()
            assert (edge.state, edge.on_submission_id, edge.outcome) == ("blocked", first.id, None)
            await first.cancel()
            assert (await second.wait()).state == "cancelled"

    with running(runtime_dir):
        asyncio.run(work())

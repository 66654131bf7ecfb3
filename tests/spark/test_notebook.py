"""The id of a write with a unique key, which Spark's writer does not tell, whatever else has had the key; no JVM."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

import opsq
import opsq.spark
from opsq.errors import NotFound
from opsq.settings import Settings

KEY = "nightly"


class FrameThat:
    """A frame whose write does this; it is its session, its writer, and all that these return."""

    def __init__(self, writes: Callable[[], object]) -> None:
        self.sparkSession = self.write = self  # as PySpark calls it
        self.save = writes

    def createDataFrame(self, *_: object) -> None:  # noqa: N802  # as PySpark calls it
        return None

    def format(self, _: str) -> FrameThat:
        return self

    def mode(self, _: str) -> FrameThat:
        return self

    def options(self, **_: object) -> FrameThat:
        return self


def written(daemon: Settings, writes: Callable[[], object]) -> int:
    """The id of a write that does this instead of Spark's work."""
    frame: Any = FrameThat(writes)
    return opsq.spark.write(frame, state_dir=daemon.state_dir, unique_key=KEY)


def test_write_gives_the_submission_that_it_made_though_an_earlier_one_had_the_key(
    daemon: Settings, queue: opsq.Queue
) -> None:
    queue.submit([b"a"], unique_key=KEY).cancel()
    made: list[int] = []
    assert [written(daemon, lambda: made.append(queue.submit([b"b"], unique_key=KEY).id))] == made


def test_write_that_is_dropped_gives_the_holder_of_the_key_though_it_ends_meanwhile(
    daemon: Settings, queue: opsq.Queue
) -> None:
    holder = queue.submit([b"a"], unique_key=KEY)
    queue.submit([b"b"])
    assert written(daemon, lambda: None) == holder.id
    assert written(daemon, holder.cancel) == holder.id


def test_write_whose_submission_is_removed_at_once_is_not_an_earlier_one(daemon: Settings, queue: opsq.Queue) -> None:
    queue.submit([b"a"], unique_key=KEY).cancel()

    def write() -> None:
        made = queue.submit([b"b"], unique_key=KEY)
        made.cancel()
        made.remove()

    with pytest.raises(NotFound, match="was made, and is not known any more"):
        written(daemon, write)

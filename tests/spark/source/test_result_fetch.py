"""Which results are read to guess columns from, and how often the store is opened, without a daemon and a JVM."""

from __future__ import annotations

import io
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from opsq.client.core.held_block import Result
from opsq.spark.source import batch_reader, result_fetch
from opsq.spark.source.batch_reader import _distinct_schemas
from opsq.spark.source.result_fetch import SourceSubmission, sample

LIMIT = 1000
QUARTER = LIMIT // 4


class StoreOfOne:
    """A store whose only object has some bytes again and again, and which counts what is asked of it."""

    def __init__(self, content: bytes = b"") -> None:
        self.content = content
        self.opened_count = 0
        self.read_bytes: list[int] = []

    def open(self) -> StoreOfOne:
        self.opened_count += 1
        return self

    def path(self, _: str) -> None:
        return None

    def read_range(self, _: str, offset: int, size: int) -> bytes:
        self.read_bytes.append(size)
        return self.content[offset : offset + size] if self.content else b"s" * size


def source_of(monkeypatch: pytest.MonkeyPatch, store: StoreOfOne, places: list[Result]) -> SourceSubmission:
    """A submission whose chunks have these results."""
    for module in (result_fetch, batch_reader):
        monkeypatch.setattr(module, "indexed_places", lambda *_: enumerate(places))
    access: Any = store
    return SourceSubmission(1, "folder", len(places), None, access)


def sizes_sampled(monkeypatch: pytest.MonkeyPatch, sizes: list[int]) -> tuple[list[int], list[int]]:
    """The sizes of results in a sample, and of those that were read for it: all are stored."""
    store, queue = StoreOfOne(), None
    source = source_of(monkeypatch, store, [("part", 0, size) for size in sizes])
    found = sample(queue, source, LIMIT)  # type: ignore[arg-type]  # nobody asks it
    return sorted(map(len, found)), sorted(store.read_bytes)


@pytest.mark.parametrize(
    ("sizes", "chosen"),
    [
        ([], []),
        ([5, 1, 3], [1, 3, 5]),
        ([10**9, 5, 10**9, 7], [5, 7]),
        ([10**6, 10**9, 10**5], [10**5]),
        ([QUARTER, QUARTER + 1], [QUARTER]),
        ([1] * 50 + [QUARTER - 1] * 7, [QUARTER - 1] * 5),
    ],
    ids=["none", "small", "small before large", "the smallest of large", "a quarter is large", "the largest of small"],
)
def test_sample_is_of_small_results_or_one_large_and_no_other_is_read(
    monkeypatch: pytest.MonkeyPatch, sizes: list[int], chosen: list[int]
) -> None:
    assert sizes_sampled(monkeypatch, sizes) == (chosen, chosen)
    assert sizes_sampled(monkeypatch, sizes[::-1]) == (chosen, chosen)


def test_small_results_of_equal_size_are_chosen_whichever_chunks_have_them(monkeypatch: pytest.MonkeyPatch) -> None:
    results: list[Result] = [b"%03d" % number * 50 for number in range(20)]
    queue: Any = None
    chosen = [
        set(sample(queue, source_of(monkeypatch, StoreOfOne(), places), LIMIT)) for places in (results, results[::-1])
    ]
    assert chosen[0] == chosen[1]
    assert len(chosen[0]) == 7


def test_store_is_opened_once_for_all_threads_that_read_schemas(monkeypatch: pytest.MonkeyPatch) -> None:
    sink = io.BytesIO()
    pq.write_table(pa.table({"n": [1, 2]}), sink)
    store, queue = StoreOfOne(sink.getvalue()), None
    source = source_of(monkeypatch, store, [("part", 0, len(store.content))] * 64)
    [schema] = _distinct_schemas(queue, source, "parquet")  # type: ignore[arg-type]  # nobody asks it
    assert schema.names == ["n"]
    assert store.opened_count == 1

"""The walk over results: chunk order, gaps, dead chunks, pages."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from opsq.client.core.held_block import Result
from opsq.client.core.result_pages import ResultCursor, only_described
from opsq.errors import DatabaseDamaged, NotFinished, NotFound, WorkFailed
from opsq.wire.messages import Described, ResultRow, ResultRows


def row(block: int, mask: int, results: list[object] | None) -> ResultRow:
    return ResultRow(block, mask, msgspec.Raw(msgspec.msgpack.encode(results)))


def page(
    rows: list[ResultRow], completed: list[int], count: int, *, is_final: bool = True, next_block: int = 0
) -> ResultRows:
    return ResultRows(
        1,
        next_block or len(completed),
        rows,
        completed,
        count,
        is_final,
        "completed" if is_final else "open",
        b"content",
    )


def test_submission_that_nobody_describes_is_not_found() -> None:
    with pytest.raises(NotFound):
        only_described(Described(1, []), 7)


def test_results_come_in_chunk_order_whatever_the_order_of_rows() -> None:
    cursor = ResultCursor(7)
    rows = [row(0, 0b100, [b"c"]), row(1, 1, [["part", 1, 2]]), row(0, 0b001, [b"a"])]
    full = (1 << 64) - 1
    results = list(cursor.take(page(rows, [full, 1], 65)))
    assert results == [b"a", b"", b"c", *[b""] * 61, ("part", 1, 2)]
    assert cursor.is_done
    assert cursor.content == b"content"


def test_the_content_comes_with_the_first_page_and_is_kept_for_the_next() -> None:
    cursor = ResultCursor(7)
    full = (1 << 64) - 1
    list(cursor.take(page([], [full], 65)))
    [place] = cursor.take(
        msgspec.structs.replace(page([row(1, 1, [["part", 1, 2]])], [1], 65, next_block=2), content=b"")
    )
    assert place == ("part", 1, 2)
    assert cursor.content == b"content"


def test_a_submission_without_chunks_has_no_results() -> None:
    cursor = ResultCursor(7)
    assert list(cursor.take(page([], [], 0))) == []
    assert cursor.is_done


def test_an_unfinished_submission_is_refused_unless_followed() -> None:
    with pytest.raises(NotFinished, match="7 is open"):
        list(ResultCursor(7).take(page([], [1], 1, is_final=False)))


def test_following_stops_at_the_first_gap_and_goes_on_from_there() -> None:
    cursor = ResultCursor(7, is_following=True)
    assert list(cursor.take(page([row(0, 0b101, [b"a", b"c"])], [0b101], 3, is_final=False))) == [b"a"]
    assert (cursor.request(5).from_index, cursor.request(5).wait_s) == (1, None)
    rows = [row(0, 0b101, [b"a", b"c"]), row(0, 0b010, [b"b"])]
    assert list(cursor.take(page(rows, [0b111], 3))) == [b"b", b"c"]
    assert cursor.is_done


def test_a_dead_chunk_ends_the_results_and_is_named() -> None:
    cursor = ResultCursor(7)
    seen: list[Result] = []
    with pytest.raises(WorkFailed, match="7/1 has no result"):
        seen.extend(cursor.take(page([row(0, 0b101, [b"a", b"c"])], [0b101], 3)))


def test_dead_chunks_are_passed_over_when_asked() -> None:
    cursor = ResultCursor(7, skip_dead=True)
    assert list(cursor.take(page([row(0, 0b101, [b"a", b"c"])], [0b101], 3))) == [b"a", b"c"]


@given(st.lists(st.binary(max_size=3), max_size=300), st.integers(1, 3), st.randoms())
def test_pages_of_any_size_give_back_all_results(results: list[bytes], blocks: int, random: object) -> None:
    """A daemon of five lines serves the pages; rows of a block are cut at a random place."""
    cursor = ResultCursor(7)
    found: list[Result] = []
    while not cursor.is_done:
        first = cursor.request(1).from_index // 64
        masks, rows = [], []
        for block in range(first, min(first + blocks, -(-len(results) // 64))):
            part = results[block * 64 : block * 64 + 64]
            masks.append((1 << len(part)) - 1)
            cut = random.randint(0, len(part))  # type: ignore[attr-defined]  # hypothesis types it as object
            for low, high in ((cut, len(part)), (0, cut)):
                if high > low:
                    rows.append(row(block, (1 << high) - (1 << low), part[low:high]))
        found += cursor.take(page(rows, masks, len(results), next_block=first + len(masks)))
    assert found == results


@pytest.mark.parametrize("stored", [5, {}, [0, 1], [[[]], b""], [b"a"], [["part", -1, 2], b""]], ids=str)
def test_malformed_results_are_named_or_passed_over(stored: object) -> None:
    rows = [row(0, 0b1001, [b"a", b"d"]), ResultRow(0, 0b0110, msgspec.Raw(msgspec.msgpack.encode(stored)))]
    cursor = ResultCursor(7)
    results = cursor.take(page(rows, [0b1111], 4))
    assert next(results) == b"a"
    with pytest.raises(DatabaseDamaged, match="7/1"):
        next(results)
    bad: list[int] = []
    cursor = ResultCursor(7, on_bad=bad.append)
    assert list(cursor.take(page(rows, [0b1111], 4))) == [b"a", b"d"]
    assert bad == [1, 2]
    assert cursor.is_done

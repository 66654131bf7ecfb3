"""Ids, masks and handles: what they look like, and that nothing else passes for one."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from opsq.errors import InvalidHandle, NotFound
from opsq.ids import (
    EPOCH_MS,
    FULL,
    Handle,
    SubmissionId,
    SubmissionIds,
    Token,
    block_mask,
    blocks_of,
    first_bits,
    from_sql,
    mask_indexes,
    parse_handle,
    parse_submission_id,
    shard_of,
    to_sql,
)

masks = st.integers(0, FULL)


@given(
    walls=st.lists(st.integers(0, EPOCH_MS * 2), min_size=1, max_size=50),
    last_ms=st.integers(1, EPOCH_MS),
    sequence=st.integers(0, 4095),
)
def test_ids_grow_whatever_the_wall_clock_does(walls: list[int], last_ms: int, sequence: int) -> None:
    last = last_ms << 22 | sequence
    ids = SubmissionIds(last)
    found = [last, *(ids.next(wall) for wall in walls)]
    assert found == sorted(set(found))
    assert all(submission_id < 1 << 63 for submission_id in found)


def test_ids_of_one_millisecond_do_not_run_out() -> None:
    ids = SubmissionIds()
    found = [ids.next(EPOCH_MS + 5) for _ in range(10_000)]
    assert len(set(found)) == 10_000
    assert found == sorted(found)


def test_ids_of_two_shards_never_meet() -> None:
    one, other = SubmissionIds(shard=1), SubmissionIds(shard=2)
    assert not {one.next(EPOCH_MS + 5) for _ in range(100)} & {other.next(EPOCH_MS + 5) for _ in range(100)}


def test_ids_of_a_shard_never_meet_its_older_ones_although_the_last_known_one_is_of_another() -> None:
    own = [SubmissionIds(shard=1).next(EPOCH_MS + 5)]
    ids = SubmissionIds(shard=1)
    own += [ids.next(EPOCH_MS + 5) for _ in range(3)]
    moved_here = SubmissionIds(shard=2).next(EPOCH_MS + 5)
    restarted = SubmissionIds(last=max(*own, moved_here), shard=1)
    assert restarted.next(EPOCH_MS + 5) not in own
    assert {shard_of(one) for one in own} == {1}
    assert shard_of(moved_here) == 2


@given(masks)
def test_mask_comes_back_from_sql_as_it_was(mask: int) -> None:
    assert from_sql(to_sql(mask)) == mask
    assert -(1 << 63) <= to_sql(mask) < 1 << 63


@given(mask=masks, block=st.integers(0, 1 << 50))
def test_indexes_of_a_mask_are_its_bits_ascending(mask: int, block: int) -> None:
    assert list(mask_indexes(block, mask)) == [block * 64 + bit for bit in range(64) if mask >> bit & 1]


@given(mask=masks, count=st.integers(0, 70))
def test_first_bits_are_the_lowest_of_a_mask(mask: int, count: int) -> None:
    assert list(mask_indexes(0, first_bits(mask, count))) == list(mask_indexes(0, mask))[:count]


@given(st.integers(0, 1000))
def test_blocks_of_a_submission_hold_all_its_chunks_and_no_more(chunks_count: int) -> None:
    blocks = blocks_of(chunks_count)
    assert sum(block_mask(chunks_count, block).bit_count() for block in range(blocks + 2)) == chunks_count
    assert block_mask(chunks_count, blocks) == 0


@given(
    submission_id=st.integers(0, (1 << 63) - 1),
    index=st.integers(0, 10**17),
    reservation_id=st.integers(0, (1 << 60) - 1),
    attempt=st.integers(0, (1 << 32) - 1),
    granted=st.integers(1, FULL),
    mac=st.integers(0, FULL),
)
def test_handle_comes_back_from_its_text(
    submission_id: int, index: int, reservation_id: int, attempt: int, granted: int, mac: int
) -> None:
    handle = Handle(SubmissionId(submission_id), index, Token(reservation_id, attempt, granted, mac))
    assert parse_handle(str(handle)) == handle
    assert str(handle).split() == [str(handle)]


@pytest.mark.parametrize(
    "text",
    [
        "",
        "1",
        "1/2",
        "1/2@",
        "1/2@3",
        "1/2@a.b.c",
        "x/2@1.0.1.1",
        "1/2@1.0.1.1 ",
        "1/-2@1.0.1.1",
        "١/2@1.0.1.1",
        f"{1 << 63}/0@1.0.1.1",
    ],
)
def test_anything_else_is_no_handle(text: str) -> None:
    with pytest.raises(InvalidHandle):
        parse_handle(text)


@pytest.mark.parametrize("text", ["", "-1", "1.0", "abc", "٣", str(1 << 63), "1" * 30])
def test_text_that_is_no_id_is_unknown(text: str) -> None:
    with pytest.raises(NotFound):
        parse_submission_id(text)


def test_largest_id_is_one() -> None:
    assert parse_submission_id(str((1 << 63) - 1)) == (1 << 63) - 1

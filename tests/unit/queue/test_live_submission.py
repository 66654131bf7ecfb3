"""The submission of a submission.

Lowest chunks first, nothing twice, nothing forgotten, and memory only for what is not plain.
"""

from __future__ import annotations

from collections.abc import Iterator

import apsw
import pytest
from hypothesis import given
from hypothesis import strategies as st

from opsq.clock import MonoNs, Now, WallMs
from opsq.ids import FULL, SubmissionId, block_mask
from opsq.queue import live_submission as module
from opsq.queue.chunks.attempts import split_by_attempt, tried
from opsq.queue.live_submission import LiveSubmission
from opsq.store import backlog
from opsq.store.backlog import AttemptRow
from opsq.store.database_file import migrations
from opsq.store.submissions import SubmissionRow
from unit.model.rig import Rig

NOW = Now(MonoNs(10**12), WallMs(10**12))


@pytest.fixture
def reader() -> Iterator[apsw.Connection]:
    """A database with our schema, in memory."""
    connection = apsw.Connection(":memory:")
    for script in migrations():
        connection.execute(script)
    yield connection
    connection.close()


def supply_of(chunks_count: int, frontier: int = 0) -> LiveSubmission:
    row = SubmissionRow(**dict.fromkeys(SubmissionRow._fields, 0))  # type: ignore[arg-type]  # all columns
    row = row._replace(id=SubmissionId(1), state="open", lanes=b"\x80", first_block=None, has_failed=1)
    return LiveSubmission(row._replace(chunks_total=chunks_count, frontier=frontier))


def take_all(submission: LiveSubmission, reader: apsw.Connection) -> list[tuple[int, int]]:
    """(block, mask) of everything free, in the order in which it comes."""
    found = []
    while (work := submission.next_block(reader)) is not None:
        found.append((work.index, work.free))
        work.reserved |= work.free
    return found


@pytest.mark.parametrize("chunks_count", [1, 63, 64, 65, 128, 1000])
def test_untouched_submission_gives_whole_blocks_by_arithmetic(reader: apsw.Connection, chunks_count: int) -> None:
    submission = supply_of(chunks_count)
    blocks = -(-chunks_count // 64)
    assert take_all(submission, reader) == [(block, block_mask(chunks_count, block)) for block in range(blocks)]


def test_blocks_below_the_frontier_come_from_the_file_and_those_without_a_row_are_finished(
    reader: apsw.Connection,
) -> None:
    backlog.put_blocks(reader, [(1, 0, 0b101), (1, 3, FULL)])
    submission = supply_of(64 * 5, frontier=4)
    assert take_all(submission, reader) == [(0, 0b101), (3, FULL), (4, FULL)]


@pytest.mark.parametrize("at_once", [1, 2, 64])
def test_blocks_are_read_ahead_a_few_at_a_time_and_none_is_passed_over(
    reader: apsw.Connection, at_once: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "READ_BLOCKS", at_once)
    backlog.put_blocks(reader, [(1, block, 1) for block in range(0, 100, 3)])
    submission = supply_of(64 * 100, frontier=100)
    assert [block for block, _ in take_all(submission, reader)] == list(range(0, 100, 3))


def test_returned_block_comes_before_those_not_offered_yet(reader: apsw.Connection) -> None:
    submission = supply_of(64 * 4)
    for _ in range(2):
        work = submission.next_block(reader)
        assert work is not None
        work.reserved = FULL
    submission.blocks[0].reserved = FULL >> 1
    assert submission.give_back(submission.blocks[0])
    assert [block for block, _ in take_all(submission, reader)] == [0, 2, 3]


def test_block_given_back_a_thousand_times_is_remembered_once(reader: apsw.Connection) -> None:
    submission = supply_of(64)
    for _ in range(1000):
        work = submission.next_block(reader)
        assert work is not None
        work.reserved |= 1
        work.reserved &= ~1
        submission.give_back(work)
    assert submission.returned == [0]


def test_delayed_chunks_are_held_back_for_what_remains_of_their_delay(reader: apsw.Connection) -> None:
    backlog.put_blocks(reader, [(1, 0, 0b111)])
    backlog.put_attempts(
        reader, 1, 0, [AttemptRow(0b1, 1, 0, NOW.wall + 4000, 5000), AttemptRow(0b10, 2, 0, NOW.wall - 1, 5000)]
    )
    submission = supply_of(64, frontier=1)
    late = submission.restore_delays(reader, NOW)
    assert [(due - NOW.mono, row.mask, row.attempts) for _, due, row in late] == [(4_000_000_000, 1, 1)]
    work = submission.next_block(reader)
    assert work is not None
    assert work.free == 0b110
    assert submission.counts == (63, 1, 0, 0, 0, 0)


@pytest.mark.parametrize(("due_in_ms", "remaining_ms"), [(86_400_000, 5000), (-86_400_000, 0), (5000, 5000)])
def test_delay_read_after_the_clock_stepped_lasts_between_nothing_and_its_full_length(
    reader: apsw.Connection, due_in_ms: int, remaining_ms: int
) -> None:
    backlog.put_blocks(reader, [(1, 0, 1)])
    backlog.put_attempts(reader, 1, 0, [AttemptRow(1, 1, 0, NOW.wall + due_in_ms, 5000)])
    late = supply_of(1, frontier=1).restore_delays(reader, NOW)
    assert [due - NOW.mono for _, due, _ in late] == ([remaining_ms * 1_000_000] if remaining_ms else [])


def test_plain_blocks_leave_memory_when_they_are_finished_and_folded(rig: Rig) -> None:
    submission_id = rig.submit(64 * 200)
    peer = rig.connect()
    for _ in range(20):
        for ticket in rig.reserve(peer, 640):
            rig.complete(peer, ticket.held())
    rig.fold()
    submission = rig.engine._state.live.get(submission_id)
    assert submission is None or not submission.blocks


# --- attempts ---

masks = st.integers(1, FULL)


@given(mask=masks, hits=st.lists(st.tuples(masks, st.booleans()), max_size=12))
def test_attempts_of_a_block_are_those_of_its_chunks_one_by_one(mask: int, hits: list[tuple[int, bool]]) -> None:
    rows: tuple[AttemptRow, ...] = ()
    counts = {bit: [0, 0] for bit in range(64)}
    for hit, is_loss in hits:
        rows, new = tried(rows, hit, attempts=int(not is_loss), lost=int(is_loss), due_at=7, delay_ms=0)
        for bit in range(64):
            if hit >> bit & 1:
                counts[bit][is_loss] += 1
        assert sum(row.mask for row in new) == hit
    for bit, (attempts, lost) in counts.items():
        found = [(row.attempts, row.lost) for row in rows if row.mask >> bit & 1]
        assert found == ([(attempts, lost)] if attempts or lost else [])
    parts = split_by_attempt(rows, mask)
    assert sum(part for _, part in parts) == mask
    for attempt, part in parts:
        assert all(sum(counts[bit]) == attempt for bit in range(64) if part >> bit & 1)

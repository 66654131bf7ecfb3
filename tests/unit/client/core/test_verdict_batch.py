"""Ledger and verdict batch: what was granted is reported once, in blocks and masks, whatever is refused.

Revoked or sent again.
"""

from __future__ import annotations

import itertools

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from opsq.client.core.held_block import HeldBlock
from opsq.client.core.ledger import Ledger
from opsq.client.core.verdict_batch import BUFFERED_LIMIT_BYTES, FailedRun, VerdictBatch
from opsq.errors import Bug, Conflict, NotFound, OpsqError, StorageFull, UsageError
from opsq.wire.messages import (
    ChunkMask,
    Complete,
    CompleteAndReserve,
    Completed,
    ErrorReply,
    Fail,
    Grant,
    HeldChunks,
    NewSubmission,
    Refusal,
    Release,
    Request,
    Reserve,
    Revoked,
    Started,
)
from scripted import grant, reserved


@pytest.fixture
def batch() -> VerdictBatch:
    return new_batch()


def new_batch() -> VerdictBatch:
    return VerdictBatch(Ledger(), itertools.count(100).__next__)


def offer(batch: VerdictBatch, *grants: Grant) -> list[HeldBlock]:
    blocks = batch.ledger.add_grants(reserved(1, *grants))
    batch.ledger.offer(blocks)
    return blocks


def take_all(batch: VerdictBatch) -> list[tuple[HeldBlock, int]]:
    return list(iter(batch.ledger.take_chunk, None))


def sent(batch: VerdictBatch, kind: type[Request]) -> list[Request]:
    """What is to be sent now, of one kind; nothing else may be there but word of what was begun."""
    requests = [request for request in batch.requests() if not isinstance(request, Started)]
    assert all(isinstance(request, kind) for request in requests), requests
    return requests


def test_chunks_are_taken_in_the_order_granted(batch: VerdictBatch) -> None:
    offer(batch, grant(block=3, mask=0b101), grant(block=1, mask=1 << 63))
    assert batch.ledger.ready_count == 3
    assert [(held.number, bit) for held, bit in take_all(batch)] == [(3, 0), (3, 2), (1, 63)]
    assert batch.ledger.ready_count == 0


def test_chunk_that_is_begun_after_others_of_its_block_were_reported_is_reported(batch: VerdictBatch) -> None:
    offer(batch, grant(mask=0b11))
    batch.ledger.take_chunk()
    assert batch.ledger.take_started() == [ChunkMask(7, 0, 0b01)]
    assert batch.ledger.take_started() == []
    batch.ledger.take_chunk()
    assert batch.ledger.take_started() == [ChunkMask(7, 0, 0b11)]


def test_completions_of_a_block_travel_as_one_mask(batch: VerdictBatch) -> None:
    offer(batch, grant(mask=0b1011))
    for held, bit in take_all(batch):
        batch.complete(held, 1 << bit, run_s=bit + 1.0)
    (request,) = sent(batch, Complete)
    (completion,) = request.completions
    assert completion.held == HeldChunks(7, 0, 0b1011, 1, 0, 0b1011, 99)
    assert (completion.run_s, completion.run_max_s) == (7.0, 4.0)
    assert completion.results == msgspec.Raw(b"\xc0")


def test_results_are_sent_in_chunk_order_with_empty_ones_between(batch: VerdictBatch) -> None:
    offer(batch, grant(mask=0b1110))
    first, second, third = take_all(batch)
    batch.complete(third[0], 0b1000, [("part", 5, 6)])
    batch.complete(first[0], 0b0010, [b"one"])
    batch.complete(second[0], 0b0100)
    (request,) = sent(batch, Complete)
    assert msgspec.msgpack.decode(request.completions[0].results) == [b"one", b"", ["part", 5, 6]]


def test_completions_with_other_exit_statuses_are_told_apart(batch: VerdictBatch) -> None:
    offer(batch, grant(mask=0b111))
    for (held, bit), status in zip(take_all(batch), (0, 3, 3), strict=True):
        batch.complete(held, 1 << bit, exit_status=status)
    (request,) = sent(batch, Complete)
    assert [(part.held.mask, part.exit_status) for part in request.completions] == [(0b001, 0), (0b110, 3)]


def test_large_results_are_spread_over_several_requests(batch: VerdictBatch) -> None:
    for block in range(3):
        (held,) = batch.ledger.add_grants(reserved(1, grant(block=block, mask=1)))
        batch.ledger.start_all([held])
        batch.complete(held, 1, [b"x" * BUFFERED_LIMIT_BYTES])
    assert len(sent(batch, Complete)) == 3


def test_wrong_count_of_results_is_refused(batch: VerdictBatch) -> None:
    (held,) = batch.ledger.add_grants(reserved(1, grant(mask=0b11)))
    batch.ledger.start_all([held])
    with pytest.raises(UsageError):
        batch.complete(held, 0b11, [b"one"])


def test_begun_chunks_are_reported_once_and_finished_ones_not_at_all(batch: VerdictBatch) -> None:
    (held,) = offer(batch, grant(mask=0b11))
    batch.ledger.take_chunk()
    assert batch.requests() == [Started([ChunkMask(7, 0, 0b01)])]
    batch.complete(held, 0b01)
    batch.ledger.take_chunk()
    batch.complete(held, 0b10)
    assert [type(request) for request in batch.requests()] == [Complete]


def test_a_reserve_joins_the_last_completion(batch: VerdictBatch) -> None:
    (held,) = offer(batch, grant(mask=1))
    batch.ledger.take_chunk()
    batch.complete(held, 1)
    requests = batch.requests()
    reserve = Reserve(55, 9, "OldestFirst", None, None, True)
    batch.with_reserve(requests, reserve)
    (joined,) = requests
    assert isinstance(joined, CompleteAndReserve)
    assert (joined.id, joined.count, joined.until_empty, len(joined.completions)) == (55, 9, True, 1)
    batch.answer(Completed(55))
    assert batch.is_settled
    assert batch.ledger.holdings() == ([], [])


def test_a_reason_that_is_no_text_is_sent_in_escapes(batch: VerdictBatch) -> None:
    """As the name of a file may be that an exception tells."""
    offer(batch, grant(mask=1))
    ((held, _),) = take_all(batch)
    batch.fail(held, 1, FailedRun("no caf\udce9"))
    (request,) = sent(batch, Fail)
    assert request.failures[0].reason == "no caf\\udce9"


def test_a_failure_keeps_the_end_of_a_long_reason(batch: VerdictBatch) -> None:
    (held,) = offer(batch, grant(mask=1))
    batch.ledger.take_chunk()
    batch.fail(held, 1, FailedRun("x" * 20_000 + "end", exit_status=2, delay_s=3.0, is_final=True))
    (request,) = sent(batch, Fail)
    (failure,) = request.failures
    assert len(failure.reason) == 16384
    assert failure.reason.endswith("xend")
    assert (failure.exit_status, failure.delay_s, failure.is_final) == (2, 3.0, True)


def test_all_without_a_verdict_is_given_back(batch: VerdictBatch) -> None:
    (held,) = offer(batch, grant(mask=0b1111))
    batch.ledger.take_chunk()
    batch.ledger.take_chunk()
    batch.complete(held, 0b01)
    batch.release_all()
    assert batch.ledger.ready_count == 0
    requests = [request for request in batch.requests() if not isinstance(request, Started)]
    assert [type(request) for request in requests] == [Complete, Release]
    assert requests[1].held == [HeldChunks(7, 0, 0b1110, 1, 0, 0b1111, 99)]


def test_without_room_a_completion_is_kept_and_sent_again(batch: VerdictBatch) -> None:
    (held,) = offer(batch, grant(mask=1))
    batch.ledger.take_chunk()
    batch.complete(held, 1, [b"result"])
    (request,) = sent(batch, Complete)
    batch.answer(ErrorReply(request.id, "storage_full", "No room."))
    assert batch.is_again_due
    assert not batch.is_settled
    assert sent(batch, Complete) == [request]
    batch.answer(Completed(request.id))
    assert batch.is_settled
    assert not batch.errors


@pytest.mark.parametrize("code", ["storage_full", "invalid_strategy"])
def test_completion_that_failed_with_a_reserve_is_sent_again_alone(batch: VerdictBatch, code: str) -> None:
    """The mistake may be in the reserve; if it is not, the second answer says so."""
    (held,) = offer(batch, grant(mask=1))
    batch.ledger.take_chunk()
    batch.complete(held, 1)
    requests = batch.requests()
    batch.with_reserve(requests, Reserve(55, 9))
    batch.answer(ErrorReply(55, code, "Refused."))
    assert not batch.errors
    assert [type(request) for request in batch.requests()] == [Complete]
    batch.answer(ErrorReply(55, "invalid_strategy", "Refused."))
    assert [error.code for error in batch.errors] == ["invalid_strategy"]
    assert batch.is_settled


def test_any_other_error_is_raised_later_and_the_chunks_are_forgotten(batch: VerdictBatch) -> None:
    (held,) = offer(batch, grant(mask=1))
    batch.ledger.take_chunk()
    batch.complete(held, 1)
    (request,) = sent(batch, Complete)
    batch.answer(ErrorReply(request.id, "bug", "Oops."))
    assert isinstance(batch.errors[0], Bug)
    assert batch.ledger.holdings() == ([], [])


def test_a_completion_that_names_a_lost_result_gives_its_chunks_back(batch: VerdictBatch) -> None:
    """The reserve that travels with it goes alone, and completions that name other results are sent."""
    offer(batch, grant(mask=0b11), grant(block=1, mask=1))
    first, *_ = taken = take_all(batch)
    for held, bit in taken:
        batch.complete(held, 1 << bit, [("results/lost.part" if held is first[0] else "results/kept.part", 0, 5000)])
    requests = batch.requests()
    joined = batch.with_reserve(requests, Reserve(7, 1))
    assert requests == [joined]
    assert batch.withhold([joined], {"results/other.part": StorageFull("lost")}) == [joined]
    assert batch.withhold([joined], {"results/lost.part": StorageFull("lost")}) == [Reserve(7, 1)]
    assert batch.errors.popleft().code == "storage_full"
    (release,) = sent(batch, Release)
    assert [(held.block, held.mask) for held in release.held] == [(0, 0b11), (1, 1)]
    batch.answer(Completed(release.id))
    assert batch.is_settled
    assert batch.ledger.blocks() == []


def test_a_refused_completion_is_told(batch: VerdictBatch) -> None:
    (held,) = offer(batch, grant(mask=0b11))
    take_all(batch)
    batch.complete(held, 0b11)
    (request,) = sent(batch, Complete)
    batch.answer(Completed(request.id, [Refusal(7, 0, 0b10, "already_finished", "chunk_finished")]))
    assert [(lost.index, lost.code) for lost in batch.ledger.lost] == [(1, "already_finished")]


def test_a_refused_release_is_not_told_because_nothing_was_lost(batch: VerdictBatch) -> None:
    (held,) = offer(batch, grant(mask=0b11))
    take_all(batch)
    batch.release(held, 0b11)
    (request,) = sent(batch, Release)
    batch.answer(Completed(request.id, [Refusal(7, 0, 0b11, "reservation_lost", "chunk_waiting")]))
    assert not batch.ledger.lost


def test_chunks_refused_only_for_the_sake_of_others_are_sent_again_alone(batch: VerdictBatch) -> None:
    (held,) = offer(batch, grant(mask=0b111))
    take_all(batch)
    batch.complete(held, 0b111, [b"a", b"b", b"c"])
    (request,) = sent(batch, Complete)
    done, rest = Refusal(7, 0, 0b010, "already_finished", ""), Refusal(7, 0, 0b101, "reservation_lost", "")
    batch.answer(Completed(request.id, [done, rest]))
    assert [lost.index for lost in batch.ledger.lost] == [1]
    (again,) = sent(batch, Complete)
    assert again.completions[0].held.mask == 0b101
    assert msgspec.msgpack.decode(again.completions[0].results) == [b"a", b"c"]
    batch.answer(Completed(again.id, [rest]))
    assert [lost.index for lost in batch.ledger.lost] == [1, 0, 2]
    assert batch.is_settled


def test_a_revoked_chunk_is_told_but_may_still_be_completed(batch: VerdictBatch) -> None:
    """The daemon accepts a late completion while the chunk is unfinished, so the batch sends it."""
    (held,) = offer(batch, grant(mask=0b111))
    batch.ledger.take_chunk()
    batch.ledger.revoked(Revoked([ChunkMask(7, 0, 0b111)], "reservation_lost"))
    assert [lost.index for lost in batch.ledger.lost] == [0]
    assert batch.ledger.take_chunk() is None, "what was not begun is not handed out any more"
    assert held.is_revoked(0)
    assert batch.ledger.holdings()[0] == []
    batch.complete(held, 0b1)
    assert len(sent(batch, Complete)) == 1


def test_a_cancelled_chunk_is_told_and_its_verdict_goes_nowhere(batch: VerdictBatch) -> None:
    (held,) = offer(batch, grant(mask=0b1))
    batch.ledger.take_chunk()
    batch.ledger.revoked(Revoked([ChunkMask(7, 0, 0b1)], "cancelled"))
    batch.complete(held, 0b1, [b"late"])
    assert not sent(batch, Complete)
    assert [lost.code for lost in batch.ledger.lost] == ["cancelled"]
    assert batch.is_settled


def test_a_revocation_that_crosses_a_completion_is_not_told(batch: VerdictBatch) -> None:
    (held,) = offer(batch, grant(mask=0b1))
    batch.ledger.take_chunk()
    batch.complete(held, 0b1)
    (request,) = sent(batch, Complete)
    batch.ledger.revoked(Revoked([ChunkMask(7, 0, 0b1)], "reservation_lost"))
    batch.answer(Completed(request.id))
    assert not batch.ledger.lost


def test_refused_reassertions_are_lost(batch: VerdictBatch) -> None:
    offer(batch, grant(mask=0b11))
    batch.ledger.take_chunk()
    assert batch.ledger.holdings() == ([HeldChunks(7, 0, 0b11, 1, 0, 0b11, 99)], [ChunkMask(7, 0, 0b01)])
    batch.ledger.reclaimed(Completed(1, [Refusal(7, 0, 0b11, "reservation_lost", "chunk_finished")]))
    assert [(lost.index, lost.message) for lost in batch.ledger.lost] == [(0, "Chunk 7/0 is finished.")]
    assert batch.ledger.ready_count == 0


def test_each_of_several_that_are_lost_at_once_is_told_of_by_its_number(batch: VerdictBatch) -> None:
    (held,) = offer(batch, grant(mask=0b11))
    batch.ledger.take_chunk()
    batch.ledger.take_chunk()
    batch.complete(held, 0b11)
    (request,) = sent(batch, Complete)
    batch.answer(Completed(request.id, [Refusal(7, 0, 0b11, "already_finished", "chunk_finished")]))
    assert [(lost.index, lost.message) for lost in batch.ledger.lost] == [
        (0, "Chunk 7/0 is finished."),
        (1, "Chunk 7/1 is finished."),
    ]


VERDICTS = st.sampled_from(["complete", "result", "fail", "release", "keep"])


@given(
    st.lists(
        st.tuples(st.integers(0, 3), st.integers(1, (1 << 64) - 1)),
        min_size=1,
        max_size=4,
        unique_by=lambda pair: pair[0],
    ),
    st.data(),
)
def test_every_chunk_granted_is_reported_exactly_once(blocks: list[tuple[int, int]], data: st.DataObject) -> None:
    """Whatever the verdicts, their order and the moments of sending."""
    batch = new_batch()
    offer(batch, *(grant(block=block, mask=mask) for block, mask in blocks))
    expected: dict[str, set[int]] = {"complete": set(), "fail": set(), "release": set()}
    results: dict[int, bytes] = {}
    requests: list[Request] = []
    for held, bit in take_all(batch):
        index = held.number * 64 + bit
        verdict = data.draw(VERDICTS)
        if verdict == "result":
            results[index] = b"%d" % index
            batch.complete(held, 1 << bit, [results[index]])
        elif verdict == "fail":
            batch.fail(held, 1 << bit, FailedRun())
        elif verdict in {"complete", "release"}:
            getattr(batch, verdict)(held, 1 << bit)
        expected[{"result": "complete", "keep": "release"}.get(verdict, verdict)].add(index)
        if index % 7 == 0:
            requests += batch.requests()
    batch.release_all()
    requests += batch.requests()
    found: dict[str, list[int]] = {"complete": [], "fail": [], "release": []}
    for request in requests:
        if isinstance(request, Complete):
            for part in request.completions:
                indexes = indexes_of(part.held)
                found["complete"] += indexes
                brought = msgspec.msgpack.decode(part.results) or [b""] * len(indexes)
                assert brought == [results.get(index, b"") for index in indexes]
        elif isinstance(request, Fail):
            found["fail"] += [index for failure in request.failures for index in indexes_of(failure.held)]
        elif isinstance(request, Release):
            found["release"] += [index for held in request.held for index in indexes_of(held)]
        if not isinstance(request, Started):
            batch.answer(Completed(request.id))
    assert {name: sorted(indexes) for name, indexes in found.items()} == {
        name: sorted(indexes) for name, indexes in expected.items()
    }
    assert batch.is_settled
    assert batch.ledger.holdings() == ([], [])
    assert batch.unanswered_count == batch.buffered_count == 0


def indexes_of(held: HeldChunks) -> list[int]:
    return [held.block * 64 + bit for bit in range(64) if held.mask >> bit & 1]


def followed(batch: VerdictBatch, mask: int = 0b111) -> tuple[HeldBlock, list[Complete]]:
    """All chunks of a block are done, the second with a follow-up; what is sent of it."""
    offer(batch, grant(mask=mask))
    taken = take_all(batch)
    for held, bit in taken:
        then = [NewSubmission(bytes(16), 1)] if bit == 1 else []
        batch.complete(held, 1 << bit, [b"r%d" % bit], then=then)
    return taken[0][0], [request for request in batch.requests() if isinstance(request, Complete)]


def test_completion_with_follow_ups_travels_alone(batch: VerdictBatch) -> None:
    _, requests = followed(batch)
    masks = {tuple(one.held.mask for one in request.completions): request for request in requests}
    assert set(masks) == {(0b010,), (0b101,)}
    [alone] = masks[0b010,].completions
    assert (alone.then, alone.results) == ([NewSubmission(bytes(16), 1)], msgspec.Raw(b"\x91\xc4\x02r1"))
    assert all(not one.then for one in masks[0b101,].completions)


@pytest.mark.parametrize(
    ("results", "then"),
    [
        ([b"x" * BUFFERED_LIMIT_BYTES], NewSubmission(bytes(16), 1)),
        (None, NewSubmission(bytes(16), 1, b"x" * BUFFERED_LIMIT_BYTES)),
        (None, NewSubmission(bytes(16), 1, attachment=b"x" * BUFFERED_LIMIT_BYTES)),
    ],
)
def test_all_bytes_of_a_completion_with_follow_ups_count(
    batch: VerdictBatch, results: list[bytes] | None, then: NewSubmission
) -> None:
    offer(batch, grant(mask=1))
    [(held, bit)] = take_all(batch)
    batch.complete(held, 1 << bit, results, then=[then])
    assert batch.buffered_bytes >= BUFFERED_LIMIT_BYTES


def test_reserve_does_not_travel_with_follow_ups(batch: VerdictBatch) -> None:
    """It would be refused for them."""
    held, _ = followed(batch, 0b10)
    offer(batch, grant(mask=0b1000))
    [(held, bit)] = take_all(batch)
    batch.complete(held, 1 << bit, then=[NewSubmission(bytes(16), 1)])
    requests = batch.requests()
    reserve = Reserve(7, 1)
    assert batch.with_reserve(requests, reserve) is reserve
    assert requests[-1] is reserve


@pytest.mark.parametrize("error", [UsageError, Conflict, NotFound])
def test_chunk_whose_follow_ups_are_refused_has_failed(batch: VerdictBatch, error: type[OpsqError]) -> None:
    _, [request] = followed(batch, 0b10)
    batch.answer(ErrorReply.of(request.id, error("the key is taken")))
    assert not batch.errors
    assert not batch.is_settled
    assert batch.is_again_due
    [fail] = sent(batch, Fail)
    [failure] = fail.failures
    assert (failure.held.mask, failure.reason) == (0b10, "Its follow-ups are refused: the key is taken")
    batch.answer(Completed(fail.id))
    assert batch.is_settled


def test_follow_ups_are_sent_again_when_there_was_no_room(batch: VerdictBatch) -> None:
    _, [request] = followed(batch, 0b10)
    batch.answer(ErrorReply.of(request.id, StorageFull("full")))
    [again] = sent(batch, Complete)
    assert again == request

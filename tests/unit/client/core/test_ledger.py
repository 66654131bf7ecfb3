"""The ledger: what was granted is reported once, in blocks and masks, whatever is refused, revoked or sent again."""

from __future__ import annotations

import itertools

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from opsq.client.core.held_block import Lot
from opsq.client.core.ledger import BUFFERED_LIMIT_BYTES, Ledger
from opsq.errors import Bug, UsageError
from opsq.wire.messages import (
    ChunkMask,
    Complete,
    CompleteAndReserve,
    Completed,
    ErrorReply,
    Fail,
    Grant,
    HeldChunks,
    Refusal,
    Release,
    Request,
    Reserve,
    Revoked,
    Started,
)
from scripted import grant, reserved


@pytest.fixture
def ledger() -> Ledger:
    return new_ledger()


def new_ledger() -> Ledger:
    return Ledger(itertools.count(100).__next__)


def offer(ledger: Ledger, *grants: Grant) -> list[Lot]:
    lots = ledger.add(reserved(1, *grants))
    ledger.offer(lots)
    return lots


def take_all(ledger: Ledger) -> list[tuple[Lot, int]]:
    return list(iter(ledger.take, None))


def sent(ledger: Ledger, kind: type[Request]) -> list[Request]:
    """What is to be sent now, of one kind; nothing else may be there but word of what was begun."""
    requests = [request for request in ledger.requests() if not isinstance(request, Started)]
    assert all(isinstance(request, kind) for request in requests), requests
    return requests


def test_chunks_are_taken_in_the_order_granted(ledger: Ledger) -> None:
    offer(ledger, grant(block=3, mask=0b101), grant(block=1, mask=1 << 63))
    assert ledger.ready_count == 3
    assert [(lot.block, bit) for lot, bit in take_all(ledger)] == [(3, 0), (3, 2), (1, 63)]
    assert ledger.ready_count == 0


def test_completions_of_a_block_travel_as_one_mask(ledger: Ledger) -> None:
    offer(ledger, grant(mask=0b1011))
    for lot, bit in take_all(ledger):
        ledger.complete(lot, 1 << bit, run_s=bit + 1.0)
    (request,) = sent(ledger, Complete)
    (completion,) = request.completions
    assert completion.held == HeldChunks(7, 0, 0b1011, 1, 0, 0b1011, 99)
    assert (completion.run_s, completion.run_max_s) == (7.0, 4.0)
    assert completion.results == msgspec.Raw(b"\xc0")


def test_results_are_sent_in_chunk_order_with_empty_ones_between(ledger: Ledger) -> None:
    offer(ledger, grant(mask=0b1110))
    first, second, third = take_all(ledger)
    ledger.complete(third[0], 0b1000, [("part", 5, 6)])
    ledger.complete(first[0], 0b0010, [b"one"])
    ledger.complete(second[0], 0b0100)
    (request,) = sent(ledger, Complete)
    assert msgspec.msgpack.decode(request.completions[0].results) == [b"one", b"", ["part", 5, 6]]


def test_completions_with_other_exit_statuses_are_told_apart(ledger: Ledger) -> None:
    offer(ledger, grant(mask=0b111))
    for (lot, bit), status in zip(take_all(ledger), (0, 3, 3), strict=True):
        ledger.complete(lot, 1 << bit, exit_status=status)
    (request,) = sent(ledger, Complete)
    assert [(part.held.mask, part.exit_status) for part in request.completions] == [(0b001, 0), (0b110, 3)]


def test_large_results_are_spread_over_several_requests(ledger: Ledger) -> None:
    for block in range(3):
        (lot,) = ledger.add(reserved(1, grant(block=block, mask=1)))
        ledger.open_all([lot])
        ledger.complete(lot, 1, [b"x" * BUFFERED_LIMIT_BYTES])
    assert len(sent(ledger, Complete)) == 3


def test_wrong_count_of_results_is_refused(ledger: Ledger) -> None:
    (lot,) = ledger.add(reserved(1, grant(mask=0b11)))
    ledger.open_all([lot])
    with pytest.raises(UsageError):
        ledger.complete(lot, 0b11, [b"one"])


def test_begun_chunks_are_reported_once_and_finished_ones_not_at_all(ledger: Ledger) -> None:
    (lot,) = offer(ledger, grant(mask=0b11))
    ledger.take()
    assert ledger.requests() == [Started([ChunkMask(7, 0, 0b01)])]
    ledger.complete(lot, 0b01)
    ledger.take()
    ledger.complete(lot, 0b10)
    assert [type(request) for request in ledger.requests()] == [Complete]


def test_a_reserve_joins_the_last_completion(ledger: Ledger) -> None:
    (lot,) = offer(ledger, grant(mask=1))
    ledger.take()
    ledger.complete(lot, 1)
    requests = ledger.requests()
    reserve = Reserve(55, 9, "OldestFirst", None, None, True)
    ledger.with_reserve(requests, reserve)
    (joined,) = requests
    assert isinstance(joined, CompleteAndReserve)
    assert (joined.id, joined.count, joined.until_empty, len(joined.completions)) == (55, 9, True, 1)
    ledger.answer(Completed(55))
    assert ledger.is_settled
    assert ledger.holdings() == ([], [])


def test_a_reason_that_is_no_text_is_sent_in_escapes(ledger: Ledger) -> None:
    """As the name of a file may be that an exception tells."""
    offer(ledger, grant(mask=1))
    ((lot, _),) = take_all(ledger)
    ledger.fail(lot, 1, "no caf\udce9")
    (request,) = sent(ledger, Fail)
    assert request.failures[0].reason == "no caf\\udce9"


def test_a_failure_keeps_the_end_of_a_long_reason(ledger: Ledger) -> None:
    (lot,) = offer(ledger, grant(mask=1))
    ledger.take()
    ledger.fail(lot, 1, "x" * 20_000 + "end", exit_status=2, delay_s=3.0, is_final=True)
    (request,) = sent(ledger, Fail)
    (failure,) = request.failures
    assert len(failure.reason) == 16384
    assert failure.reason.endswith("xend")
    assert (failure.exit_status, failure.delay_s, failure.is_final) == (2, 3.0, True)


def test_all_without_a_verdict_is_given_back(ledger: Ledger) -> None:
    (lot,) = offer(ledger, grant(mask=0b1111))
    ledger.take()
    ledger.take()
    ledger.complete(lot, 0b01)
    ledger.release_all()
    assert ledger.ready_count == 0
    requests = [request for request in ledger.requests() if not isinstance(request, Started)]
    assert [type(request) for request in requests] == [Complete, Release]
    assert requests[1].held == [HeldChunks(7, 0, 0b1110, 1, 0, 0b1111, 99)]


def test_without_room_a_completion_is_kept_and_sent_again(ledger: Ledger) -> None:
    (lot,) = offer(ledger, grant(mask=1))
    ledger.take()
    ledger.complete(lot, 1, [b"result"])
    (request,) = sent(ledger, Complete)
    ledger.answer(ErrorReply(request.id, "storage_full", "No room."))
    assert ledger.is_again_due
    assert not ledger.is_settled
    assert sent(ledger, Complete) == [request]
    ledger.answer(Completed(request.id))
    assert ledger.is_settled
    assert not ledger.errors


def test_without_room_a_joined_reserve_is_not_sent_again(ledger: Ledger) -> None:
    (lot,) = offer(ledger, grant(mask=1))
    ledger.take()
    ledger.complete(lot, 1)
    requests = ledger.requests()
    ledger.with_reserve(requests, Reserve(55, 9))
    ledger.answer(ErrorReply(55, "storage_full", "No room."))
    assert [type(request) for request in ledger.requests()] == [Complete]


def test_any_other_error_is_raised_later_and_the_chunks_are_forgotten(ledger: Ledger) -> None:
    (lot,) = offer(ledger, grant(mask=1))
    ledger.take()
    ledger.complete(lot, 1)
    (request,) = sent(ledger, Complete)
    ledger.answer(ErrorReply(request.id, "bug", "Oops."))
    assert isinstance(ledger.errors[0], Bug)
    assert ledger.holdings() == ([], [])


def test_a_refused_completion_is_told(ledger: Ledger) -> None:
    (lot,) = offer(ledger, grant(mask=0b11))
    take_all(ledger)
    ledger.complete(lot, 0b11)
    (request,) = sent(ledger, Complete)
    ledger.answer(Completed(request.id, [Refusal(7, 0, 0b10, "already_finished", "chunk_finished")]))
    assert [(lost.index, lost.code) for lost in ledger.lost] == [(1, "already_finished")]


def test_a_refused_release_is_not_told_because_nothing_was_lost(ledger: Ledger) -> None:
    (lot,) = offer(ledger, grant(mask=0b11))
    take_all(ledger)
    ledger.release(lot, 0b11)
    (request,) = sent(ledger, Release)
    ledger.answer(Completed(request.id, [Refusal(7, 0, 0b11, "reservation_lost", "chunk_waiting")]))
    assert not ledger.lost


def test_chunks_refused_only_for_the_sake_of_others_are_sent_again_alone(ledger: Ledger) -> None:
    (lot,) = offer(ledger, grant(mask=0b111))
    take_all(ledger)
    ledger.complete(lot, 0b111, [b"a", b"b", b"c"])
    (request,) = sent(ledger, Complete)
    done, rest = Refusal(7, 0, 0b010, "already_finished", ""), Refusal(7, 0, 0b101, "reservation_lost", "")
    ledger.answer(Completed(request.id, [done, rest]))
    assert [lost.index for lost in ledger.lost] == [1]
    (again,) = sent(ledger, Complete)
    assert again.completions[0].held.mask == 0b101
    assert msgspec.msgpack.decode(again.completions[0].results) == [b"a", b"c"]
    ledger.answer(Completed(again.id, [rest]))
    assert [lost.index for lost in ledger.lost] == [1, 0, 2]
    assert ledger.is_settled


def test_a_revoked_chunk_is_told_but_may_still_be_completed(ledger: Ledger) -> None:
    """The daemon accepts a late completion while the chunk is unfinished, so the ledger sends it."""
    (lot,) = offer(ledger, grant(mask=0b111))
    ledger.take()
    ledger.revoked(Revoked([ChunkMask(7, 0, 0b111)], "reservation_lost"))
    assert [lost.index for lost in ledger.lost] == [0]
    assert ledger.take() is None, "what was not begun is not handed out any more"
    assert lot.is_revoked(0)
    assert ledger.holdings()[0] == []
    ledger.complete(lot, 0b1)
    assert len(sent(ledger, Complete)) == 1


def test_a_cancelled_chunk_is_told_and_its_verdict_goes_nowhere(ledger: Ledger) -> None:
    (lot,) = offer(ledger, grant(mask=0b1))
    ledger.take()
    ledger.revoked(Revoked([ChunkMask(7, 0, 0b1)], "cancelled"))
    ledger.complete(lot, 0b1, [b"late"])
    assert not sent(ledger, Complete)
    assert [lost.code for lost in ledger.lost] == ["cancelled"]
    assert ledger.is_settled


def test_a_revocation_that_crosses_a_completion_is_not_told(ledger: Ledger) -> None:
    (lot,) = offer(ledger, grant(mask=0b1))
    ledger.take()
    ledger.complete(lot, 0b1)
    (request,) = sent(ledger, Complete)
    ledger.revoked(Revoked([ChunkMask(7, 0, 0b1)], "reservation_lost"))
    ledger.answer(Completed(request.id))
    assert not ledger.lost


def test_refused_reassertions_are_lost(ledger: Ledger) -> None:
    offer(ledger, grant(mask=0b11))
    ledger.take()
    assert ledger.holdings() == ([HeldChunks(7, 0, 0b11, 1, 0, 0b11, 99)], [ChunkMask(7, 0, 0b01)])
    ledger.reasserted(Completed(1, [Refusal(7, 0, 0b11, "reservation_lost", "chunk_finished")]))
    assert [(lost.index, lost.message) for lost in ledger.lost] == [(0, "Chunk 7/0 is finished.")]
    assert ledger.ready_count == 0


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
    ledger = new_ledger()
    offer(ledger, *(grant(block=block, mask=mask) for block, mask in blocks))
    expected: dict[str, set[int]] = {"complete": set(), "fail": set(), "release": set()}
    results: dict[int, bytes] = {}
    requests: list[Request] = []
    for lot, bit in take_all(ledger):
        index = lot.block * 64 + bit
        verdict = data.draw(VERDICTS)
        if verdict == "result":
            results[index] = b"%d" % index
            ledger.complete(lot, 1 << bit, [results[index]])
        elif verdict in {"complete", "fail", "release"}:
            getattr(ledger, verdict)(lot, 1 << bit)
        expected[{"result": "complete", "keep": "release"}.get(verdict, verdict)].add(index)
        if index % 7 == 0:
            requests += ledger.requests()
    ledger.release_all()
    requests += ledger.requests()
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
            ledger.answer(Completed(request.id))
    assert {name: sorted(indexes) for name, indexes in found.items()} == {
        name: sorted(indexes) for name, indexes in expected.items()
    }
    assert ledger.is_settled
    assert ledger.holdings() == ([], [])
    assert ledger.unanswered_count == ledger.buffered_count == 0


def indexes_of(held: HeldChunks) -> list[int]:
    return [held.block * 64 + bit for bit in range(64) if held.mask >> bit & 1]

"""Completions: what is accepted, how late, how often; and what a consumer is told."""

from __future__ import annotations

import msgspec
import pytest

from opsq.errors import StorageFull, UsageError
from opsq.wire import messages as m
from unit.model.rig import Rig, tickets_of


def codes(refusals: list[m.Refusal]) -> list[str]:
    return [refusal.code for refusal in refusals]


def test_completed_chunk_is_counted_and_never_offered_again(rig: Rig) -> None:
    submission_id = rig.submit(3)
    peer = rig.connect()
    [ticket] = rig.reserve(peer, 1)
    assert rig.complete(peer, ticket.held()) == []
    assert rig.show(submission_id).completed_count == 1
    rest = rig.reserve(peer, 10)
    assert [ticket.indexes for ticket in rest] == [[1, 2]]


def test_last_completion_completes_the_submission_and_tells_who_waits(rig: Rig) -> None:
    submission_id = rig.submit(1)
    peer, waiter = rig.connect(), rig.connect()
    rig.send(waiter, m.Wait(77, submission_id))
    [ticket] = rig.reserve(peer)
    rig.complete(peer, ticket.held())
    [shown] = rig.replies(waiter, 77)
    assert isinstance(shown, m.Shown)
    assert shown.submission.state == "completed"


def test_reply_of_a_completion_leaves_only_after_its_commit(rig: Rig) -> None:
    rig.submit(1)
    peer = rig.connect()
    [ticket] = rig.reserve(peer)
    rig.send(peer, m.Complete(9, [m.Completion(ticket.held())]))
    assert rig.begin()
    assert rig.replies(peer, 9) == []
    rig.database.commit()
    assert rig.replies(peer, 9) == []
    rig.end(None)
    assert rig.replies(peer, 9) == [m.Completed(9, [])]


@pytest.mark.parametrize("is_folded", [False, True])
def test_repeated_completion_under_the_same_token_answers_done(rig: Rig, is_folded: bool) -> None:
    """Whether the completion is still in the history alone or already folded."""
    submission_id = rig.submit(2)
    peer = rig.connect()
    [ticket] = rig.reserve(peer)
    rig.complete(peer, ticket.held())
    if is_folded:
        rig.fold()
    assert rig.complete(peer, ticket.held()) == []
    assert rig.show(submission_id).completed_count == 1


def test_repeated_completion_while_its_fold_is_being_committed_answers_done(rig: Rig) -> None:
    rig.submit(2)
    peer = rig.connect()
    [ticket] = rig.reserve(peer)
    rig.complete(peer, ticket.held())
    rig.pass_time(11)
    assert rig.begin()
    rig.send(peer, m.Complete(9, [m.Completion(ticket.held())]))
    rig.database.commit()
    rig.end(None)
    rig.settle()
    assert rig.replies(peer, 9) == [m.Completed(9, [])]


def test_repeated_completion_in_one_request_answers_done(rig: Rig) -> None:
    rig.submit(2)
    peer = rig.connect()
    [ticket] = rig.reserve(peer)
    assert rig.complete(peer, ticket.held(), ticket.held()) == []


def test_repeated_completion_after_a_crash_answers_done(rig: Rig) -> None:
    rig.submit(2)
    peer = rig.connect()
    [ticket] = rig.reserve(peer)
    rig.complete(peer, ticket.held())
    rig.crash()
    assert rig.complete(rig.connect(), ticket.held()) == []


def test_completion_after_the_reservation_has_expired_is_accepted(rig: Rig) -> None:
    submission_id = rig.submit(1, reservation_s=5.0)
    peer = rig.connect()
    [ticket] = rig.reserve(peer)
    rig.advance(6)
    assert rig.show(submission_id).reserved_count == 0
    assert rig.complete(peer, ticket.held()) == []
    assert rig.show(submission_id).state == "completed"


def test_late_completion_revokes_the_newer_reservation_of_the_chunk(rig: Rig) -> None:
    submission_id = rig.submit(2, reservation_s=5.0)
    late, newer = rig.connect("late"), rig.connect("newer")
    [ticket] = rig.reserve(late)
    rig.advance(6)
    [other] = rig.reserve(newer)
    assert other.indexes == ticket.indexes
    assert rig.complete(late, ticket.held()) == []
    assert rig.pushes(newer, m.Revoked) == [m.Revoked([m.ChunkMask(submission_id, 0, 1)], "already_finished")]
    assert codes(rig.complete(newer, other.held())) == ["already_finished"]


def test_late_completion_of_a_chunk_that_waits_for_its_retry_is_accepted(rig: Rig) -> None:
    submission_id = rig.submit(2)
    peer = rig.connect()
    [ticket] = rig.reserve(peer)
    rig.fail(peer, ticket.held(), delay_s=60.0)
    assert rig.complete(peer, ticket.held()) == []
    state = rig.show(submission_id)
    assert (state.completed_count, state.delayed_count) == (1, 0)
    rig.advance(61)
    assert [ticket.indexes for ticket in rig.reserve(peer, 5)] == [[1]]


def test_completion_that_meets_the_loss_of_its_consumer_under_way_is_accepted(rig: Rig) -> None:
    """The loss is being committed.

    A right token for an unfinished chunk is accepted all the same, and stays so after a crash.
    """
    submission_id = rig.submit(1)
    peer = rig.connect()
    [ticket] = rig.reserve(peer)
    rig.start(peer, ticket)
    rig.disconnect(peer)
    assert rig.complete(rig.connect(), ticket.held()) == []
    rig.crash()
    assert rig.show(submission_id).completed_count == 1


def test_completion_that_meets_another_completion_under_way_is_refused_as_finished(rig: Rig) -> None:
    rig.submit(2, reservation_s=5.0)
    late, newer = rig.connect("late"), rig.connect("newer")
    [ticket] = rig.reserve(late)
    rig.advance(6)
    [other] = rig.reserve(newer)
    rig.send(newer, m.Complete(8, [m.Completion(other.held())]))
    assert codes(rig.complete(late, ticket.held())) == ["already_finished"]
    assert rig.replies(newer, 8) == [m.Completed(8, [])]


def test_completion_that_waits_for_a_commit_that_fails_is_refused_with_it(rig: Rig) -> None:
    rig.submit(1)
    peer, other = rig.connect(), rig.connect()
    [ticket] = rig.reserve(peer)
    rig.start(peer, ticket)
    rig.disconnect(peer)
    rig.send(other, m.Complete(8, [m.Completion(ticket.held())]))
    rig.fail_commit()
    with pytest.raises(StorageFull):
        rig.replies(other, 8)


@pytest.mark.parametrize("field", ["mac", "attempt", "reservation_id", "granted", "submission_id", "block"])
def test_completion_with_a_wrong_token_is_refused(rig: Rig, field: str) -> None:
    submission_id = rig.submit(3)
    peer = rig.connect()
    [ticket] = rig.reserve(peer, 2)
    held = ticket.held()
    forged = msgspec.structs.replace(held, **{field: getattr(held, field) ^ 1 << 2})
    assert codes(rig.complete(peer, forged)) == ["reservation_lost"]
    assert rig.show(submission_id).completed_count == 0


def test_completion_of_chunks_that_the_token_was_not_granted_for_is_refused(rig: Rig) -> None:
    rig.submit(3)
    peer = rig.connect()
    [ticket] = rig.reserve(peer, 2)
    assert codes(rig.complete(peer, ticket.held([0, 1, 2]))) == ["reservation_lost"]


def test_completion_of_a_cancelled_chunk_is_refused(rig: Rig) -> None:
    submission_id = rig.submit(1)
    peer = rig.connect()
    [ticket] = rig.reserve(peer)
    rig.ask(peer, m.Cancel(5, submission_id))
    assert rig.pushes(peer, m.Revoked) == [m.Revoked([m.ChunkMask(submission_id, 0, 1)], "cancelled")]
    assert codes(rig.complete(peer, ticket.held())) == ["reservation_lost"]


def test_refusal_names_the_chunk_and_its_present_state(rig: Rig) -> None:
    submission_id = rig.submit(1, reservation_s=5.0)
    late, newer = rig.connect("late"), rig.connect("newer")
    [ticket] = rig.reserve(late)
    rig.advance(6)
    rig.reserve(newer)
    [refusal] = rig.fail(late, ticket.held())
    assert f"{submission_id}/0" in refusal.message
    assert newer.consumer in refusal.message


def test_stale_handle_is_refused_with_the_state_and_a_hint_at_a_longer_time(rig: Rig) -> None:
    rig.submit(1, reservation_s=5.0)
    peer = rig.connect()
    [ticket] = rig.reserve(peer)
    rig.advance(6)
    [refusal] = rig.fail(peer, ticket.held())
    assert refusal.code == "reservation_lost"
    assert "waiting and not reserved" in refusal.message
    assert "--reservation" in refusal.message


def test_results_of_partly_finished_chunks_are_refused_so_that_the_client_sends_them_alone(rig: Rig) -> None:
    rig.submit(2, reservation_s=5.0)
    late, newer = rig.connect(), rig.connect()
    [ticket] = rig.reserve(late, 2)
    rig.advance(6)
    [other] = rig.reserve(newer, 1)
    rig.complete(newer, other.held())
    both = msgspec.Raw(msgspec.msgpack.encode([b"a", b"b"]))
    refusals = rig.complete(late, ticket.held(), results=both)
    assert {refusal.mask: refusal.code for refusal in refusals} == {1: "already_finished", 2: "reservation_lost"}
    alone = msgspec.Raw(msgspec.msgpack.encode([b"b"]))
    assert rig.complete(late, ticket.held([1]), results=alone) == []


def test_complete_and_reserve_gives_the_next_chunk_after_the_commit(rig: Rig) -> None:
    rig.submit(2)
    peer = rig.connect()
    [ticket] = rig.reserve(peer)
    completed, reserved = rig.ask(peer, m.CompleteAndReserve(9, [m.Completion(ticket.held())], 1, "OldestFirst"))
    assert completed == m.Completed(9, [])
    assert isinstance(reserved, m.Reserved)
    assert [ticket.indexes for ticket in tickets_of(reserved)] == [[1]]


def test_completed_submission_stays_completed_whatever_comes_later(rig: Rig) -> None:
    submission_id = rig.submit(1, reservation_s=5.0, expires_s=60.0)
    peer = rig.connect()
    [ticket] = rig.reserve(peer)
    rig.start(peer, ticket)
    rig.complete(peer, ticket.held())
    assert codes(rig.fail(peer, ticket.held(), is_final=True)) == ["reservation_lost"]
    assert codes(rig.release(peer, ticket.held())) == ["reservation_lost"]
    assert codes(rig.reclaim(peer, ticket.held())) == ["reservation_lost"]
    assert rig.only(peer, m.Cancel(9, submission_id), m.Changed).count == 0
    rig.disconnect(peer)
    rig.advance(120)
    rig.restart()
    assert rig.show(submission_id).state == "completed"


# --- malformed results ---


@pytest.mark.parametrize(
    "results",
    [
        5,
        {},
        "text",
        [],
        [0, 1],
        [[[]], b""],
        [b"a"],
        [b"a", b"b", b"c"],
        [b"a", ["o", -1, 5]],
        [b"a", ["o", 0, -5]],
        [b"a", ["o", 0]],
        [b"a", ["", 0, 1]],
        [b"a", None],
        [b"a", b"x" * 4097],
        [b"a", ["o", 1 << 63, 1]],
    ],
    ids=str,
)
@pytest.mark.parametrize("kind", [m.Complete, m.CompleteAndReserve])
def test_malformed_results_are_refused_and_complete_nothing(rig: Rig, kind: type[m.Message], results: object) -> None:
    submission_id, peer = rig.submit(2), rig.connect()
    [ticket] = rig.reserve(peer, 2)
    raw = msgspec.Raw(msgspec.msgpack.encode(results))
    rest = () if kind is m.Complete else (1, "Random")
    with pytest.raises(UsageError, match="malformed"):
        rig.ask(peer, kind(next(rig.ids), [m.Completion(ticket.held(), raw)], *rest))  # type: ignore[call-arg,arg-type]  # one of two
    assert rig.show(submission_id).completed_count == 0
    good = msgspec.Raw(msgspec.msgpack.encode([b"a" * 4096, ("o", 0, 1 << 40)]))
    assert rig.complete(peer, ticket.held(), results=good) == []


def test_results_that_are_no_messagepack_are_refused(rig: Rig) -> None:
    rig.submit(1)
    peer = rig.connect()
    [ticket] = rig.reserve(peer)
    for content in (b"", b"\xc1", b"\x91", b"\x91" * 100_000 + b"\xc0", b"\x91\xa1\xff"):
        with pytest.raises(UsageError, match="malformed"):
            rig.complete(peer, ticket.held(), results=msgspec.Raw(content))

"""Follow-ups: submissions that come with a completion, in its commit or not at all, once however often it is sent."""

from __future__ import annotations

from pathlib import Path

import apsw
import pytest

from opsq.errors import NoRoom, OpsqError, StorageFull, UsageError
from opsq.queue.engine import Peer
from opsq.queue.policy import Policy
from opsq.wire import messages as m
from unit.model.rig import Rig, Ticket


def new(rig: Rig, chunks_count: int = 1, **fields: object) -> m.NewSubmission:
    return m.NewSubmission(rig.request_key(), chunks_count, **fields)  # type: ignore[arg-type]


def count(rig: Rig) -> int:
    [(found,)] = rig.rows("SELECT count(*) FROM submission")
    return int(found)


def one(rig: Rig, peer: Peer) -> Ticket:
    [ticket] = rig.reserve(peer, 1)
    return ticket


def test_follow_ups_come_with_the_commit_of_the_completion(rig: Rig) -> None:
    submission_id = rig.submit(1)
    peer = rig.connect()
    ticket = one(rig, peer)
    rig.send(peer, m.Complete(9, [m.Completion(ticket.held(), then=[new(rig), new(rig, 2)])]))
    assert rig.begin()
    assert rig.replies(peer, 9) == []
    rig.database.commit()
    rig.end(None)
    [reply] = rig.replies(peer, 9)
    assert isinstance(reply, m.Completed)
    assert [created.is_new for created in reply.created] == [True, True]
    assert rig.show(submission_id).state == "completed"
    assert [rig.show(created.submission_id).chunks_count for created in reply.created] == [1, 2]
    assert len(rig.reserve(peer, 10)) == 2


def test_completion_that_is_sent_again_makes_nothing_more(rig: Rig) -> None:
    rig.submit(2)
    peer = rig.connect()
    ticket = one(rig, peer)
    completion = m.Completion(ticket.held(), then=[new(rig)])
    first = rig.only(peer, m.Complete(next(rig.ids), [completion, completion]), m.Completed)
    assert len(first.created) == 1
    again = rig.only(peer, m.Complete(next(rig.ids), [completion]), m.Completed)
    assert (again.refusals, again.created) == ([], [])
    others = rig.follow(peer, ticket.held(), new(rig))
    assert (others.refusals, others.created) == ([], [])
    assert count(rig) == 2


def test_completion_that_is_sent_again_after_a_crash_makes_nothing_more(rig: Rig) -> None:
    rig.submit(2)
    peer = rig.connect()
    ticket = one(rig, peer)
    assert len(rig.follow(peer, ticket.held(), new(rig)).created) == 1
    rig.crash()
    assert rig.follow(rig.connect(), ticket.held(), new(rig)).created == []
    assert count(rig) == 2


def test_only_the_first_of_two_consumers_of_a_chunk_has_follow_ups(rig: Rig) -> None:
    rig.submit(1, reservation_s=5.0)
    late, newer = rig.connect("late"), rig.connect("newer")
    ticket = one(rig, late)
    rig.advance(6)
    other = one(rig, newer)
    assert len(rig.follow(newer, other.held(), new(rig)).created) == 1
    refused = rig.follow(late, ticket.held(), new(rig))
    assert [refusal.code for refusal in refused.refusals] == ["already_finished"]
    assert refused.created == []
    assert count(rig) == 2


def test_late_completion_that_is_accepted_has_its_follow_ups(rig: Rig) -> None:
    rig.submit(1, reservation_s=5.0)
    peer = rig.connect()
    ticket = one(rig, peer)
    rig.advance(6)
    assert len(rig.follow(peer, ticket.held(), new(rig)).created) == 1


def test_refused_completion_makes_nothing(rig: Rig) -> None:
    submission_id = rig.submit(2)
    peer = rig.connect()
    ticket = one(rig, peer)
    forged = rig.follow(peer, ticket.held(mac=1), new(rig))
    assert [refusal.code for refusal in forged.refusals] == ["reservation_lost"]
    rig.ask(peer, m.Cancel(next(rig.ids), submission_id))
    cancelled = rig.follow(peer, ticket.held(), new(rig))
    assert [refusal.code for refusal in cancelled.refusals] == ["reservation_lost"]
    assert count(rig) == 1


def test_failed_commit_takes_follow_ups_and_completion_back(rig: Rig) -> None:
    submission_id = rig.submit(1)
    peer = rig.connect()
    ticket = one(rig, peer)
    completion = m.Completion(ticket.held(), then=[new(rig)])
    rig.send(peer, m.Complete(9, [completion]))
    assert rig.begin()
    rig.end(apsw.FullError("full"))
    with pytest.raises(StorageFull):
        rig.replies(peer, 9)
    assert (rig.show(submission_id).completed_count, count(rig)) == (0, 1)
    rig.advance(3)
    assert len(rig.follow(peer, ticket.held(), *completion.then).created) == 1


def test_full_disk_refuses_a_completion_with_follow_ups(rig: Rig) -> None:
    rig.submit(1)
    peer = rig.connect()
    ticket = one(rig, peer)
    rig.engine.note_full(rig.now)
    with pytest.raises(StorageFull):
        rig.send(peer, m.Complete(9, [m.Completion(ticket.held(), then=[new(rig)])]))


def test_follow_up_that_cannot_be_written_costs_its_completion_and_no_other(rig: Rig) -> None:
    submission_id = rig.submit(2)
    peer = rig.connect()
    [ticket] = rig.reserve(peer, 2)
    rig.send(peer, m.Complete(8, [m.Completion(ticket.held([0]), then=[new(rig)])]))
    rig.send(peer, m.Complete(9, [m.Completion(ticket.held([1]), then=[new(rig), new(rig, not_before_at=1 << 63)])]))
    rig.settle()
    [reply] = rig.replies(peer, 8)
    assert isinstance(reply, m.Completed)
    assert len(reply.created) == 1
    with pytest.raises(OpsqError):
        rig.replies(peer, 9)
    assert (rig.show(submission_id).completed_count, count(rig)) == (1, 2)
    assert len(rig.follow(peer, ticket.held([1]), new(rig)).created) == 1


def test_follow_ups_of_several_chunks_are_refused(rig: Rig) -> None:
    submission_id = rig.submit(2)
    peer = rig.connect()
    [ticket] = rig.reserve(peer, 2)
    with pytest.raises(UsageError, match="Complete it alone"):
        rig.follow(peer, ticket.held(), new(rig))
    assert rig.show(submission_id).completed_count == 0


def test_follow_up_that_no_submission_can_be_made_of_refuses_the_request(rig: Rig) -> None:
    submission_id = rig.submit(2)
    peer = rig.connect()
    [ticket] = rig.reserve(peer, 2)
    completions = [
        m.Completion(ticket.held([0])),
        m.Completion(ticket.held([1]), then=[new(rig, metadata={"submission": 1})]),
    ]
    with pytest.raises(UsageError, match="submission"):
        rig.ask(peer, m.Complete(next(rig.ids), completions))
    assert rig.show(submission_id).completed_count == 0


def test_follow_ups_come_in_when_there_is_no_room(tmp_path: Path) -> None:
    """Else a backlog of chunks that have follow-ups could never be worked off."""
    rig = Rig(tmp_path, Policy(max_backlog_chunks=3))
    rig.submit(3)
    peer = rig.connect()
    assert len(rig.follow(peer, one(rig, peer).held(), new(rig, 5)).created) == 1
    with pytest.raises(NoRoom):
        rig.submit(1)
    rig.close()


def test_follow_up_under_a_unique_key_that_is_held_is_that_submission(rig: Rig) -> None:
    holder_id = rig.submit(1, unique_key="nightly")
    peer = rig.connect()
    ticket = one(rig, peer)
    [created] = rig.follow(peer, ticket.held(), new(rig, unique_key="nightly")).created
    assert created == m.Created(holder_id, False)


def test_queue_is_not_empty_for_who_waits_while_follow_ups_are_being_committed(rig: Rig) -> None:
    rig.submit(1, metadata={"job": 1})
    worker, waiting = rig.connect("worker"), rig.connect("waiting")
    ticket = one(rig, worker)
    rig.send(waiting, m.Reserve(7, 1, "SelectOnly(job=1)", wait_s=None, until_empty=True))
    follow_up = new(rig, metadata={"job": 1})
    rig.send(worker, m.Complete(9, [m.Completion(ticket.held(), then=[follow_up])]))
    rig.send(waiting, m.Reserve(8, 1, "SelectOnly(job=1)", wait_s=None, until_empty=True))
    assert rig.begin()
    rig.advance(0)
    rig.database.commit()
    rig.end(None)
    assert rig.replies(waiting, 8) == []
    [reply] = rig.replies(waiting, 7)
    assert isinstance(reply, m.Reserved)
    assert (len(reply.grants), reply.is_empty) == (1, False)


def test_who_waits_for_a_group_waits_for_its_follow_ups_too(rig: Rig) -> None:
    """A fan-out and its join: the group does not end between a chunk and what follows from it."""
    submission_id = rig.submit(1, metadata={"job": "x"})
    join_id = rig.submit(1, after=[m.Dependency(key="job", value="x")])
    peer = rig.connect()
    [created] = rig.follow(peer, one(rig, peer).held(), new(rig, metadata={"job": "x"})).created
    assert rig.show(submission_id).state == "completed"
    assert rig.show(join_id).state == "blocked"
    rig.complete(peer, one(rig, peer).held())
    rig.settle()
    assert rig.show(created.submission_id).state == "completed"
    assert rig.show(join_id).state == "open"


def test_follow_up_may_wait_for_the_submission_of_its_chunk(rig: Rig) -> None:
    submission_id = rig.submit(2)
    peer = rig.connect()
    [created] = rig.follow(peer, one(rig, peer).held(), new(rig, after=[m.Dependency(submission_id)])).created
    assert rig.show(created.submission_id).state == "blocked"
    [last] = rig.follow(peer, one(rig, peer).held(), new(rig, after=[m.Dependency(submission_id)])).created
    rig.settle()
    assert [rig.show(made.submission_id).state for made in (created, last)] == ["open", "open"]

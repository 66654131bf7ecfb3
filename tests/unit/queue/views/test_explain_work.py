"""Explain of work: why a submission or a chunk of it is not running, as codes and as sentences."""

from __future__ import annotations

import pytest

from opsq.errors import NotFound
from opsq.queue.engine import Engine
from opsq.store.database import Database
from opsq.wire import messages as m
from unit.model.rig import Rig


def why(rig: Rig, submission_id: int, index: int | None = None) -> tuple[str, str]:
    """The verdict about work, and all that is said."""
    reply = rig.only(rig.connect("asker"), m.ExplainWork(next(rig.ids), submission_id, index), m.WorkExplained)
    assert (reply.submission_id, reply.index) == (submission_id, index)
    return reply.verdict, "\n".join(reply.reasons)


def offered(reply: m.Explained) -> list[tuple[int, int]]:
    return [(offer.submission_id, offer.index) for offer in reply.offers]


def test_work_that_no_connected_consumer_takes_is_said_to_be_unmatched(rig: Rig) -> None:
    taken, other = rig.submit(2, metadata={"kind": "a"}), rig.submit(3, metadata={"kind": "b"})
    assert rig.status().unmatched_count is None
    peer = rig.connect("reader")
    rig.reserve(peer, 1, "SelectOnly(kind=a)")
    verdict, text = why(rig, other)
    assert verdict == "unmatched"
    assert "1 × SelectOnly(kind=a): never takes it" in text
    assert why(rig, taken)[0] == "next"
    assert rig.status().unmatched_count == 3
    rig.reserve(rig.connect(), 1, "SelectOnly(kind=c)")
    assert rig.status().unmatched_count == 3
    rig.reserve(rig.connect(), 1, "SelectOnly(tenant=c)")
    assert rig.status().unmatched_count is None
    rig.reserve(rig.connect(), 1, "Fair(kind)")
    assert rig.status().unmatched_count == 0


@pytest.mark.parametrize(("has", "selected", "said"), [("1", "1", 'the text "1"'), (1, '"1"', "the number 1")])
def test_value_that_differs_only_by_its_type_is_pointed_out(rig: Rig, has: int | str, selected: str, said: str) -> None:
    submission_id = rig.submit(1, metadata={"nb": has})
    rig.reserve(rig.connect(), 1, f"SelectOnly(nb={selected})")
    verdict, text = why(rig, submission_id)
    assert verdict == "unmatched"
    assert f"Its nb is {said}, and a strategy selects the" in text


def test_without_consumers_nobody_asks(rig: Rig) -> None:
    submission_id = rig.submit(1)
    assert why(rig, submission_id)[0] == "no_consumer"
    peer = rig.connect()
    rig.reserve(peer, 1, "SelectOnly(a=1)")
    assert why(rig, submission_id)[0] == "unmatched"
    rig.disconnect(peer)
    assert why(rig, submission_id)[0] == "no_consumer"


def test_what_comes_before_is_counted_in_the_order_of_the_consumers(rig: Rig) -> None:
    first, second, third = (rig.submit(count) for count in (70, 5, 1))
    peer = rig.connect()
    rig.reserve(peer, 2)
    verdict, text = why(rig, third)
    assert verdict == "behind"
    assert text.startswith(f"Submission {third} waits behind 73 chunks of 2 submissions.")
    assert why(rig, second)[1].startswith(f"Submission {second} waits behind 68 chunks of 1 submission.")
    assert why(rig, first)[0] == "next"
    rig.reserve(rig.connect(), 1, "NewestFirst")
    assert why(rig, second)[1].startswith(f"Submission {second} is next.")


def test_chunk_waits_behind_those_of_its_own_submission(rig: Rig) -> None:
    submission_id = rig.submit(130)
    rig.reserve(rig.connect(), 1)
    assert why(rig, submission_id, 1)[0] == "next"
    verdict, text = why(rig, submission_id, 100)
    assert verdict == "behind"
    assert text.startswith(f"Chunk {submission_id}/100 waits behind 99 chunks of its own submission.")


def test_scheduled_submission_is_not_due(rig: Rig) -> None:
    submission_id = rig.submit(1, delay_s=7200.0)
    verdict, text = why(rig, submission_id)
    assert verdict == "scheduled"
    assert "not due until 2027-01-15T10:00:00Z (in 2h)" in text
    assert why(rig, submission_id, 0)[0] == "scheduled"


def test_pause_tells_who_and_since_when_and_what_ends_it(rig: Rig) -> None:
    submission_id = rig.submit(1, metadata={"tenant": "a b"})
    rig.ask(rig.connect(), m.Pause(next(rig.ids), {"tenant": "a b"}, True, "ada@host"))
    rig.pass_time(90)
    verdict, text = why(rig, submission_id)
    assert verdict == "paused"
    assert text.startswith(
        f"Submission {submission_id} has been paused by operator ada@host since 2027-01-15T08:00:00Z (1m 30s ago): "
    )
    assert '`opsq resume --operator tenant="a b"`' in text
    assert "Also, it waits, but no consumer is connected." in text


def test_one_submission_can_be_paused_by_its_id(rig: Rig) -> None:
    paused, other = rig.submit(1), rig.submit(1)
    rig.ask(rig.connect(), m.Pause(next(rig.ids), {"submission": paused}))
    assert why(rig, paused)[0] == "paused"
    assert [ticket.submission_id for ticket in rig.reserve(rig.connect(), 5)] == [other]


def test_limit_tells_count_and_bound_and_a_rate_when_the_next_may_start(rig: Rig) -> None:
    peer = rig.connect()
    submission_id = rig.submit(3, metadata={"tenant": "a"})
    rig.ask(peer, m.Limit(next(rig.ids), "tenant", None, 1))
    rig.reserve(peer)
    assert why(rig, submission_id)[0] == "limited"
    assert "tenant=a has 1 of 1 chunk reserved" in why(rig, submission_id)[1]
    rig.ask(peer, m.Limit(next(rig.ids), "tenant", "a", None, 0.1))
    rig.ask(peer, m.Unlimit(next(rig.ids), "tenant"))
    rig.reserve(peer)
    assert "its next chunk may start in 10s" in why(rig, submission_id)[1]


def test_what_comes_before_under_the_same_rate_is_counted(rig: Rig) -> None:
    """The next token is for what comes first."""
    rig.ask(rig.connect(), m.Limit(next(rig.ids), "tenant", "a", None, 0.1))
    first, second = rig.submit(57, metadata={"tenant": "a"}), rig.submit(5, metadata={"tenant": "a"})
    assert len(rig.reserve(rig.connect(), 3)) == 1
    verdict, text = why(rig, second)
    assert verdict == "limited"
    said = "waits behind 56 chunks of 1 submission that a limit throttles too: the next chunk may start in 10s"
    assert text.startswith(f"Submission {second} {said}.")
    assert "1 × OldestFirst: 56 chunks of 1 submission first." in text
    assert "its next chunk may start in 10s" in why(rig, first)[1]
    assert rig.reserve(rig.connect(), 1) == []


def test_explaining_what_is_behind_much_puts_off_no_token_of_another_rate(rig: Rig) -> None:
    """What comes first under the rate of the tenant is taken on trial, with all tokens of the kind."""
    peer = rig.connect()
    rig.ask(peer, m.Limit(next(rig.ids), "tenant", rate_per_s=0.001, burst=1))
    rig.ask(peer, m.Limit(next(rig.ids), "kind", rate_per_s=1.0, burst=1))
    rig.submit(1, metadata={"tenant": "a"})
    rig.reserve(peer)
    rig.submit(1000, metadata={"tenant": "a", "kind": "x"})
    between = rig.submit(1, metadata={"tenant": "b", "kind": "x"})
    explained = rig.submit(1, metadata={"tenant": "a", "kind": "x"})
    assert "waits behind 1001 chunks of 2 submissions that a limit throttles too" in why(rig, explained)[1]
    assert [ticket.submission_id for ticket in rig.reserve(peer)] == [between]
    rig.submit(1, metadata={"tenant": "c", "kind": "x"})
    call = rig.park(peer)
    assert rig.replies(peer, call) == []
    rig.advance(1.5)
    [reply] = rig.replies(peer, call)
    assert isinstance(reply, m.Reserved)
    assert len(reply.grants) == 1


def test_gate_of_the_consumers_own_strategy_is_told(rig: Rig) -> None:
    peer = rig.connect()
    submission_id = rig.submit(3)
    rig.reserve(peer, 1, "MaxSimultaneous(submission, 1, OldestFirst)")
    verdict, text = why(rig, submission_id)
    assert verdict == "gated"
    assert "1 of its 1 slots are taken by chunks reserved or in back-off" in text


def test_reserved_chunks_tell_by_whom_and_for_how_long(rig: Rig) -> None:
    peer = rig.connect("worker")
    submission_id = rig.submit(2, reservation_s=60.0)
    (ticket,) = rig.reserve(peer, 2)
    rig.start(peer, ticket, [0])
    rig.pass_time(20)
    verdict, text = why(rig, submission_id)
    assert verdict == "reserved"
    assert f"Reserved by {peer.consumer}: 2 chunks, held for 20s, 40s left." in text
    assert "work on it has started" in why(rig, submission_id, 0)[1]
    assert "not known to have started" in why(rig, submission_id, 1)[1]


@pytest.mark.parametrize("ends", ["restart", "crash"])
def test_back_off_tells_when_it_is_over_also_after_a_restart(rig: Rig, ends: str) -> None:
    peer = rig.connect()
    submission_id = rig.submit(1, backoff=m.Backoff(100.0, 1.0, 100.0))
    rig.fail(peer, rig.reserve(peer)[0].held())
    for _ in range(2):
        assert why(rig, submission_id)[0] == "delayed"
        verdict, text = why(rig, submission_id, 0)
        assert verdict == "delayed"
        assert "Failed attempts: 1 of 5; lost consumers: 0 of 5." in text
        getattr(rig, ends)()
        rig.pass_time(0, wall_s=-86_400)


def test_finished_chunks_and_submissions_say_how_they_ended(rig: Rig) -> None:
    peer = rig.connect()
    submission_id = rig.submit(3)
    first, second = rig.reserve(peer), rig.reserve(peer)
    rig.complete(peer, first[0].held())
    rig.fail(peer, second[0].held(), is_final=True, reason="no disk")
    assert why(rig, submission_id)[0] == "failed"
    assert why(rig, submission_id, 0)[0] == "completed"
    verdict, text = why(rig, submission_id, 1)
    assert verdict == "dead"
    assert "no disk" in text
    assert f"`opsq dead requeue {submission_id}/1`" in text
    assert why(rig, submission_id, 2)[0] == "skipped"
    rig.fold()
    assert [why(rig, submission_id, index)[0] for index in range(3)] == ["completed", "dead", "skipped"]


def test_what_is_not_there_is_not_explained(rig: Rig) -> None:
    with pytest.raises(NotFound, match="not known"):
        why(rig, 12345)
    submission_id = rig.submit(2)
    with pytest.raises(NotFound, match="there is no chunk 2"):
        why(rig, submission_id, 2)


def test_file_of_a_stopped_daemon_is_explained_without_being_written(rig: Rig) -> None:
    """The unfolded is on top: what was completed before the end is not offered."""
    peer = rig.connect()
    submission_id = rig.submit(3)
    rig.complete(peer, rig.reserve(peer)[0].held())
    rig.crash()
    content = rig.path.read_bytes()
    database = Database.open_read_only(rig.path)
    try:
        engine = Engine(database, rig.policy, rig.now)
        asker = engine.connect("asker", rig.now)
        engine.handle(asker, m.Explain(1, "OldestFirst", True), rig.now)
        engine.handle(asker, m.ExplainWork(2, submission_id), rig.now)
        explained, work = (reply for _, reply in engine.outbox)
        assert isinstance(explained, m.Explained)
        assert isinstance(work, m.WorkExplained)
        assert offered(explained) == [(submission_id, 1), (submission_id, 2)]
        assert work.verdict == "stopped"
    finally:
        database.close()
    assert rig.path.read_bytes() == content

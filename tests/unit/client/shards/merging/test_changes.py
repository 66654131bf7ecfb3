"""Changes at all shards, and questions about the whole that have one answer."""

from __future__ import annotations

from typing import Any

import pytest

from opsq.client.shards.merging import Cursors, Gathering, Members, gathering
from opsq.client.shards.merging.changes import DESCRIBED_BYTES
from opsq.errors import Conflict, Moved, NotFound, NotPermitted
from opsq.wire import messages as m

ADDRESSES = {0: "a:1", 1: "b:1", 2: "c:1"}


def asked(request: m.Request, addresses: dict[int, str] = ADDRESSES) -> Gathering[Any, Any]:
    found = gathering(request, Members(addresses), Cursors())
    assert found is not None
    return found


def merged(request: m.Request, *replies: m.Reply) -> m.Reply:
    found = asked(request)
    found.ask(sorted(ADDRESSES))
    return found.merged(dict(enumerate(replies)))


@pytest.mark.parametrize(
    "request_", [m.ReleaseConsumer(9, "c"), m.Prune(9, 1.0), m.Vacuum(9), m.Requeue(9, None), m.Drop(9, None)]
)
def test_what_all_shards_have_changed_is_added(request_: m.Request) -> None:
    assert merged(request_, m.Changed(1, 2), m.Changed(1, 3)) == m.Changed(9, 5)


@pytest.mark.parametrize(
    "request_", [m.Pause(9), m.Resume(9), m.Limit(9, "a"), m.Unlimit(9, "a"), m.Weight(9, "a", 1, 2.0)]
)
def test_a_rule_goes_to_all_and_is_one_change(request_: m.Request) -> None:
    assert asked(request_).ask([0, 2]) == {0: request_, 2: request_}
    assert merged(request_, m.Changed(1, 0), m.Changed(1, 1), m.Changed(1, 1)) == m.Changed(9, 1)


def test_a_limit_is_matched_if_one_shard_has_the_pair() -> None:
    replies = [m.Changed(1, 1, False), m.Changed(1, 1, True)]
    assert merged(m.Limit(9, "a"), *replies) == m.Changed(9, 1, True)
    assert merged(m.Limit(9, "a"), *replies[:1]) == m.Changed(9, 1, False)


def test_what_one_shard_has_is_found_though_others_have_not() -> None:
    missing = m.ErrorReply.of(1, NotFound(cause="unknown_limit"))
    assert merged(m.Unlimit(9, "a"), missing, m.Changed(1, 1)) == m.Changed(9, 1)
    assert merged(m.Unlimit(9, "a"), missing, missing) == m.ErrorReply.of(9, NotFound(cause="unknown_limit"))


def test_a_refusal_of_one_shard_is_the_answer() -> None:
    refusal = NotPermitted("No.")
    assert merged(m.Vacuum(9), m.Changed(1, 1), m.ErrorReply.of(1, refusal)) == m.ErrorReply.of(9, refusal)


def test_an_interrupted_requeue_tells_what_all_shards_have_done() -> None:
    stopping = m.ErrorReply.of(1, Conflict(cause="stopping"), done=3)
    reply = merged(m.Requeue(9, None), stopping, m.Changed(1, 4), stopping)
    assert isinstance(reply, m.ErrorReply)
    assert (reply.id, reply.cause, reply.details["done"]) == (9, "stopping", 10)


def test_a_key_is_found_at_the_first_shard_that_has_it() -> None:
    nothing = m.Found(1, None, False)
    assert merged(m.Find(9, b""), nothing, m.Found(1, 5, False), m.Found(1, 6, False)) == m.Found(9, 5, False)


def moved_to(shard: int) -> m.ErrorReply:
    return m.ErrorReply.of(1, Moved(cause="moved", submission_id=5, shard=shard, address="there"))


def test_a_key_that_has_moved_is_found_where_it_is() -> None:
    nothing = m.Found(1, None, False)
    assert merged(m.Find(9, b""), moved_to(1), m.Found(1, 5, False), nothing) == m.Found(9, 5, False)
    assert merged(m.Find(9, b""), moved_to(1), nothing, nothing) == m.Found(9, None, False)


def test_a_key_that_has_moved_to_a_shard_that_is_not_among_these_is_said_to_be_there() -> None:
    reply = merged(m.Find(9, b""), moved_to(7), m.Found(1, None, False), m.Found(1, None, False))
    assert isinstance(reply, m.ErrorReply)
    assert (reply.id, reply.code, reply.details["shard"]) == (9, "moved", 7)


def test_a_key_is_unknown_if_all_shards_say_so_and_withdrawn_if_all_do() -> None:
    nothing, withdrawn = m.Found(1, None, False), m.Found(1, None, True)
    assert merged(m.Find(9, b""), withdrawn, nothing, nothing) == m.Found(9, None, False)
    assert merged(m.Find(9, b""), withdrawn, withdrawn, withdrawn) == m.Found(9, None, True)


def test_whether_a_key_is_unknown_is_not_guessed_for_shards_that_did_not_answer() -> None:
    reply = merged(m.Find(9, b""), m.Found(1, None, False))
    assert isinstance(reply, m.ErrorReply)
    assert reply.code == "unreachable"
    assert "shard 1 (b:1), shard 2 (c:1)" in reply.error().message
    assert merged(m.Find(9, b""), m.Found(1, 5, False)) == m.Found(9, 5, False)


def content(submission_id: int, size: int = 1) -> m.SubmissionContent:
    return m.SubmissionContent(submission_id, 1, bytes(size), {}, False)


def test_submissions_are_described_by_whoever_has_them() -> None:
    request = m.Describe(9, [2 << 12, 0, 5 << 12, (2 << 12) + 1])
    replies: dict[int, m.Reply] = {
        0: m.Described(1, [content(2 << 12)]),  # it has moved there
        1: m.Described(1, []),
        2: m.Described(1, [content((2 << 12) + 1), content(0)]),
    }
    found = asked(request)
    assert found.ask([0, 1, 2]) == dict.fromkeys(range(3), request)
    reply = found.merged(replies)
    assert isinstance(reply, m.Described)
    assert [each.submission_id for each in reply.submissions] == [2 << 12, 0, (2 << 12) + 1]


def test_submission_of_a_shard_that_did_not_answer_is_not_said_to_be_gone() -> None:
    here, away, elsewhere = 1, (2 << 12) + 1, (9 << 12) + 1
    for wanted in (away, elsewhere):  # the latter may have moved there
        reply = merged(m.Describe(9, [here, wanted]), m.Described(1, [content(here)]), m.Described(1, []))
        assert isinstance(reply, m.ErrorReply)
        assert (reply.code, "shard 2 (c:1)" in reply.error().message) == ("unreachable", True)
    described = m.Described(1, [content(away)])
    assert merged(m.Describe(9, [away]), m.Described(1, []), described) == m.Described(9, described.submissions)


def test_submission_of_a_shard_that_says_so_is_left_out() -> None:
    nothing = m.Described(1, [])
    assert merged(m.Describe(9, [1]), nothing, nothing) == m.Described(9, [])
    assert merged(m.Describe(9, [9 << 12]), nothing, nothing, nothing) == m.Described(9, [])


def test_what_is_described_fits_into_an_answer() -> None:
    found = asked(m.Describe(9, [0, 1 << 12, 2 << 12]))
    found.ask([0, 1, 2])
    size = DESCRIBED_BYTES // 2 + 1
    reply = found.merged({shard: m.Described(1, [content(shard << 12, size)]) for shard in range(3)})
    assert isinstance(reply, m.Described)
    assert [each.submission_id for each in reply.submissions] == [0, 1 << 12]


def test_damage_is_told_with_its_shard() -> None:
    reply = merged(m.Check(9), m.Checked(1, []), m.Checked(1, ["A row is missing."]))
    assert reply == m.Checked(9, ["shard 1 (b:1): A row is missing."])


def test_a_strategy_is_explained_by_a_shard_that_has_work_for_it() -> None:
    offer = m.Offer(5, 0, 0, {}, 1)
    idle, busy = m.Explained(1, "Random", [], ["Idle."]), m.Explained(1, "Random", [], ["Busy."], [offer])
    reply = merged(m.Explain(9, "Random"), idle, busy)
    assert isinstance(reply, m.Explained)
    assert (reply.id, reply.offers) == (9, [offer])
    assert reply.notes == ["Busy.", "This is what shard 1 (b:1) does; each shard serves what it has."]
    first = merged(m.Explain(9, "Random"), idle, idle)
    assert isinstance(first, m.Explained)
    assert "shard 0 (a:1)" in first.notes[-1]


def test_whether_a_key_is_unknown_is_not_guessed_for_a_shard_that_was_never_reached() -> None:
    found = gathering(m.Find(9, b""), Members({0: "a:1"}, ["b:1"]), Cursors())
    assert found is not None
    found.ask([0])
    reply = found.merged({0: m.Found(1, None, False)})
    assert isinstance(reply, m.ErrorReply)
    assert "without b:1" in reply.error().message


def test_dead_chunks_of_named_submissions_are_asked_of_all_as_any_may_have_moved() -> None:
    for request in (
        m.Requeue(9, None, where=m.DeadFilter([0])),
        m.Drop(9, None, where=m.DeadFilter([0])),
        m.Dead(9, where=m.DeadFilter([0])),
    ):
        assert asked(request).ask([0, 1, 2]).keys() == {0, 1, 2}


def test_a_shard_without_an_address_is_named_by_its_number() -> None:
    assert Members({}).name(3) == "shard 3"


def test_soundness_is_not_known_without_a_shard_unless_there_is_a_problem_anyway() -> None:
    reply = merged(m.Check(9), m.Checked(1, []))
    assert isinstance(reply, m.ErrorReply)
    assert "shard 1 (b:1), shard 2 (c:1) did not answer" in reply.error().message
    assert merged(m.Check(9), m.Checked(1, ["Bad."])) == m.Checked(9, ["shard 0 (a:1): Bad."])

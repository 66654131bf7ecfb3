"""Submissions that wait for others: what opens and what cancels them, in the commit of the end."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from opsq.errors import Conflict, NotFound, UsageError
from opsq.queue.policy import Policy
from opsq.queue.submissions import dependencies
from opsq.store import dependencies as store_dependencies
from opsq.wire import messages as m
from unit.model.rig import Rig


@pytest.fixture
def rig(runtime_dir: Path) -> Iterator[Rig]:
    """An engine whose file is sound in the end."""
    rig = Rig(runtime_dir, Policy(finished_days=1))
    yield rig
    rig.settle()
    assert rig.broken_rules() == []
    stored = dict(rig.rows("SELECT state, count(*) FROM submission WHERE state != 'removed' GROUP BY state"))
    assert {name: count for name, count in rig.status().states.items() if count} == stored
    rig.close()


def wait_for(rig: Rig, *on: int, needs: str = "completed", chunks: int = 1, **options: object) -> int:
    after = [m.Dependency(one, needs) for one in on]  # type: ignore[arg-type]
    return rig.submit(chunks, after=after, **options)


def state(rig: Rig, submission_id: int) -> str:
    return rig.show(submission_id).state


def complete(rig: Rig, submission_id: int) -> None:
    peer = rig.connect()
    for ticket in rig.reserve(peer, 1000, f"SelectOnly(submission={submission_id})"):
        assert rig.complete(peer, ticket.held()) == []


def fail(rig: Rig, submission_id: int) -> None:
    peer = rig.connect()
    [ticket] = rig.reserve(peer, 1, f"SelectOnly(submission={submission_id})")
    rig.fail(peer, ticket.held(), is_final=True)


def cancel(rig: Rig, submission_id: int) -> int:
    return rig.only(rig.connect(), m.Cancel(next(rig.ids), submission_id), m.Changed).count


def requeue(rig: Rig, submission_id: int) -> None:
    rig.send(rig.connect(), m.Requeue(next(rig.ids), submission_id))
    rig.settle()
    rig.fold()
    rig.settle()


def test_nothing_of_a_blocked_submission_is_handed_out_before_all_it_waits_for_is_completed(rig: Rig) -> None:
    first, second = rig.submit(1), rig.submit(2)
    waiting = wait_for(rig, first, second)
    assert state(rig, waiting) == "blocked"
    complete(rig, first)
    assert state(rig, waiting) == "blocked"
    complete(rig, second)
    assert state(rig, waiting) == "open"
    complete(rig, waiting)
    assert state(rig, waiting) == "completed"


def test_it_is_handed_out_with_the_commit_of_the_end_to_who_is_parked(rig: Rig) -> None:
    first = rig.submit(1)
    waiting = wait_for(rig, first)
    peer = rig.connect()
    [ticket] = rig.reserve(peer)
    parked = rig.connect()
    request = rig.park(parked)
    rig.send(peer, m.Complete(next(rig.ids), [m.Completion(ticket.held())]))
    assert rig.begin()
    assert rig.database.writer.execute("SELECT state FROM submission WHERE id = ?", (waiting,)).get == "open"
    rig.database.commit()
    rig.end(None)
    [reply] = rig.replies(parked, request)
    assert isinstance(reply, m.Reserved)
    assert [grant.submission_id for grant in reply.grants] == [waiting]


def test_two_ends_in_one_batch_open_what_waits_for_both(rig: Rig) -> None:
    first, second = rig.submit(1), rig.submit(1)
    waiting = wait_for(rig, first, second)
    peer = rig.connect()
    tickets = rig.reserve(peer, 2)
    for ticket in tickets:
        rig.send(peer, m.Complete(next(rig.ids), [m.Completion(ticket.held())]))
    rig.commit()
    assert state(rig, waiting) == "open"


def test_what_comes_with_the_end_it_waits_for_counts_it(rig: Rig) -> None:
    """An end and a new submission of one batch, in either order."""
    for is_end_first in (True, False):
        first = rig.submit(1)
        peer = rig.connect()
        [ticket] = rig.reserve(peer, 1, f"SelectOnly(submission={first})")
        end = m.Complete(next(rig.ids), [m.Completion(ticket.held())])
        new = m.NewSubmission(rig.request_key(), 1, after=[m.Dependency(first)])
        submit = m.Submit(next(rig.ids), [new])
        for request in (end, submit) if is_end_first else (submit, end):
            rig.send(peer, request)
        rig.commit()
        [reply] = rig.replies(peer, submit.id)
        assert isinstance(reply, m.Submitted)
        assert state(rig, reply.created[0].submission_id) == "open"


@pytest.mark.parametrize("end", [fail, cancel])
def test_failed_dependency_cancels_runs_or_keeps(rig: Rig, end) -> None:  # type: ignore[no-untyped-def]
    first = rig.submit(1)
    policies = ("cancel", "run", "keep")
    waiting = {policy: wait_for(rig, first, on_failed_dependency=policy) for policy in policies}
    patient = wait_for(rig, first, needs="ended")
    end(rig, first)
    assert {policy: state(rig, one) for policy, one in waiting.items()} == {
        "cancel": "cancelled",
        "run": "open",
        "keep": "blocked",
    }
    assert state(rig, patient) == "open"
    how = "failed" if end is fail else "was cancelled"
    assert rig.show(waiting["cancel"]).reason == f"Submission {first}, which it waited for, {how}."


@pytest.mark.parametrize(("policy", "found"), [("cancel", "cancelled"), ("run", "open"), ("keep", "blocked")])
def test_dependency_that_had_failed_before_counts_at_once(rig: Rig, policy: str, found: str) -> None:
    first, done = rig.submit(1), rig.submit(1)
    fail(rig, first)
    complete(rig, done)
    assert state(rig, wait_for(rig, done)) == "open"
    assert state(rig, wait_for(rig, first, needs="ended")) == "open"
    waiting = wait_for(rig, first, done, on_failed_dependency=policy, metadata={"k": 1})
    assert state(rig, waiting) == found
    if found == "cancelled":
        assert rig.show(waiting).skipped_count == 1
        assert state(rig, rig.submit(1, after=[m.Dependency(key="k", value=1)])) == "open"


def test_what_is_kept_goes_on_when_the_failed_one_is_requeued_and_completed(rig: Rig) -> None:
    first = rig.submit(1)
    kept = wait_for(rig, first, on_failed_dependency="keep")
    gone = wait_for(rig, first)
    fail(rig, first)
    requeue(rig, first)
    assert state(rig, first) == "open"
    complete(rig, first)
    assert (state(rig, kept), state(rig, gone)) == ("open", "cancelled")


def test_requeue_of_what_was_cancelled_while_blocked_opens_it(rig: Rig) -> None:
    first = rig.submit(1)
    waiting = wait_for(rig, first)
    cancel(rig, waiting)
    requeue(rig, waiting)
    assert state(rig, waiting) == "open"
    complete(rig, first)
    complete(rig, waiting)


def test_cancellation_goes_down_the_whole_chain(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dependencies, "SLICE_WAITING", 3)
    chain = [rig.submit(1)]
    for _ in range(10):
        chain.append(wait_for(rig, chain[-1], chunks=3, metadata={"k": "chain"}))
    last = rig.submit(1, after=[m.Dependency(key="k", value="chain")])
    cancel(rig, chain[0])
    rig.advance(5)
    assert {state(rig, one) for one in chain} == {"cancelled"}
    assert state(rig, last) == "open"
    events = rig.only(rig.connect(), m.History(1, m.HistoryFilter(events=["cancelled"])), m.HistoryRows).rows
    assert {event.submission_id for event in events} == set(chain)


def test_pair_holds_once_all_that_have_it_have_ended_and_one_was_there(rig: Rig) -> None:
    waiting = rig.submit(1, after=[m.Dependency(key="batch", value=7)])
    assert state(rig, waiting) == "blocked"
    pair = {"batch": 7}
    members = [rig.submit(1, metadata=pair), rig.submit(1, metadata=pair, delay_s=3600.0)]
    members.append(wait_for(rig, members[0], metadata=pair))
    for member, how in zip(members, (complete, cancel, fail), strict=True):
        assert state(rig, waiting) == "blocked"
        how(rig, member)
    assert state(rig, waiting) == "open"
    assert state(rig, rig.submit(1, after=[m.Dependency(key="batch", value=7)])) == "open"


def test_pair_that_is_waited_for_outlives_those_that_had_it(rig: Rig) -> None:
    """A pair has a lane for as long as somebody waits for it."""
    kept = rig.submit(1, metadata={"other": "x"})
    waiting = rig.submit(1, after=[m.Dependency(key="batch", value=7), m.Dependency(kept)])
    rig.submit(1, metadata={"newest": "lane"})
    member = rig.submit(1, metadata={"batch": 7})
    cancel(rig, member)
    rig.ask(rig.connect(), m.Remove(next(rig.ids), member))
    rig.advance(120)
    [edge] = [edge for edge in rig.only(rig.connect(), m.Show(1, waiting), m.Shown).dependencies if edge.key]
    assert (edge.key, edge.value, edge.outcome) == ("batch", 7, "ended")
    complete(rig, kept)
    assert state(rig, waiting) == "open"


def test_empty_submission_is_completed_when_what_it_waits_for_is(rig: Rig) -> None:
    first = rig.submit(1)
    barrier = wait_for(rig, first, chunks=0, metadata={"k": 1})
    last = wait_for(rig, barrier)
    by_pair = rig.submit(1, after=[m.Dependency(key="k", value=1)])
    waiter = rig.connect()
    rig.send(waiter, m.Wait(77, barrier))
    complete(rig, first)
    assert [state(rig, one) for one in (barrier, last, by_pair)] == ["completed", "open", "open"]
    [shown] = rig.replies(waiter, 77)
    assert isinstance(shown, m.Shown)
    assert shown.submission.finished_at == rig.now.wall


@pytest.mark.parametrize("start", ["delay_s", "not_before_at"])
@pytest.mark.parametrize("is_late", [True, False])
def test_date_and_dependency_must_both_hold(rig: Rig, start: str, is_late: bool) -> None:
    first = rig.submit(1)
    waiting = wait_for(rig, first, **{start: 60.0 if start == "delay_s" else rig.now.wall + 60_000})
    if is_late:
        rig.advance(70)
        assert state(rig, waiting) == "blocked"
        complete(rig, first)
    else:
        rig.advance(30)
        complete(rig, first)
        assert state(rig, waiting) == "scheduled"
        rig.advance(28)
        assert state(rig, waiting) == "scheduled"
        rig.advance(3)
    assert state(rig, waiting) == "open"


def test_delay_of_a_blocked_submission_moves_with_the_wall_clock(rig: Rig) -> None:
    first = rig.submit(1)
    waiting = wait_for(rig, first, delay_s=60.0)
    rig.pass_time(0, wall_s=3600)
    rig.advance(1)
    complete(rig, first)
    assert state(rig, waiting) == "scheduled"
    rig.advance(60)
    assert state(rig, waiting) == "open"


def test_blocked_submission_expires_and_is_cancelled_like_any_other(rig: Rig) -> None:
    first = rig.submit(1)
    expiring = wait_for(rig, first, expires_s=10.0)
    below = wait_for(rig, expiring)
    cancelled = wait_for(rig, first)
    assert cancel(rig, cancelled) == 1
    rig.advance(11)
    assert [state(rig, one) for one in (expiring, below, cancelled)] == ["expired", "cancelled", "cancelled"]
    complete(rig, first)
    assert [state(rig, one) for one in (expiring, below, cancelled)] == ["expired", "cancelled", "cancelled"]


def test_cancel_that_comes_while_the_dependency_has_cancelled_it_counts_once(rig: Rig) -> None:
    first = rig.submit(1)
    waiting = wait_for(rig, first, chunks=5)
    peer = rig.connect()
    rig.send(peer, m.Cancel(next(rig.ids), first))
    assert rig.begin()
    rig.send(peer, m.Cancel(next(rig.ids), waiting))
    rig.database.commit()
    rig.end(None)
    rig.settle()
    assert (state(rig, waiting), rig.show(waiting).skipped_count) == ("cancelled", 5)


def test_unique_key_is_held_while_blocked(rig: Rig) -> None:
    first = rig.submit(1)
    waiting = wait_for(rig, first, unique_key="one")
    assert rig.submit(1, unique_key="one") == waiting
    cancel(rig, first)
    assert rig.submit(1, unique_key="one") != waiting


def test_many_are_told_in_slices_and_a_crash_between_them_loses_none(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dependencies, "SLICE_WAITING", 4)
    first = rig.submit(1)
    waiting = [wait_for(rig, first) for _ in range(30)]
    complete(rig, first)
    assert sum(state(rig, one) == "open" for one in waiting) == 4
    for _ in range(3):
        rig.tick()
        rig.settle()
        assert rig.broken_rules() == []
    opened = [one for one in waiting if state(rig, one) == "open"]
    assert opened == waiting[:16]
    rig.crash()
    assert rig.engine.next_tick_s(rig.now) == 0
    rig.advance(5)
    assert {state(rig, one) for one in waiting} == {"open"}
    assert rig.engine.next_tick_s(rig.now) > 0


def test_slice_whose_commit_fails_comes_again(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dependencies, "SLICE_WAITING", 4)
    first = rig.submit(1)
    waiting = [wait_for(rig, first) for _ in range(10)]
    complete(rig, first)
    rig.tick()
    rig.fail_commit()
    assert sum(state(rig, one) == "open" for one in waiting) == 4
    rig.advance(10)
    assert {state(rig, one) for one in waiting} == {"open"}


def test_requeue_between_two_slices_changes_nothing_for_those_who_wait(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dependencies, "SLICE_WAITING", 1)
    first = rig.submit(1)
    waiting = [wait_for(rig, first) for _ in range(5)]
    fail(rig, first)
    rig.send(rig.connect(), m.Requeue(next(rig.ids), first))
    rig.settle()
    rig.advance(30)
    assert {state(rig, one) for one in waiting} == {"cancelled"}


def test_queue_is_not_empty_for_a_filter_while_some_are_still_to_be_told(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dependencies, "SLICE_WAITING", 2)
    first = rig.submit(1, metadata={"t": "x"})
    for pair in ("y", "y", "y", "x"):
        wait_for(rig, first, metadata={"t": pair})
    complete(rig, first)
    peer = rig.connect()
    call = rig.park(peer, 1, "SelectOnly(t=x)", until_empty=True, wait_s=None)
    assert rig.replies(peer, call) == []
    rig.advance(1)
    [reply] = rig.replies(peer, call)
    assert isinstance(reply, m.Reserved)
    assert (len(reply.grants), reply.is_empty) == (1, False)


def test_number_0_is_a_value_as_any_other(rig: Rig) -> None:
    waiting = rig.submit(1, after=[m.Dependency(key="k", value=0)])
    complete(rig, rig.submit(1, metadata={"k": 0}))
    assert state(rig, waiting) == "open"


def test_history_tells_of_one_that_is_cancelled_as_it_comes(rig: Rig) -> None:
    first = rig.submit(1)
    cancel(rig, first)
    late = wait_for(rig, first)
    events = rig.only(rig.connect(), m.History(1, m.HistoryFilter(late)), m.HistoryRows).rows
    assert [(event.event, event.reason) for event in events] == [
        ("cancelled", f"Submission {first}, which it waited for, was cancelled.")
    ]


def test_check_finds_one_that_waits_for_what_is_not_there(rig: Rig) -> None:
    first = rig.submit(1)
    waiting = wait_for(rig, first, on_failed_dependency="keep")
    rig.database.writer.execute("UPDATE dependency SET target = 17 WHERE submission_id = ?", (waiting,))
    assert f"Submission {waiting} waits for 17, which is not there." in rig.broken_rules()
    rig.database.writer.execute("UPDATE dependency SET target = ? WHERE submission_id = ?", (first, waiting))


def test_unique_key_of_one_without_chunks_that_waits_is_held_in_its_batch_already(rig: Rig) -> None:
    first = rig.submit(1)
    peer = rig.connect()
    after = [m.Dependency(first, "ended")]
    for number, chunks_count in ((8, 0), (9, 1)):
        new = m.NewSubmission(rig.request_key(), chunks_count, unique_key="u", after=after)
        rig.send(peer, m.Submit(number, [new]))
    rig.settle()
    [made], [found] = rig.replies(peer, 8), rig.replies(peer, 9)
    assert isinstance(made, m.Submitted)
    assert isinstance(found, m.Submitted)
    assert found.created == [m.Created(made.created[0].submission_id, False)]
    complete(rig, first)
    assert rig.submit(1, unique_key="u") != made.created[0].submission_id


def test_what_others_wait_for_is_not_removed(rig: Rig) -> None:
    first = rig.submit(1)
    kept = wait_for(rig, first, on_failed_dependency="keep")
    fail(rig, first)
    with pytest.raises(Conflict, match=f"submission {kept} waits for it"):
        rig.ask(rig.connect(), m.Remove(next(rig.ids), first))
    rig.advance(2 * 86_400)
    assert state(rig, first) == "failed"
    cancel(rig, kept)
    rig.ask(rig.connect(), m.Remove(next(rig.ids), first))
    rig.advance(5)
    [edge] = rig.only(rig.connect(), m.Show(1, kept), m.Shown).dependencies
    assert (edge.on_submission_id, edge.on_state, edge.outcome) == (first, None, "void")
    rig.ask(rig.connect(), m.Remove(next(rig.ids), kept))
    rig.advance(5)
    assert rig.rows("SELECT * FROM dependency") == []


def test_removal_in_the_batch_of_one_that_comes_to_wait_is_refused(rig: Rig) -> None:
    first = rig.submit(1)
    fail(rig, first)
    peer = rig.connect()
    new = m.NewSubmission(rig.request_key(), 1, after=[m.Dependency(first)], on_failed_dependency="keep")
    rig.send(peer, m.Submit(101, [new]))
    rig.send(peer, m.Remove(102, first))
    rig.settle()
    with pytest.raises(Conflict, match="cannot be removed"):
        rig.replies(peer, 102)
    assert rig.replies(peer, 101)


def test_one_that_comes_to_wait_in_the_batch_of_the_removal_is_refused(rig: Rig) -> None:
    first = rig.submit(1)
    fail(rig, first)
    peer = rig.connect()
    rig.send(peer, m.Remove(101, first))
    rig.send(peer, m.Submit(102, [m.NewSubmission(rig.request_key(), 1, after=[m.Dependency(first)])]))
    rig.settle()
    with pytest.raises(NotFound, match=str(first)):
        rig.replies(peer, 102)
    assert rig.replies(peer, 101)


def test_unknown_dependency_is_refused(rig: Rig) -> None:
    with pytest.raises(NotFound):
        wait_for(rig, 12345)


@pytest.mark.parametrize("one", [m.Dependency(), m.Dependency(1, key="k", value=1), m.Dependency(key="k")])
def test_dependency_that_names_nothing_or_two_things_is_refused(rig: Rig, one: m.Dependency) -> None:
    with pytest.raises(UsageError):
        rig.submit(1, after=[one])


def test_circles_are_refused(rig: Rig) -> None:
    """Only a pair can be waited for before all that have it are there."""
    with pytest.raises(Conflict, match="wait for itself"):
        rig.submit(1, metadata={"k": 1}, after=[m.Dependency(key="k", value=1)])
    join = rig.submit(1, after=[m.Dependency(key="k", value=1)], metadata={"j": 1})
    after_join = wait_for(rig, join, metadata={"l": 1})
    for dependency in (m.Dependency(after_join), m.Dependency(key="j", value=1), m.Dependency(key="l", value=1)):
        with pytest.raises(Conflict, match="wait for itself"):
            rig.submit(1, metadata={"k": 1}, after=[dependency])
    with pytest.raises(Conflict, match="wait for itself"):
        rig.submit(0, metadata={"k": 1}, after=[m.Dependency(join)])
    assert len(rig.only(rig.connect(), m.List(1), m.Listed).submissions) == 2
    other = rig.submit(1)
    complete(rig, rig.submit(1, metadata={"k": 1}))
    cancel(rig, join)
    assert state(rig, wait_for(rig, other, metadata={"k": 1})) == "blocked"


def test_circle_is_looked_for_where_few_are(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    """From either side; with too many on both, nobody can say."""
    monkeypatch.setattr(store_dependencies, "CIRCLE_ROWS", 40)
    first = rig.submit(1)
    group = m.Dependency(key="many", value=1)
    for _ in range(50):
        wait_for(rig, first, metadata={"many": 1})
    join = rig.submit(1, after=[m.Dependency(key="k", value=1)], metadata={"j": 1})
    rig.submit(1, after=[m.Dependency(key="n", value=1)])
    assert state(rig, rig.submit(1, metadata={"n": 1}, after=[group])) == "blocked"
    with pytest.raises(Conflict, match="wait for itself"):
        rig.submit(1, metadata={"k": 1}, after=[group, m.Dependency(join)])
    wait_for(rig, join, metadata={"many": 1})
    with pytest.raises(Conflict, match="wait for itself"):
        rig.submit(1, metadata={"k": 1}, after=[group])
    for _ in range(50):
        rig.submit(1, after=[m.Dependency(key="l", value=1)])
    with pytest.raises(Conflict, match="waits for more than 40 others"):
        rig.submit(1, metadata={"l": 1}, after=[group])
    assert state(rig, rig.submit(1, metadata={"l": 1}, after=[m.Dependency(first)])) == "blocked"


def test_circle_of_two_pairs_in_one_request_is_refused(rig: Rig) -> None:
    news = [
        m.NewSubmission(rig.request_key(), 1, metadata={mine: 1}, after=[m.Dependency(key=others, value=1)])
        for mine, others in (("a", "b"), ("b", "a"))
    ]
    with pytest.raises(Conflict, match="wait for itself"):
        rig.ask(rig.connect(), m.Submit(1, news))
    assert rig.rows("SELECT * FROM submission") == []


def test_repeated_submission_is_the_one_that_was_made(rig: Rig) -> None:
    first = rig.submit(1)
    waiting = wait_for(rig, first, idempotency_key="once")
    complete(rig, first)
    assert rig.submit(1, idempotency_key="once") == waiting


def test_explain_and_show_say_what_blocks(rig: Rig) -> None:
    first, failed = rig.submit(1), rig.submit(1)
    fail(rig, failed)
    after = [m.Dependency(first), m.Dependency(failed), m.Dependency(key="batch", value=7)]
    waiting = rig.submit(1, after=after, on_failed_dependency="keep")
    last = wait_for(rig, waiting, needs="ended")
    explained = rig.only(rig.connect(), m.ExplainWork(1, waiting), m.WorkExplained)
    assert explained.verdict == "blocked"
    assert [found.code for found in explained.findings] == [
        "blocked",
        "waits_first",
        "waits_completed",
        "waits_kept",
        "counts",
    ]
    shown = rig.only(rig.connect(), m.Show(2, waiting), m.Shown)
    assert [found.code for found in shown.held_back] == [found.code for found in explained.findings[:-1]]
    edges = [(edge.submission_id, edge.on_submission_id, edge.on_state, edge.outcome) for edge in shown.dependencies]
    assert edges == [
        (waiting, None, None, None),
        (waiting, first, "open", None),
        (waiting, failed, "failed", None),
        (last, waiting, "blocked", None),
    ]
    chunk = rig.only(rig.connect(), m.ExplainWork(3, waiting, 0), m.WorkExplained)
    assert chunk.verdict == "blocked"
    status = rig.only(rig.connect(), m.Status(4, None, strategy=""), m.DaemonState)
    assert status.states["blocked"] == 2
    assert "some_blocked" in [found.code for found in status.held_back]


def test_graph_is_bounded(rig: Rig) -> None:
    first = rig.submit(1, metadata={"k": 1})
    chain = first
    for _ in range(150):
        wait_for(rig, first)
        chain = wait_for(rig, chain)
    assert len(rig.only(rig.connect(), m.Show(1, first), m.Shown).dependencies) == 100
    assert len(rig.only(rig.connect(), m.Show(1, chain), m.Shown).dependencies) == 100


def test_idle_engine_is_not_woken(rig: Rig) -> None:
    wait_for(rig, rig.submit(1))
    rig.tick()
    rig.settle()
    assert rig.engine.next_tick_s(rig.now) > 0.5
    assert not rig.engine.has_batch(rig.now)


@pytest.mark.parametrize(
    ("sql", "step"),
    [
        (
            (
                "SELECT submission_id FROM dependency WHERE target = 1 AND outcome IS NULL AND submission_id > 2 "
                "ORDER BY submission_id LIMIT 5"
            ),
            "SEARCH dependency USING COVERING INDEX dependency_target (target=? AND outcome=? AND submission_id>?)",
        ),
        (
            "SELECT 1 FROM dependency WHERE submission_id = 1 AND outcome IS NULL LIMIT 1",
            "SEARCH dependency USING PRIMARY KEY (submission_id=?)",
        ),
        (
            "SELECT id FROM submission WHERE state = 'blocked' AND not_before_at IS NOT NULL AND delay_ms IS NOT NULL",
            "SEARCH submission USING INDEX submission_blocked (not_before_at>?)",
        ),
    ],
)
def test_statements_walk_indexes(rig: Rig, sql: str, step: str) -> None:
    assert [row[-1] for row in rig.rows(f"EXPLAIN QUERY PLAN {sql}")] == [step]

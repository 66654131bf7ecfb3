"""Whether anything may still come for a strategy.

Each submission that holds nothing up is looked at once, a bounded number in a turn.
"""

from __future__ import annotations

import pytest

from opsq.queue.chunks import reserve
from opsq.queue.dispatch import until_empty
from opsq.wire import messages as m
from unit.model.rig import Rig


@pytest.fixture
def looks(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The submissions that are looked at, one after the other."""
    found: list[int] = []
    look = until_empty.UntilEmpty._has_work

    def noted(self: until_empty.UntilEmpty, arm: object, submission_id: int) -> bool:
        found.append(submission_id)
        return look(self, arm, submission_id)  # type: ignore[arg-type]

    monkeypatch.setattr(until_empty.UntilEmpty, "_has_work", noted)
    return found


def submit_paused(rig: Rig, count: int) -> list[int]:
    """Many submissions of a tenant that is paused."""
    peer = rig.connect()
    rig.ask(peer, m.Pause(next(rig.ids), {"tenant": "x"}))
    news = [m.NewSubmission(rig.request_key(), 1, metadata={"tenant": "x"}) for _ in range(count)]
    return [created.submission_id for created in rig.only(peer, m.Submit(next(rig.ids), news), m.Submitted).created]


def is_over(rig: Rig, strategy: str = "OldestFirst", *, wait_s: float | None = None) -> bool:
    """Whether a call that waits for the end of work is answered that this is it; otherwise it is given up."""
    peer = rig.connect()
    call = rig.park(peer, 1, strategy, until_empty=True, wait_s=wait_s)
    replies = rig.replies(peer, call)
    if not replies:
        rig.send(peer, m.CancelWait(call))
        return False
    [reply] = replies
    assert isinstance(reply, m.Reserved)
    assert not reply.grants
    return reply.is_empty


def test_paused_submissions_are_looked_at_once_however_often_somebody_asks(rig: Rig, looks: list[int]) -> None:
    paused = submit_paused(rig, 300)
    assert is_over(rig)
    assert looks == paused
    for _ in range(5):
        assert is_over(rig)
    assert looks == paused
    [new] = submit_paused(rig, 1)
    assert is_over(rig)
    assert looks == [*paused, new]


def test_turn_looks_at_a_bounded_number_and_the_next_goes_on(
    rig: Rig, looks: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    submit_paused(rig, 100)
    monkeypatch.setattr(reserve, "TURN_ROWS", 400)
    turns: list[int] = []
    turn = rig.engine.turn
    monkeypatch.setattr(rig.engine, "turn", lambda now: (turn(now), turns.append(len(looks))))
    for wait_s in (None, 0.0):
        rig.ask(rig.connect(), m.Resume(next(rig.ids), {"tenant": "x"}))
        rig.ask(rig.connect(), m.Pause(next(rig.ids), {"tenant": "x"}))
        turns.clear()
        looks.clear()
        assert is_over(rig, wait_s=wait_s)
        assert len(looks) == 100
        assert all(
            later - earlier <= 400 / until_empty.LOOK_ROWS for earlier, later in zip([0, *turns], turns, strict=False)
        )


def test_end_of_a_pause_has_all_looked_at_again(rig: Rig) -> None:
    submit_paused(rig, 3)
    assert is_over(rig)
    holder = rig.connect()
    rig.ask(holder, m.Resume(next(rig.ids), {"tenant": "x"}))
    rig.reserve(holder, 3)
    assert not is_over(rig)


def test_submission_that_opens_behind_the_search_is_not_forgotten(rig: Rig) -> None:
    """It is older than those that were passed."""
    rig.submit(1, delay_s=5.0)
    submit_paused(rig, 3)
    assert is_over(rig)
    rig.advance(6)
    rig.reserve(rig.connect())
    assert not is_over(rig)


def test_submission_that_is_revived_behind_the_search_is_not_forgotten(rig: Rig) -> None:
    old = rig.submit(1)
    rig.ask(rig.connect(), m.Cancel(next(rig.ids), old))
    submit_paused(rig, 3)
    assert is_over(rig)
    rig.ask(rig.connect(), m.Requeue(next(rig.ids), old))
    rig.reserve(rig.connect())
    assert not is_over(rig)


def test_submission_whose_end_does_not_come_about_is_not_forgotten(rig: Rig) -> None:
    old = rig.submit(1)
    rig.reserve(rig.connect())
    submit_paused(rig, 3)
    rig.send(rig.connect(), m.Cancel(next(rig.ids), old))
    assert not is_over(rig)
    rig.fail_commit()
    rig.advance(2)
    assert not is_over(rig)


def test_paused_chunk_that_is_taken_up_again_is_not_forgotten(rig: Rig) -> None:
    rig.submit(1, metadata={"tenant": "x"})
    peer = rig.connect()
    [ticket] = rig.reserve(peer)
    rig.disconnect(peer)
    submit_paused(rig, 3)
    assert is_over(rig)
    again = rig.connect()
    assert rig.reclaim(again, ticket.held()) == []
    assert not is_over(rig)


def test_submissions_that_the_other_filters_shut_out_are_passed_once(rig: Rig, looks: list[int]) -> None:
    for _ in range(5):
        rig.submit(1, metadata={"tenant": "x", "kind": "a"})
    for _ in range(5):
        rig.submit(1, metadata={"tenant": "y", "kind": "b"})
    strategy = "SelectOnly(tenant=x, SelectOnly(kind=b))"
    assert is_over(rig, strategy)
    assert len(looks) == 5
    assert is_over(rig, strategy)
    assert len(looks) == 5


def test_more_waiting_strategies_than_searches_are_kept_wait_for_the_end_of_work(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A search that begins again looks again at all that is paused."""
    monkeypatch.setattr(until_empty, "SEARCHES_KEPT", 4)
    monkeypatch.setattr(reserve, "TURN_ROWS", 60)
    asker, holder, tenants = rig.connect(), rig.connect(), range(12)
    for tenant in tenants:
        for _ in range(5):
            rig.submit(1, metadata={"tenant": tenant, "kind": "paused"})
        rig.submit(1, metadata={"tenant": tenant})
    rig.ask(asker, m.Pause(next(rig.ids), {"kind": "paused"}))
    tickets = rig.reserve(holder, 100)
    assert len(tickets) == len(tenants)
    rig.turns_limit = 100
    peer = rig.connect()
    calls = [rig.park(peer, strategy=f"SelectOnly(tenant={tenant})", until_empty=True) for tenant in tenants]
    rig.submit(1)
    assert not any(rig.replies(peer, call) for call in calls)
    rig.complete(holder, *(ticket.held() for ticket in tickets))
    assert [rig.replies(peer, call) for call in calls] == [[m.Reserved(call, is_empty=True)] for call in calls]

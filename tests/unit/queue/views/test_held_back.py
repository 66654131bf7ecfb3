"""What holds work back, of a submission and of all that a strategy takes, as codes with details."""

from __future__ import annotations

import pytest

from opsq.errors import InvalidStrategy
from opsq.queue.views import held_back
from opsq.queue.views.held_back import LOOK_ROWS
from opsq.wire import messages as m
from unit.model.rig import Rig


def held(rig: Rig, submission_id: int | None = None, strategy: str = "") -> list[tuple[str, dict[str, m.Detail]]]:
    """What holds a submission back, or what a strategy takes."""
    reply: m.Shown | m.DaemonState
    if submission_id is not None:
        reply = rig.only(rig.connect("asker"), m.Show(next(rig.ids), submission_id), m.Shown)
    else:
        reply = rig.only(rig.connect("asker"), m.Status(next(rig.ids), None, strategy), m.DaemonState)
    return [(finding.code, finding.details) for finding in reply.held_back]


def codes(rig: Rig, submission_id: int | None = None, strategy: str = "") -> list[str]:
    return [code for code, _ in held(rig, submission_id, strategy)]


def pause(rig: Rig, **pairs: int | str) -> None:
    rig.ask(rig.connect(), m.Pause(next(rig.ids), pairs, False, "ada@host"))


def test_pause_holds_back_what_has_its_pairs_and_nothing_else(rig: Rig) -> None:
    acme, other = rig.submit(3, metadata={"tenant": "acme"}), rig.submit(2, metadata={"tenant": "b"})
    rig.reserve(rig.connect("reader"), 1, "SelectOnly(tenant=b)")
    pause(rig, tenant="acme")
    [(code, details), fact] = held(rig, acme)
    assert (code, details["pairs"], details["by"]) == ("paused", "tenant=acme", "ada@host")
    assert fact == ("resume", {"pairs": "tenant=acme"})
    assert codes(rig, other) == []
    assert codes(rig) == ["paused", "resume"]
    assert codes(rig, strategy="SelectOnly(tenant=acme)") == ["paused", "resume"]
    assert codes(rig, strategy=f"SelectOnly(submission={acme})") == ["paused", "resume"]
    assert codes(rig, strategy=f"SelectOnly(submission={other})") == []
    assert codes(rig, strategy="SelectOnly(tenant=b)") == []
    assert codes(rig, strategy="Fair(tenant)") == ["paused", "resume"]


def test_pause_that_nothing_waits_behind_holds_nothing_back(rig: Rig) -> None:
    pause(rig, tenant="acme")
    assert codes(rig) == []
    rig.submit(1, metadata={"tenant": "b"})
    assert codes(rig) == []


def test_pause_of_two_pairs_is_named_if_its_work_may_be_beyond_what_is_looked_at(rig: Rig) -> None:
    for _ in range(LOOK_ROWS):
        rig.submit(1, metadata={"a": 1, "b": 1})
    for _ in range(LOOK_ROWS - 1):
        rig.submit(1, metadata={"a": 2, "b": 2})
    pause(rig, a=1, b=2)
    assert codes(rig) == []
    last = rig.submit(1, metadata={"a": 2, "b": 2})
    assert codes(rig) == ["paused", "resume"]
    rig.ask(rig.connect(), m.Cancel(next(rig.ids), last))
    assert codes(rig) == []
    rig.submit(1, metadata={"a": 1, "b": 2, "c": 3})
    assert codes(rig, strategy="SelectOnly(c=3)") == ["paused", "resume"]


def test_pause_of_everything_holds_all_back(rig: Rig) -> None:
    submission_id = rig.submit(1)
    pause(rig)
    assert codes(rig, submission_id) == codes(rig) == ["paused", "resume"]


def test_closed_limit_is_told_with_its_value_while_somebody_waits_at_it(rig: Rig) -> None:
    submission_id = rig.submit(3, metadata={"tenant": "a"})
    rig.ask(rig.connect(), m.Limit(next(rig.ids), "tenant", None, 1))
    peer = rig.connect("reader")
    assert codes(rig) == []
    rig.reserve(peer, 1)
    rig.park(peer)
    [(code, details), (fact, _)] = held(rig)
    assert (code, details, fact) == ("limited", {"pair": "tenant=a", "count": 1, "bound": 1}, "limit")
    assert codes(rig, submission_id) == ["limited", "limit"]
    assert codes(rig, strategy="SelectOnly(tenant=b)") == []


def test_empty_rate_is_told_with_the_time_of_its_next_token(rig: Rig) -> None:
    submission_id = rig.submit(3, metadata={"tenant": "a"})
    rig.ask(rig.connect(), m.Limit(next(rig.ids), "tenant", None, None, 0.1))
    peer = rig.connect("reader")
    rig.reserve(peer, 1)
    rig.park(peer)
    assert codes(rig) == codes(rig, submission_id) == ["rate_limited", "rate"]
    assert held(rig)[0][1]["wait_s"] == pytest.approx(10.0)
    rig.advance(11)
    assert codes(rig, submission_id) == ["rate_limited", "rate"]  # the parked call has taken the token


def test_date_to_come_is_told(rig: Rig) -> None:
    submission_id = rig.submit(1, delay_s=60.0)
    rig.submit(1, delay_s=7200.0)
    [(code, details)] = held(rig, submission_id)
    assert code == "scheduled"
    [(found, all_details)] = held(rig)
    assert (found, all_details["submissions"], all_details["due_at"]) == ("some_scheduled", 2, details["due_at"])


def test_more_to_wait_for_than_is_counted_is_told_as_more(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(held_back, "UNFINISHED_COUNTED", 2)
    for _ in range(2):
        rig.submit(1, metadata={"batch": 7})
    waiting = rig.submit(1, after=[m.Dependency(key="batch", value=7)])
    counted = {"pair": "batch=7", "unfinished": 2}
    assert held(rig, waiting)[1] == ("waits_pair", counted)
    rig.submit(1, metadata={"batch": 7})
    assert held(rig, waiting)[1] == ("waits_many", counted)


def test_submission_that_nobody_takes_is_told(rig: Rig) -> None:
    submission_id = rig.submit(1, metadata={"kind": "b"})
    assert codes(rig, submission_id) == ["no_consumer", "take"]
    rig.park(rig.connect("reader"), strategy="SelectOnly(kind=a)")
    assert codes(rig, submission_id) == ["unmatched"]
    rig.advance(6)
    rig.engine.watch(rig.now)
    assert codes(rig) == ["unmatched_strategy"]
    assert codes(rig, strategy="SelectOnly(kind=a)") == ["unmatched_strategy"]
    assert codes(rig, strategy="SelectOnly(kind=b)") == []


def test_work_that_goes_on_is_not_held_back(rig: Rig) -> None:
    submission_id = rig.submit(3)
    peer = rig.connect("reader")
    [ticket] = rig.reserve(peer, 1)
    assert codes(rig, submission_id) == codes(rig) == []
    rig.complete(peer, ticket.held())
    assert codes(rig, submission_id) == codes(rig) == []


def test_strategy_that_is_none_is_refused(rig: Rig) -> None:
    with pytest.raises(InvalidStrategy, match="Nonsense"):
        rig.ask(rig.connect(), m.Status(next(rig.ids), None, "Nonsense("))

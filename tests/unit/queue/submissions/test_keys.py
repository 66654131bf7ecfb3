"""Keys of producers: what they have made is told, for ever or until it is removed; what was withdrawn is never made."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from opsq.errors import Conflict, UsageError
from opsq.queue.policy import Policy
from opsq.wire import messages as m
from unit.model.rig import Rig

KEY, OTHER = b"k" * 16, b"o" * 16


@pytest.fixture
def rig(runtime_dir: Path) -> Iterator[Rig]:
    rig = Rig(runtime_dir)
    yield rig
    assert rig.broken_rules() == []
    rig.close()


def submit(rig: Rig, request_key: bytes = KEY, content: bytes = b"content", **options: object) -> m.Created:
    new = msgspec.structs.replace(m.NewSubmission(request_key, 3, content), **options)
    return rig.only(rig.connect(), m.Submit(1, [new]), m.Submitted).created[0]


def find(rig: Rig, request_key: bytes | None = None, idempotency_key: str | None = None) -> tuple[int | None, bool]:
    found = rig.only(rig.connect(), m.Find(1, request_key, idempotency_key), m.Found)
    return found.submission_id, found.is_withdrawn


def withdraw(rig: Rig, request_key: bytes = KEY) -> tuple[int | None, bool]:
    found = rig.only(rig.connect(), m.Withdraw(1, request_key), m.Found)
    return found.submission_id, found.is_withdrawn


def remove(rig: Rig, submission_id: int) -> None:
    rig.ask(rig.connect(), m.Cancel(1, submission_id))
    rig.ask(rig.connect(), m.Remove(2, submission_id))
    rig.tick()
    rig.settle()


def test_request_key_tells_what_it_made(rig: Rig):
    assert find(rig, KEY) == (None, False)
    made = submit(rig)
    assert find(rig, KEY) == (made.submission_id, False)
    rig.crash()
    assert find(rig, KEY) == (made.submission_id, False)


def test_repeated_request_is_answered_with_what_it_made(rig: Rig):
    made = submit(rig)
    assert submit(rig) == m.Created(made.submission_id, False)


def test_request_key_with_other_content_is_a_conflict_that_names_its_holder(rig: Rig):
    made = submit(rig)
    with pytest.raises(Conflict, match=f"belongs to submission {made.submission_id}, which has other content"):
        submit(rig, content=b"other")
    assert len(rig.rows("SELECT id FROM submission")) == 1


def test_request_key_with_other_content_is_a_conflict_while_the_first_is_being_committed(rig: Rig):
    peer = rig.connect()
    rig.send(peer, m.Submit(1, [m.NewSubmission(KEY, 3, b"content")]))
    with pytest.raises(Conflict, match="belongs to submission"):
        rig.send(peer, m.Submit(2, [m.NewSubmission(KEY, 3, b"other")]))
    rig.send(peer, m.Submit(3, [m.NewSubmission(KEY, 3, b"content")]))
    rig.settle()
    [[first], [again]] = [
        reply.created for number in (1, 3) for reply in rig.replies(peer, number) if isinstance(reply, m.Submitted)
    ]
    assert (again.submission_id, again.is_new) == (first.submission_id, False)


def test_conflict_of_one_stores_none_of_a_request(rig: Rig):
    submit(rig)
    news = [m.NewSubmission(OTHER, 1), m.NewSubmission(KEY, 3, b"other")]
    with pytest.raises(Conflict):
        rig.ask(rig.connect(), m.Submit(1, news))
    assert find(rig, OTHER) == (None, False)


def test_withdrawn_request_makes_no_submission_later(rig: Rig):
    assert withdraw(rig) == (None, True)
    with pytest.raises(Conflict, match="was withdrawn"):
        submit(rig)
    assert find(rig, KEY) == (None, True)
    assert submit(rig, OTHER).is_new


def test_withdrawal_survives_a_crash(rig: Rig):
    withdraw(rig)
    rig.crash()
    with pytest.raises(Conflict, match="was withdrawn"):
        submit(rig)
    assert withdraw(rig) == (None, True)


def test_withdrawal_after_the_submission_names_it_and_leaves_it(rig: Rig):
    made = submit(rig)
    assert withdraw(rig) == (made.submission_id, False)
    assert rig.show(made.submission_id).state == "open"
    assert submit(rig) == m.Created(made.submission_id, False)


def test_withdrawal_in_the_same_batch_before_the_submission_wins(rig: Rig):
    peer = rig.connect()
    rig.send(peer, m.Withdraw(1, KEY))
    with pytest.raises(Conflict, match="was withdrawn"):
        rig.send(peer, m.Submit(2, [m.NewSubmission(KEY, 3)]))
    rig.settle()
    assert find(rig, KEY) == (None, True)


def test_withdrawal_in_the_same_batch_after_the_submission_loses(rig: Rig):
    peer = rig.connect()
    rig.send(peer, m.Submit(1, [m.NewSubmission(KEY, 3)]))
    rig.send(peer, m.Withdraw(2, KEY))
    assert rig.replies(peer, 2) == []
    rig.settle()
    [submitted] = rig.replies(peer, 1)
    [found] = rig.replies(peer, 2)
    assert isinstance(submitted, m.Submitted)
    assert found == m.Found(2, submitted.created[0].submission_id, False)


def test_withdrawal_whose_commit_fails_is_none(rig: Rig):
    peer = rig.connect()
    rig.send(peer, m.Withdraw(1, KEY))
    rig.fail_commit()
    rig.advance(30)
    assert find(rig, KEY) == (None, False)
    assert submit(rig).is_new


def test_request_that_waits_for_room_is_refused_when_it_was_withdrawn_meanwhile(runtime_dir: Path):
    rig = Rig(runtime_dir, Policy(max_backlog_chunks=3))
    full = rig.submit(3)
    peer = rig.connect()
    rig.send(peer, m.Submit(1, [m.NewSubmission(KEY, 3)], None))
    assert withdraw(rig) == (None, True)
    rig.ask(peer, m.Cancel(2, full))
    rig.advance(1)
    with pytest.raises(Conflict, match="was withdrawn"):
        rig.replies(peer, 1)
    rig.close()


def test_withdrawals_are_forgotten_when_finished_submissions_are(rig: Rig):
    withdraw(rig)
    rig.pass_time(rig.policy.finished_days * 86400 - 120)
    rig.tick()
    rig.settle()
    assert find(rig, KEY) == (None, True)
    rig.pass_time(240)
    rig.tick()
    rig.settle()
    assert find(rig, KEY) == (None, False)


def test_idempotency_key_makes_one_submission_whatever_the_content(rig: Rig):
    made = submit(rig, idempotency_key="nightly")
    assert submit(rig, OTHER, b"other", idempotency_key="nightly") == m.Created(made.submission_id, False)
    assert find(rig, idempotency_key="nightly") == (made.submission_id, False)
    assert find(rig, idempotency_key="weekly") == (None, False)


def test_idempotency_key_holds_after_the_end_of_its_submission_and_over_a_crash(rig: Rig):
    made = submit(rig, idempotency_key="nightly")
    rig.ask(rig.connect(), m.Cancel(1, made.submission_id))
    rig.crash()
    assert submit(rig, OTHER, idempotency_key="nightly") == m.Created(made.submission_id, False)


def test_idempotency_key_twice_in_one_request_makes_one(rig: Rig):
    news = [m.NewSubmission(KEY, 3, idempotency_key="nightly"), m.NewSubmission(OTHER, 3, idempotency_key="nightly")]
    first, second = rig.only(rig.connect(), m.Submit(1, news), m.Submitted).created
    assert (second.submission_id, first.is_new, second.is_new) == (first.submission_id, True, False)


def test_idempotency_key_is_free_again_when_its_submission_was_removed(rig: Rig):
    made = submit(rig, idempotency_key="nightly")
    remove(rig, made.submission_id)
    assert find(rig, idempotency_key="nightly") == (None, False)
    again = submit(rig, OTHER, idempotency_key="nightly")
    assert again.is_new
    assert find(rig, idempotency_key="nightly") == (again.submission_id, False)
    assert len(rig.rows("SELECT * FROM idempotency")) == 1


def test_idempotency_key_is_kept_for_a_time_after_the_end(rig: Rig):
    made = submit(rig, idempotency_key="nightly", idempotency_keep_s=60)
    rig.pass_time(300)
    assert submit(rig, OTHER, idempotency_key="nightly", idempotency_keep_s=60) == m.Created(made.submission_id, False)
    rig.ask(rig.connect(), m.Cancel(1, made.submission_id))
    rig.settle()
    rig.pass_time(50)
    assert submit(rig, OTHER, idempotency_key="nightly", idempotency_keep_s=60) == m.Created(made.submission_id, False)
    rig.pass_time(20)
    assert submit(rig, OTHER, idempotency_key="nightly") == m.Created(made.submission_id, False)
    again = submit(rig, OTHER, idempotency_key="nightly", idempotency_keep_s=60)
    assert again.is_new
    assert find(rig, idempotency_key="nightly") == (again.submission_id, False)


def test_idempotency_key_cannot_be_kept_without_a_key_or_longer_than_submissions(rig: Rig):
    with pytest.raises(UsageError, match="no idempotency key"):
        submit(rig, idempotency_keep_s=60)
    with pytest.raises(UsageError, match="finished_days"):
        submit(rig, idempotency_key="nightly", idempotency_keep_s=rig.policy.finished_days * 86400 + 1)


def test_find_needs_exactly_one_key(rig: Rig):
    for request in (m.Find(1), m.Find(1, KEY, "nightly")):
        with pytest.raises(UsageError, match="a request key or an idempotency key"):
            rig.ask(rig.connect(), request)

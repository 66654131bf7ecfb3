"""Submitting: what is stored, what is known already, what is refused whole."""

from __future__ import annotations

import msgspec
import pytest

from opsq.errors import StorageFull, UsageError
from opsq.queue.submissions import submit as submissions_submit
from opsq.wire import messages as m
from unit.model.rig import Rig


def new(rig: Rig, chunks_count: int = 1, **options: object) -> m.NewSubmission:
    return msgspec.structs.replace(m.NewSubmission(rig.request_key(), chunks_count), **options)


def submit(rig: Rig, *news: m.NewSubmission) -> list[m.Created]:
    return rig.only(rig.connect(), m.Submit(next(rig.ids), list(news)), m.Submitted).created


def test_many_submissions_of_one_request_are_stored_in_one_transaction(rig: Rig) -> None:
    peer = rig.connect()
    rig.send(peer, m.Submit(1, [new(rig, n + 1) for n in range(100)]))
    assert rig.begin()
    assert rig.rows("SELECT count(*) FROM submission") == [(0,)]
    rig.database.commit()
    rig.end(None)
    assert rig.rows("SELECT count(*), sum(chunks_total) FROM submission") == [(100, 5050)]
    [reply] = rig.replies(peer, 1)
    assert isinstance(reply, m.Submitted)
    ids = [created.submission_id for created in reply.created]
    assert ids == sorted(set(ids))


def test_title_and_who_submitted_are_shown_wherever_a_submission_is(rig: Rig) -> None:
    peer = rig.connect("producer")
    peer.user, peer.place = "ada", "build7"
    submission_id, other_id = rig.submit(0, peer=peer, title="Nightly import"), rig.submit(0, title="")
    shown = rig.show(submission_id)
    assert (shown.title, shown.submitted_by, shown.submitted_from) == ("Nightly import", "ada", "build7")
    other = rig.show(other_id)
    assert (other.title, other.submitted_by, other.submitted_from) == (None, None, None)
    assert rig.only(rig.connect(), m.List(1), m.Listed).submissions == [other, shown]
    assert rig.only(rig.connect(), m.Wait(2, submission_id), m.Shown).submission == shown
    rig.restart()
    assert rig.show(submission_id) == shown


def test_who_waits_for_the_end_gets_the_title_with_it(rig: Rig) -> None:
    submission_id, waits = rig.submit(1, title="Nightly import"), rig.connect("waits")
    rig.send(waits, m.Wait(7, submission_id))
    rig.ask(rig.connect(), m.Cancel(1, submission_id))
    [shown] = rig.replies(waits, 7)
    assert isinstance(shown, m.Shown)
    assert (shown.submission.state, shown.submission.title) == ("cancelled", "Nightly import")


def test_keys_do_not_look_at_the_title(rig: Rig) -> None:
    first = new(rig, idempotency_key="once", title="A")
    [made] = submit(rig, first)
    again = [msgspec.structs.replace(first, title="B"), new(rig, idempotency_key="once", title="C")]
    assert submit(rig, *again) == [m.Created(made.submission_id, False)] * 2
    assert rig.show(made.submission_id).title == "A"


def test_title_that_is_not_a_line_of_text_is_refused(rig: Rig) -> None:
    for title in ("x" * 257, "é" * 129, "a\nb", "\x1b[2J"):
        with pytest.raises(UsageError, match="title"):
            submit(rig, new(rig, title=title))
    assert rig.rows("SELECT count(*) FROM submission") == [(0,)]
    assert rig.show(submit(rig, new(rig, title="é" * 128))[0].submission_id).title == "é" * 128


def test_submission_of_a_billion_chunks_is_one_row(rig: Rig) -> None:
    submission_id = rig.submit(1 << 40)
    assert rig.rows("SELECT count(*) FROM block") == [(0,)]
    assert rig.show(submission_id).chunks_count == 1 << 40
    [ticket] = rig.reserve(rig.connect(), 64)
    assert ticket.block == 0


def test_submission_of_zero_chunks_is_completed_at_once(rig: Rig) -> None:
    submission_id = rig.submit(0)
    state = rig.show(submission_id)
    assert (state.state, state.finished_at) == ("completed", rig.now.wall)
    shown = rig.only(rig.connect(), m.Wait(5, submission_id), m.Shown)
    assert shown.submission.state == "completed"
    assert rig.status().states["completed"] == 1


def test_submission_is_not_offered_before_its_commit(rig: Rig) -> None:
    producer, consumer = rig.connect(), rig.connect()
    rig.send(producer, m.Submit(1, [new(rig)]))
    assert rig.reserve_now(consumer) == []
    rig.settle()
    assert len(rig.reserve_now(consumer)) == 1


# --- repeated requests ---


@pytest.mark.parametrize("is_committed", [False, True])
def test_repeated_request_gets_the_same_id_and_stores_nothing(rig: Rig, is_committed: bool) -> None:
    first, second = rig.connect(), rig.connect()
    again = new(rig)
    rig.send(first, m.Submit(1, [again]))
    if is_committed:
        rig.settle()
    rig.send(second, m.Submit(2, [again]))
    rig.settle()
    [created] = rig.replies(first, 1)
    [repeated] = rig.replies(second, 2)
    assert isinstance(created, m.Submitted)
    assert isinstance(repeated, m.Submitted)
    assert repeated.created == [m.Created(created.created[0].submission_id, False)]
    assert rig.rows("SELECT count(*) FROM submission") == [(1,)]


def test_repeated_request_after_a_crash_gets_the_same_id(rig: Rig) -> None:
    again = new(rig)
    [created] = submit(rig, again)
    rig.crash()
    assert submit(rig, again) == [m.Created(created.submission_id, False)]


def test_request_whose_commit_failed_is_new_when_it_is_sent_again(rig: Rig) -> None:
    again = new(rig, unique_key="nightly")
    peer = rig.connect()
    rig.send(peer, m.Submit(1, [again]))
    rig.fail_commit()
    with pytest.raises(StorageFull):
        rig.replies(peer, 1)
    rig.advance(2)
    assert submit(rig, again)[0].is_new


def test_same_key_twice_in_one_request_is_one_submission(rig: Rig) -> None:
    again = new(rig)
    created, repeated = submit(rig, again, again)
    assert (created.is_new, repeated.is_new) == (True, False)
    assert created.submission_id == repeated.submission_id


# --- unique keys ---


def test_second_submission_with_a_unique_key_gets_the_first_until_that_has_ended(rig: Rig) -> None:
    [first] = submit(rig, new(rig, unique_key="nightly"))
    for _ in range(3):
        assert submit(rig, new(rig, unique_key="nightly")) == [m.Created(first.submission_id, False)]
    peer = rig.connect()
    [ticket] = rig.reserve(peer)
    assert submit(rig, new(rig, unique_key="nightly")) == [m.Created(first.submission_id, False)]
    rig.complete(peer, ticket.held())
    assert submit(rig, new(rig, unique_key="nightly"))[0].is_new


def test_unique_key_sent_twice_at_once_makes_one_submission(rig: Rig) -> None:
    peers = [rig.connect() for _ in range(5)]
    for peer in peers:
        rig.send(peer, m.Submit(1, [new(rig, unique_key="nightly")]))
    rig.settle()
    created = [rig.replies(peer, 1)[0].created[0] for peer in peers]  # type: ignore[union-attr]  # Submitted
    assert [one.is_new for one in created] == [True, False, False, False, False]
    assert len({one.submission_id for one in created}) == 1


def test_unique_key_of_a_scheduled_submission_is_held(rig: Rig) -> None:
    [first] = submit(rig, new(rig, unique_key="nightly", delay_s=60.0))
    assert submit(rig, new(rig, unique_key="nightly")) == [m.Created(first.submission_id, False)]


def test_unique_key_of_an_empty_submission_is_not_held(rig: Rig) -> None:
    first, second = submit(rig, new(rig, 0, unique_key="nightly"), new(rig, 1, unique_key="nightly"))
    assert first.is_new
    assert second.is_new


def test_unique_key_is_held_while_its_end_is_being_committed(rig: Rig) -> None:
    [first] = submit(rig, new(rig, unique_key="nightly"))
    peer = rig.connect()
    rig.send(peer, m.Cancel(1, first.submission_id))
    assert rig.begin()
    rig.send(peer, m.Submit(2, [new(rig, unique_key="nightly")]))
    rig.database.commit()
    rig.end(None)
    rig.settle()
    assert rig.replies(peer, 2) == [m.Submitted(2, [m.Created(first.submission_id, False)])]


# --- metadata, limits ---


def test_integers_and_texts_of_metadata_are_never_confused(rig: Rig) -> None:
    as_integer, as_text = rig.submit(1, metadata={"n": 7}), rig.submit(2, metadata={"n": "7"})
    assert rig.show(as_integer).metadata == {"n": 7}
    assert rig.show(as_text).metadata == {"n": "7"}
    assert [(counts.value, counts.waiting_count) for counts in rig.status("n").by] == [(7, 1), ("7", 2)]


def test_attachment_and_content_come_back_as_they_were(rig: Rig) -> None:
    submission_id = rig.submit(1, content=b"\x00c", attachment=b"\xff\x00")
    peer = rig.connect()
    assert rig.only(peer, m.GetAttachment(1, submission_id), m.Attachment).attachment == b"\xff\x00"
    [described] = rig.only(peer, m.Describe(2, [submission_id, 99]), m.Described).submissions
    assert (described.content, described.has_attachment) == (b"\x00c", True)


def test_submissions_are_described_in_the_order_asked_for(rig: Rig) -> None:
    ids = [rig.submit(n, content=b"c" * n, metadata={"n": n}) for n in (1, 2, 3)]
    peer = rig.connect()
    rig.only(peer, m.Cancel(1, ids[1]), m.Changed)
    rig.only(peer, m.Remove(2, ids[1]), m.Changed)
    described = rig.only(peer, m.Describe(3, [ids[2], *ids]), m.Described).submissions
    assert [one.submission_id for one in described] == [ids[2], ids[0], ids[2]]
    assert [(one.chunks_count, one.content, one.metadata) for one in described[1:]] == [
        (1, b"c", {"n": 1}),
        (3, b"ccc", {"n": 3}),
    ]


@pytest.mark.parametrize(
    "options",
    [
        {"metadata": {"submission": 1}},
        {"metadata": {f"k{n}": n for n in range(submissions_submit.METADATA_LIMIT + 1)}},
        {"delay_s": 1.0, "not_before_at": 1},
        {"expires_s": 1.0, "expires_at": 1},
        {"content": b"x" * (submissions_submit.CONTENT_LIMIT_BYTES + 1)},
        {"attachment": b"x" * (submissions_submit.ATTACHMENT_LIMIT_BYTES + 1)},
    ],
)
def test_submission_that_cannot_be_refuses_its_request_whole(rig: Rig, options: dict[str, object]) -> None:
    with pytest.raises(UsageError):
        submit(rig, new(rig), new(rig, **options))
    rig.settle()
    assert rig.rows("SELECT count(*) FROM submission") == [(0,)]

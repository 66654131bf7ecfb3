"""The link: answers find who asked, a loss is repaired, heartbeats show that this side lives."""

from __future__ import annotations

import math
import threading
from collections.abc import Iterator, Sequence

import pytest

from opsq.client.core import own_process
from opsq.client.sync.link import Link
from opsq.errors import NotFound, TimedOut, Unreachable, UsageError, VersionMismatch
from opsq.wire.messages import (
    Alive,
    CancelWait,
    Changed,
    ChunkMask,
    Complete,
    CompleteAndReserve,
    Completed,
    ErrorReply,
    Heartbeat,
    HeldChunks,
    Reclaim,
    Reply,
    Request,
    Requeue,
    Reserve,
    Reserved,
    Revoked,
    Started,
    Wait,
)
from scripted import ScriptedDaemon, ScriptedWire, silence
from waiting import wait_until

HELD = HeldChunks(7, 0, 1, 1, 0, 1, 99)


def answer_requeue(request: Request) -> list[Reply]:
    """Answers a requeue with its own number as count, and hears heartbeats."""
    if isinstance(request, Requeue):
        return [Changed(request.id, request.submission_id)]
    return list(silence(request))


@pytest.fixture
def daemon() -> ScriptedDaemon:
    return ScriptedDaemon(answer_requeue)


@pytest.fixture
def link(daemon: ScriptedDaemon) -> Iterator[Link]:
    link = Link(daemon.open_wire)
    yield link
    link.close()


@pytest.fixture
def watchful() -> Iterator[tuple[Link, ScriptedDaemon]]:
    """A link that notices a loss at once: a heartbeat is always due; and its daemon, that answers nothing else."""
    daemon = ScriptedDaemon(silence, heartbeat_s=0.01)
    link = Link(daemon.open_wire)
    yield link, daemon
    link.close()


def call(link: Link, number: int, timeout_s: float | None = None) -> int:
    return link.call(Requeue(link.next_id(), number), Changed, timeout_s).count


def test_call_returns_the_answer_with_its_id(link: Link) -> None:
    assert [call(link, number) for number in (3, 4)] == [3, 4]


def test_answers_to_many_threads_each_reach_the_one_that_asked(link: Link) -> None:
    wrong: list[int] = []

    def ask(first: int) -> None:
        wrong.extend(number for number in range(first, first + 50) if call(link, number) != number)

    threads = [threading.Thread(target=ask, args=(first,)) for first in range(0, 400, 50)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


def test_an_error_reply_is_raised_as_its_class(link: Link, daemon: ScriptedDaemon) -> None:
    daemon.script = lambda request: [ErrorReply(request.id, "not_found", "No such submission.", "Look again.")]
    with pytest.raises(NotFound, match=r"No such submission\. Look again\."):
        call(link, 1)


def test_a_call_without_answer_times_out_and_is_abandoned(link: Link, daemon: ScriptedDaemon) -> None:
    daemon.script = silence
    with pytest.raises(TimedOut):
        call(link, 1, timeout_s=0.01)
    request = daemon.wire.of(Requeue)[0]
    assert daemon.wire.of(CancelWait) == [CancelWait(request.id)]


def test_a_broken_connection_is_made_anew_and_what_is_unanswered_is_sent_again(
    link: Link, daemon: ScriptedDaemon
) -> None:
    daemon.script = silence
    answers: list[Reply] = []
    link.send([Requeue(link.next_id(), 1), Requeue(link.next_id(), 2)], answers.append)
    first = daemon.wire
    daemon.script = answer_requeue
    first.close()
    assert link.wait_until(lambda: len(answers) == 2, 10)
    assert daemon.wire is not first
    assert daemon.wire.sent == first.sent


def test_what_cannot_be_sent_is_refused_and_not_sent_again(
    link: Link, daemon: ScriptedDaemon, monkeypatch: pytest.MonkeyPatch
) -> None:
    def send(requests: Sequence[Request]) -> None:
        raise UsageError("It is too long.")

    first = daemon.wire
    with monkeypatch.context() as patch:
        patch.setattr(first, "send", send)
        with pytest.raises(UsageError, match="too long"):
            link.send([Requeue(link.next_id(), 1)], [].append)
    first.close()
    assert link.wait_until(lambda: daemon.wire is not first, 10)
    assert call(link, 2) == 2
    assert [request.submission_id for request in daemon.wire.of(Requeue)] == [2]


def test_request_that_is_too_long_for_the_next_daemon_fails_alone(watchful: tuple[Link, ScriptedDaemon]) -> None:
    """What was sent while none was there is sent to it, and the link goes on by itself."""
    link, daemon = watchful
    daemon.script, daemon.refusal, daemon.frame_limit_bytes = answer_requeue, Unreachable("gone"), 200
    daemon.wire.close()
    wait_until(lambda: not link.is_connected, what="the loss is noticed")
    answers: list[Reply] = []
    first, long, last = Requeue(link.next_id(), 1), Requeue(link.next_id(), 2, list(range(1000))), link.next_id()
    link.send([first, long, Requeue(last, 3)], answers.append)
    daemon.refusal = None
    wait_until(lambda: len(answers) == 3, what="each is answered")
    assert {answer.id: getattr(answer, "code", "") for answer in answers} == {first.id: "", long.id: "usage", last: ""}
    wait_until(lambda: daemon.wire.of(Heartbeat), what="a heartbeat")
    assert len(daemon.wires) == 2


@pytest.mark.parametrize("is_lost_before", [True, False], ids=["while it is away", "with the connection"])
def test_request_whose_cancellation_was_lost_does_not_wait_at_the_next_daemon(
    watchful: tuple[Link, ScriptedDaemon], *, is_lost_before: bool
) -> None:
    link, daemon = watchful
    answers: list[Reply] = []
    reserve, wait = Reserve(link.next_id(), 1, "Random", None), Wait(link.next_id(), 5)
    link.send([reserve, wait], answers.append)
    daemon.refusal = Unreachable("gone")
    if is_lost_before:
        daemon.wire.close()
        wait_until(lambda: not link.is_connected, what="the loss is noticed")
    link.cancel([reserve.id])
    daemon.wire.close()
    wait_until(lambda: not link.is_connected, what="the loss is noticed")
    daemon.script = lambda request: (
        [Reserved(reserve.id)] if isinstance(request, CancelWait) else list(silence(request))
    )
    daemon.refusal = None
    wait_until(lambda: answers, what="the last answer")
    assert daemon.wire.sent[:3] == [reserve, wait, CancelWait(reserve.id)]
    daemon.wire.close()
    wait_until(lambda: len(daemon.wires) == 3 and daemon.wire.of(Heartbeat), what="the connection after that")
    assert daemon.wire.sent[0] == wait
    assert not daemon.wire.of(CancelWait)


def test_after_a_reconnect_what_is_held_is_taken_up_before_anything_else(daemon: ScriptedDaemon) -> None:
    reasserted: list[Reply] = []
    link = Link(
        daemon.open_wire,
        holdings=lambda: ([HELD], [ChunkMask(7, 0, 1)]),
        on_reclaimed=reasserted.append,
    )
    daemon.script = lambda request: [Completed(request.id)] if isinstance(request, Reclaim) else []
    link.send([Wait(link.next_id(), 5)], lambda reply: None)
    daemon.wire.close()
    assert link.wait_until(lambda: bool(reasserted), 10)
    assert [type(request) for request in daemon.wire.sent] == [Reclaim, Started, Wait]
    assert daemon.wire.of(Reclaim)[0].held == [HELD]
    link.close()


def test_a_lost_reassert_is_not_sent_twice_on_the_next_connection(daemon: ScriptedDaemon) -> None:
    daemon.script, daemon.heartbeat_s = silence, 0.01
    link = Link(daemon.open_wire, holdings=lambda: ([HELD], []), on_reclaimed=lambda reply: None)
    for count in (2, 3):
        daemon.wire.close()
        wait_until(lambda: len(daemon.wires) == count and daemon.wire.of(Reclaim), what="the next connection")  # noqa: B023  # called at once
    assert len(daemon.wire.of(Reclaim)) == 1
    link.close()


def test_a_completion_that_was_answered_is_not_sent_again_with_its_reserve(link: Link, daemon: ScriptedDaemon) -> None:
    daemon.script = lambda request: [Completed(request.id)] if isinstance(request, CompleteAndReserve) else []
    answers: list[Reply] = []
    link.send([CompleteAndReserve(link.next_id(), [], 10, "OldestFirst", None)], answers.append)
    assert link.wait_until(lambda: len(answers) == 1, 10)
    daemon.script = lambda request: [Reserved(request.id)] if isinstance(request, Reserve) else []
    daemon.wire.close()
    assert link.wait_until(lambda: len(answers) == 2, 10)
    assert daemon.wire.of(Reserve) == [Reserve(answers[0].id, 10, "OldestFirst", None)]


def test_without_reconnect_a_loss_fails_the_call(daemon: ScriptedDaemon) -> None:
    link = Link(daemon.open_wire, reconnect_s=0)
    daemon.script = lambda request: daemon.wire.close() or []
    daemon.refusal = Unreachable("gone")
    with pytest.raises(Unreachable):
        call(link, 1)
    daemon.refusal, daemon.script = None, answer_requeue
    assert call(link, 2) == 2, "the next call dials again"
    link.close()


def test_reconnecting_ends_after_its_time(daemon: ScriptedDaemon) -> None:
    link = Link(daemon.open_wire, reconnect_s=0.1)
    daemon.refusal = Unreachable("gone")
    daemon.wire.close()
    with pytest.raises(Unreachable, match="gone"):
        call(link, 1)
    assert daemon.dials_count > 2
    link.close()


def test_a_refused_hello_on_reconnect_fails_what_waits(link: Link, daemon: ScriptedDaemon) -> None:
    daemon.refusal = VersionMismatch("newer")
    daemon.wire.close()
    with pytest.raises(VersionMismatch):
        call(link, 1)


def test_an_error_about_the_connection_fails_all_that_waits(link: Link, daemon: ScriptedDaemon) -> None:
    daemon.script = lambda request: [ErrorReply(0, "protocol", "Garbage.")]
    with pytest.raises(UsageError, match="Garbage"):
        call(link, 1)


def test_a_farewell_only_leads_to_the_next_connection(link: Link, daemon: ScriptedDaemon) -> None:
    def farewell(request: Request) -> list[Reply]:
        daemon.wire.push(ErrorReply(0, "unreachable", "The daemon ends."))
        daemon.script = answer_requeue
        daemon.wire.close()
        return []

    daemon.script = farewell
    assert call(link, 1) == 1


def test_heartbeats_are_sent_while_nobody_calls() -> None:
    daemon = ScriptedDaemon(silence, heartbeat_s=0.01)
    link = Link(daemon.open_wire)
    wait_until(lambda: len(daemon.wire.of(Heartbeat)) >= 5, what="five heartbeats")
    assert len(daemon.wires) == 1
    link.close()


def test_heartbeats_are_sent_while_a_call_waits() -> None:
    daemon = ScriptedDaemon(heartbeat_s=0.01)

    def script(request: Request) -> list[Reply]:
        beats = daemon.wire.of(Heartbeat)
        if len(beats) == 5:
            daemon.wire.push(Changed(daemon.wire.of(Requeue)[0].id, 8))
        return [Alive(request.id)] if isinstance(request, Heartbeat) else []

    daemon.script = script
    link = Link(daemon.open_wire, is_polled=True)
    assert call(link, 1) == 8
    link.close()


def test_a_daemon_that_leaves_heartbeats_unanswered_is_left() -> None:
    daemon = ScriptedDaemon(lambda request: [], heartbeat_s=0.01)
    link = Link(daemon.open_wire)
    wait_until(lambda: len(daemon.wires) >= 2, what="a second connection")
    link.close()


def test_heartbeats_come_at_a_third_of_the_shortest_reservation_that_is_held() -> None:
    """At once, though the next was due in a minute; and as before when nothing is held any more."""
    daemon = ScriptedDaemon(answer_requeue, heartbeat_s=60.0)
    held = [math.inf]
    link = Link(daemon.open_wire, shortest_s=lambda: held[0])
    assert call(link, 1) == 1
    assert link.next_poll_s() > 30
    held[0] = 0.1
    assert call(link, 2) == 2
    wait_until(lambda: len(daemon.wire.of(Heartbeat)) >= 5, what="five heartbeats")
    held[0] = math.inf
    wait_until(lambda: link.next_poll_s() > 30, what="the usual pace")
    link.close()


def test_daemon_that_answers_slower_than_short_reservations_need_is_not_left() -> None:
    daemon = ScriptedDaemon(lambda request: [Changed(request.id, 1)] if isinstance(request, Requeue) else [], 60.0)
    link = Link(daemon.open_wire, shortest_s=lambda: 0.1)
    assert call(link, 1) == 1
    wait_until(lambda: len(daemon.wire.of(Heartbeat)) >= 10, what="ten heartbeats without an answer")
    assert len(daemon.wires) == 1
    link.close()


def test_pushes_reach_the_owner(daemon: ScriptedDaemon) -> None:
    pushed: list[object] = []
    link = Link(daemon.open_wire, on_push=pushed.append)
    push = Revoked([ChunkMask(1, 2, 3)], "cancelled")
    daemon.wire.push(push)
    assert link.wait_until(lambda: bool(pushed), 10)
    assert pushed == [push]
    link.close()


def test_a_closed_link_refuses_calls_and_fails_those_that_wait(link: Link, daemon: ScriptedDaemon) -> None:
    daemon.script = silence
    raised: list[BaseException] = []

    def wait() -> None:
        try:
            call(link, 1)
        except Unreachable as error:
            raised.append(error)

    thread = threading.Thread(target=wait)
    thread.start()
    wait_until(lambda: daemon.wire.of(Requeue), what="the call is on its way")
    link.close()
    thread.join()
    assert raised
    with pytest.raises(UsageError, match="closed"):
        call(link, 2)


def test_a_link_is_refused_after_a_fork(link: Link, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(own_process, "_pid", -1)
    with pytest.raises(UsageError, match="fork"):
        call(link, 1)


def test_answers_are_not_read_by_a_process_that_was_forked(link: Link, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(own_process, "_pid", -1)
    for read in (link.poll, lambda: link.wait_until(lambda: False, 0.0), lambda: link.flush_within(0.0)):
        with pytest.raises(UsageError, match="fork"):
            read()


def test_link_stays_open_when_a_process_that_was_forked_closes_it(link: Link, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(own_process, "_pid", -1)
        assert link.is_closed
        link.close()
    assert not link.is_closed
    assert call(link, 1) == 1


def test_a_driven_link_works_without_a_thread() -> None:
    daemon = ScriptedDaemon(answer_requeue)
    before = threading.active_count()
    link = Link(daemon.open_wire, is_polled=True)
    answers: list[Reply] = []
    link.send([Requeue(link.next_id(), 1)], answers.append)
    link.poll()
    assert len(answers) == 1
    assert threading.active_count() == before
    assert 0 <= link.next_poll_s() <= 60
    link.close()


@pytest.fixture
def slow_dial(daemon: ScriptedDaemon) -> Iterator[tuple[Link, threading.Event]]:
    """A driven link whose connection was lost, and whose next dial takes until the event is set."""
    goes_on = threading.Event()

    def open_wire() -> ScriptedWire:
        assert not daemon.wires or goes_on.wait(20)
        return daemon.open_wire()

    link = Link(open_wire, is_polled=True)
    daemon.wire.close()
    yield link, goes_on
    goes_on.set()
    link.close()


def test_a_driven_link_does_not_wait_for_a_dial(
    slow_dial: tuple[Link, threading.Event], daemon: ScriptedDaemon
) -> None:
    link, goes_on = slow_dial
    answers: list[Reply] = []
    link.send([Requeue(link.next_id(), 1)], answers.append)
    for _ in range(5):
        link.poll()
        assert not link.wait_until(lambda: bool(answers), link.next_poll_s())
    assert len(daemon.wires) == 1
    goes_on.set()
    wait_until(lambda: link.poll() and answers, what="the answer")
    assert len(daemon.wires) == 2


def test_connection_that_is_made_after_a_driven_link_was_closed_is_closed(
    slow_dial: tuple[Link, threading.Event], daemon: ScriptedDaemon
) -> None:
    link, goes_on = slow_dial
    for _ in range(2):
        link.poll()
    link.close()
    goes_on.set()
    wait_until(lambda: len(daemon.wires) == 2 and daemon.wire._is_cut, what="the connection is closed")


def test_one_way_messages_wait_for_no_answer(daemon: ScriptedDaemon) -> None:
    daemon.script, daemon.heartbeat_s = silence, 0.01
    link = Link(daemon.open_wire)
    link.send([Started([ChunkMask(1, 0, 1)]), Complete(link.next_id(), [])], lambda reply: None)
    daemon.wire.close()
    wait_until(lambda: len(daemon.wires) == 2 and daemon.wire.sent, what="the next connection")
    assert isinstance(daemon.wire.sent[0], Complete)
    assert not daemon.wire.of(Started)
    link.close()

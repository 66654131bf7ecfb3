"""The notifier with events and targets that are not real: order, attempts, what is dead, and what a new start finds."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from opsq.documents.event_cursor import EventCursor
from opsq.errors import Unreachable
from opsq.notify import notifier as notifying
from opsq.notify.notifier import Notifier, Tries
from opsq.notify.target import Delivery, Failure
from opsq.store.deliveries import Deliveries
from opsq.wire.messages import Event, EventRows

AT = 1_800_000_000_000
LOST = Event(0, AT, "lost", None, "", {}, None, None, None, None, "", "")


def event(seq: int, submission_id: int = 1, kind: str = "failed", at: int | None = None) -> Event:
    at = AT + seq if at is None else at
    return Event(seq, at, kind, submission_id, "", {}, None, None, None, None, "", "")


def rows(*events: Event, last: int) -> EventRows:
    return EventRows(1, list(events), events[-1].seq, last, events[-1].at)


class Source:
    """Gives events in pages of two."""

    def __init__(self, *events: Event) -> None:
        self.events = list(events)

    def ask(self, since: EventCursor | None) -> EventRows:
        seq, at = since or (0, None)
        behind = [one for one in self.events if one.seq > seq][:2]
        last = max((one.seq for one in self.events), default=0)
        return rows(*behind, last=last) if behind else EventRows(1, [], seq, last, at)


class Receiver:
    """A target that fails as it is told, and notes what it has taken."""

    def __init__(self, name: str = "webhook.ops", kinds: tuple[str, ...] = ()) -> None:
        self.name = name
        self._kinds = kinds
        self.failures: dict[str, list[Failure]] = {}
        self.asked: list[str] = []
        self.taken: list[str] = []
        self.messages: set[str] = set()
        self._lock = threading.Lock()

    def takes(self, kind: str) -> bool:
        return not self._kinds or kind in self._kinds

    def deliver(self, delivery: Delivery) -> Failure | None:
        with self._lock:
            cursor = delivery.event.cursor.partition("@")[0]
            self.asked.append(cursor)
            self.messages.add(delivery.message)
            if self.failures.get(cursor):
                return self.failures[cursor].pop(0)
            self.taken.append(cursor)
            return None

    def abandon(self) -> None:
        """Nothing goes on."""


@pytest.fixture
def file(tmp_path: Path) -> Iterator[Deliveries]:
    file = Deliveries(tmp_path / "notify.sqlite")
    yield file
    file.close()


def run(file: Deliveries, source: Source, *targets: Receiver, most: int = 3) -> tuple[Notifier, list[str]]:
    """Deliver until nothing waits."""
    told: list[str] = []
    while True:
        found = Notifier(
            file, targets, source.ask, jobs=3, tries=Tries(most, 0.001), on_failure=told.append, dead_days=30
        )
        if found.cursor is None:
            found.begin(EventCursor(0))
        found.run(once=True)
        if not found.waiting_count:
            return found, told


def test_each_event_reaches_each_target_that_wants_it_once(file: Deliveries) -> None:
    every, some = Receiver(), Receiver("on.dead", ("dead",))
    source = Source(*(event(seq, seq, "dead" if seq % 2 else "failed") for seq in range(1, 8)))
    run(file, source, every, some)
    assert sorted(every.taken) == list("1234567")
    assert sorted(some.taken) == list("1357")
    run(file, source, every, some)
    assert len(every.taken) == 7
    assert file.progress()[0] == 7


def test_events_of_a_subject_wait_for_the_one_that_fails_and_others_do_not(file: Deliveries) -> None:
    receiver = Receiver()
    receiver.failures = {"1": [Failure("HTTP status 500"), Failure("HTTP status 500")]}
    _, told = run(file, Source(event(1, 1), event(2, 1), event(3, 2), event(4, 1)), receiver)
    assert receiver.taken.index("3") < receiver.taken.index("1")
    assert [one for one in receiver.taken if one != "3"] == ["1", "2", "4"]
    assert told[0].startswith(
        "webhook.ops: delivery 1 (submission 1) failed: HTTP status 500; attempt 1 of 3, again in"
    )
    assert len(receiver.messages) == 4  # each attempt has the id of its event


def test_what_fails_too_often_or_for_good_is_dead_and_the_next_goes_on(file: Deliveries) -> None:
    receiver = Receiver()
    receiver.failures = {"1": [Failure("no")] * 3, "2": [Failure("gone", is_final=True)]}
    _, told = run(file, Source(event(1), event(2), event(3)), receiver)
    assert receiver.taken == ["3"]
    assert [(one.target, one.attempts, one.error) for one in file.dead()] == [
        ("webhook.ops", 3, "no"),
        ("webhook.ops", 1, "gone"),
    ]
    assert "it is dead after 3 of 3 attempts" in told[2]


def test_dead_delivery_is_made_after_all_when_asked_for(file: Deliveries) -> None:
    receiver = Receiver()
    receiver.failures = {"1": [Failure("no", is_final=True)]}
    source = Source(event(1), event(2))
    run(file, source, receiver)
    assert [file.retry([77]), file.retry(None)] == [0, 1]
    run(file, source, receiver)
    assert (receiver.taken, file.dead()) == (["2", "1"], [])


def test_retry_is_noticed_by_a_notifier_that_runs(file: Deliveries, tmp_path: Path) -> None:
    receiver = Receiver()
    receiver.failures = {"1": [Failure("no", is_final=True)]}
    run(file, Source(event(1)), receiver)

    def ask(since: EventCursor | None) -> EventRows:
        if receiver.taken:
            raise Unreachable("enough")
        other = Deliveries(tmp_path / "notify.sqlite")
        other.retry(None)
        other.close()
        return Source(event(1)).ask(since)

    with pytest.raises(Unreachable):
        Notifier(file, [receiver], ask, jobs=1, tries=Tries(), on_failure=print, dead_days=30).run(once=False)
    assert receiver.taken == ["1"]


def test_waiting_delivery_outlives_the_process_with_its_attempts(file: Deliveries) -> None:
    receiver = Receiver()
    receiver.failures = {"1": [Failure("no")] * 2}
    found = Notifier(
        file, [receiver], Source(event(1)).ask, jobs=1, tries=Tries(3, 1000), on_failure=lambda _: None, dead_days=30
    )
    found.begin(EventCursor(0))
    found.run(once=True)
    [waiting] = file.waiting()
    assert (waiting.attempts, found.waiting_count, receiver.taken) == (1, 1, [])


def test_delivery_to_a_target_that_is_gone_is_dead_and_not_lost(file: Deliveries) -> None:
    old = Receiver("webhook.old")
    old.failures = {"1": [Failure("no")]}
    found = Notifier(
        file, [old], Source(event(1)).ask, jobs=1, tries=Tries(3, 1000), on_failure=lambda _: None, dead_days=30
    )
    found.begin(EventCursor(0))
    found.run(once=True)
    run(file, Source(event(1)), Receiver("webhook.new"))
    [dead] = file.dead()
    assert dead.error == "opsq.toml has no webhook.old any more"


def test_retry_after_is_waited_for(file: Deliveries) -> None:
    receiver = Receiver()
    receiver.failures = {"1": [Failure("HTTP status 429", retry_after_s=3000.0)]}
    told: list[str] = []
    found = Notifier(
        file, [receiver], Source(event(1)).ask, jobs=1, tries=Tries(3, 0.001), on_failure=told.append, dead_days=30
    )
    found.begin(EventCursor(0))
    found.run(once=True)
    assert "again in 3e+03 s" in told[0]
    assert found.waiting_count == 1


def test_target_that_raises_has_failed(file: Deliveries) -> None:
    class Broken(Receiver):
        def deliver(self, delivery: Delivery) -> Failure | None:
            raise ZeroDivisionError

    run(file, Source(event(1)), Broken(), most=1)
    assert file.dead()[0].error.startswith("ZeroDivisionError")


def test_no_more_events_are_taken_while_too_many_deliveries_wait(
    file: Deliveries, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(notifying, "WAITING_LIMIT", 2)
    receiver = Receiver()
    source = Source(*(event(seq, seq) for seq in range(1, 10)))
    receiver.failures = {str(seq): [Failure("no")] for seq in range(1, 10)}
    run(file, source, receiver)
    assert sorted(receiver.taken) == list("123456789")


def down(name: str, events: int) -> Receiver:
    """A target that takes none of so many events."""
    receiver = Receiver(name)
    receiver.failures = {str(seq): [Failure("no")] * 99 for seq in range(1, events + 1)}
    return receiver


def once(file: Deliveries, source: Source, *targets: Receiver) -> list[str]:
    """Deliver once, without a second attempt; what was told."""
    told: list[str] = []
    found = Notifier(file, targets, source.ask, jobs=3, tries=Tries(9, 1000), on_failure=told.append, dead_days=30)
    if found.cursor is None:
        found.begin(EventCursor(0))
    found.run(once=True)
    return told


def test_target_that_takes_nothing_keeps_nothing_from_the_others(
    file: Deliveries, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(notifying, "WAITING_LIMIT", 2)
    works = Receiver("on")
    once(file, Source(*(event(seq, seq) for seq in range(1, 10))), down("webhook.down", 9), works)
    assert sorted(works.taken) == list("123456789")
    assert (len(file.waiting()), file.dead()) == (9, [])


def test_what_is_new_for_a_target_with_far_too_much_is_kept_as_dead(
    file: Deliveries, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(notifying, "WAITING_LIMIT", 2)
    monkeypatch.setattr(notifying, "WAITING_MOST", 4)
    works, source = Receiver("on"), Source(*(event(seq, seq) for seq in range(1, 9)))
    told = once(file, source, down("webhook.down", 8), works)
    assert len(works.taken) == 8
    assert len(file.waiting()) == 4
    assert {(one.target, one.attempts, one.error) for one in file.dead()} == {
        ("webhook.down", 0, "4 deliveries to webhook.down waited already")
    }
    assert told.count("webhook.down: 4 deliveries wait already; 2 new ones are dead.") == 2
    assert file.retry(None) == 4


def test_one_run_ends_when_no_more_can_be_taken_and_nothing_is_due(
    file: Deliveries, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(notifying, "WAITING_LIMIT", 2)
    source = Source(*(event(seq, seq) for seq in range(1, 10)))
    once(file, source, down("webhook.down", 9))
    once(file, source, down("webhook.down", 9))
    assert (file.progress()[0], len(file.waiting())) == (2, 2)


def test_what_was_given_up_long_ago_or_is_too_much_is_forgotten(
    file: Deliveries, monkeypatch: pytest.MonkeyPatch
) -> None:
    receiver = Receiver()
    receiver.failures = {str(seq): [Failure("gone", is_final=True)] for seq in range(1, 6)}
    source = Source(*(event(seq) for seq in range(1, 6)))
    run(file, source, receiver)
    assert file.dead_count() == len(file.dead()) == 5

    def forgotten(dead_days: float) -> list[str]:
        told: list[str] = []
        ask = source.ask
        Notifier(file, [], ask, jobs=1, tries=Tries(), on_failure=told.append, dead_days=dead_days).run(once=True)
        return told

    assert forgotten(1) == []
    monkeypatch.setattr(notifying, "DEAD_MOST", 2)
    assert forgotten(1) == ["Dead deliveries forgotten: 3."]
    assert [one.id for one in file.dead()] == [4, 5]
    assert len(forgotten(-1)) == 1
    assert file.dead_count() == 0


def test_queue_that_was_put_back_repeats_nothing_and_loses_nothing(file: Deliveries) -> None:
    receiver = Receiver()
    run(file, Source(*(event(seq, seq) for seq in range(1, 8))), receiver)
    late = [event(seq, seq, at=AT + 1000 + seq) for seq in (4, 5)]

    def ask(since: EventCursor | None) -> EventRows:
        if since == (7, AT + 7):
            return rows(LOST, event(1, 1), last=5)
        return Source(*(event(seq, seq) for seq in range(1, 4)), *late).ask(since)

    found = Notifier(file, [receiver], ask, jobs=1, tries=Tries(), on_failure=print, dead_days=30)
    found.run(once=True)
    assert receiver.taken[7:] in (["0", "4", "5"], ["0", "5", "4"])
    assert file.progress()[0] == 5


def test_what_happens_after_a_queue_was_put_back_is_delivered_though_the_clock_was_ahead_before(
    file: Deliveries,
) -> None:
    receiver = Receiver()
    run(file, Source(event(1), event(2), event(3, at=AT + 86_400_000)), receiver)

    answers = iter([rows(LOST, event(1), last=2), rows(event(2), last=2), rows(event(3), last=3)])

    def ask(_: EventCursor | None) -> EventRows:
        if (page := next(answers, None)) is None:
            raise Unreachable("enough")
        return page

    found = Notifier(file, [receiver], ask, jobs=3, tries=Tries(), on_failure=print, dead_days=30)
    with pytest.raises(Unreachable):
        found.run(once=False)
    found.finish(60)
    assert sorted(receiver.taken[3:]) == ["0", "3"]


class Hanging(Receiver):
    """A target that takes nothing until it is abandoned."""

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.is_abandoned = threading.Event()
        self.is_asked = threading.Event()

    def deliver(self, delivery: Delivery) -> Failure | None:
        self.is_asked.set()
        self.is_abandoned.wait()
        return Failure("abandoned")

    def abandon(self) -> None:
        self.is_abandoned.set()


def hanging(file: Deliveries) -> tuple[Notifier, list[Hanging]]:
    """A notifier that is stopped while it delivers."""
    targets = [Hanging("webhook.a"), Hanging("webhook.b")]
    found = Notifier(file, targets, Source(event(1)).ask, jobs=1, tries=Tries(), on_failure=print, dead_days=30)
    found.begin(EventCursor(0))

    def stop() -> None:
        for target in targets:
            target.is_asked.wait()
        found.stop()

    stopping = threading.Thread(target=stop)
    stopping.start()
    found.run(once=False)
    stopping.join()
    return found, targets


def test_second_stop_ends_the_wait_for_what_is_being_delivered(file: Deliveries) -> None:
    found, targets = hanging(file)
    found.stop()
    found.finish(1e9)
    assert all(target.is_abandoned.is_set() for target in targets)
    assert len(file.waiting()) == 2


def test_all_targets_are_abandoned_whatever_goes_wrong_meanwhile(
    file: Deliveries, monkeypatch: pytest.MonkeyPatch
) -> None:
    found, targets = hanging(file)

    def fail(_: float) -> None:
        raise Unreachable("gone")

    monkeypatch.setattr(found, "_handle", fail)
    with pytest.raises(Unreachable):
        found.finish(1e9)
    assert all(target.is_abandoned.is_set() for target in targets)

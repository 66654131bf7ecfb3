"""Who owns a queue, by its marker: starts, lost answers, copies of a folder, restores. The store is a folder."""

from __future__ import annotations

import copy
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest

from opsq.content.content_store import Version
from opsq.content.local_store import LocalStore
from opsq.errors import Conflict, Deposed, StoreNotVisible, UsageError
from opsq.replica import ownership
from opsq.replica.owner_marker import Marker, OwnerMarker
from opsq.replica.owner_record import check_no_record, read_record
from opsq.replica.ownership import Ownership

LEASE_S = 30.0


class Clock:
    """The clock of all that want the marker; sleeping moves it."""

    def __init__(self) -> None:
        self.at_s = 1000.0
        self.while_asleep: Callable[[], object] = lambda: None

    def sleep(self, duration_s: float) -> None:
        self.at_s += duration_s
        self.while_asleep()


@pytest.fixture(autouse=True)
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(ownership, "awake_or_not_s", lambda: clock.at_s)
    monkeypatch.setattr(ownership, "time", SimpleNamespace(sleep=clock.sleep))
    return clock


@pytest.fixture
def marker(tmp_path: Path) -> OwnerMarker:
    return OwnerMarker(f"file://{tmp_path}/replica", 1.0)


def folder(tmp_path: Path, name: str) -> str:
    path = tmp_path / name
    path.mkdir(exist_ok=True)
    return str(path)


def owner(marker: OwnerMarker, state_dir: str, lease_s: float = LEASE_S) -> Ownership:
    """A daemon's start in a folder."""
    found = Ownership(marker, state_dir, lease_s, "s3://bucket/content")
    found.acquire()
    return found


def test_first_owner_holds_the_marker_and_is_remembered(tmp_path: Path, marker: OwnerMarker) -> None:
    state_dir = folder(tmp_path, "a")
    found = owner(marker, state_dir)
    assert found.holds()
    assert found.marker.epoch == 1
    record = read_record(state_dir)
    assert record is not None
    assert record.owners == [found.marker.owner]


def test_owner_stops_before_the_lease_has_ended(tmp_path: Path, marker: OwnerMarker, clock: Clock) -> None:
    found = owner(marker, folder(tmp_path, "a"))
    clock.at_s += 0.89 * LEASE_S
    assert found.holds()
    clock.at_s += 0.02 * LEASE_S
    assert not found.holds()
    found.renew()
    assert found.holds()


def test_machine_that_stood_still_does_not_trust_its_lease(
    tmp_path: Path, marker: OwnerMarker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its monotonic clock has not moved, but the calendar has."""
    found = owner(marker, folder(tmp_path, "a"))
    now = ownership.now()
    monkeypatch.setattr(ownership, "now", lambda: now._replace(wall=now.wall + 60_000))
    assert not found.holds()


def test_daemon_that_was_killed_starts_again_at_once(tmp_path: Path, marker: OwnerMarker, clock: Clock) -> None:
    state_dir = folder(tmp_path, "a")
    owner(marker, state_dir)
    begun_s = clock.at_s
    assert owner(marker, state_dir).marker.epoch == 2
    assert clock.at_s == begun_s


def test_folder_on_a_restarted_machine_waits_for_the_end_of_the_lease(
    tmp_path: Path, marker: OwnerMarker, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    state_dir = folder(tmp_path, "a")
    owner(marker, state_dir)
    monkeypatch.setattr(ownership, "boot", lambda: "another")
    begun_s = clock.at_s
    owner(marker, state_dir)
    assert clock.at_s - begun_s >= LEASE_S


def test_released_marker_is_taken_at_once(
    tmp_path: Path, marker: OwnerMarker, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    state_dir = folder(tmp_path, "a")
    first = owner(marker, state_dir)
    first.release()
    assert not first.holds()
    monkeypatch.setattr(ownership, "boot", lambda: "another")
    begun_s = clock.at_s
    owner(marker, state_dir)
    assert clock.at_s == begun_s


def test_copy_of_the_folder_of_a_living_owner_is_refused(tmp_path: Path, marker: OwnerMarker, clock: Clock) -> None:
    original, copy = folder(tmp_path, "a"), folder(tmp_path, "b")
    first = owner(marker, original)
    (tmp_path / "b/replica.json").write_bytes((tmp_path / "a/replica.json").read_bytes())
    clock.while_asleep = first.renew
    with pytest.raises(Deposed):
        owner(marker, copy)
    first.renew()


def test_of_a_folder_and_its_copy_the_first_to_start_wins(tmp_path: Path, marker: OwnerMarker) -> None:
    original, copy = folder(tmp_path, "a"), folder(tmp_path, "b")
    owner(marker, original).release()
    (tmp_path / "b/replica.json").write_bytes((tmp_path / "a/replica.json").read_bytes())
    owner(marker, copy)
    with pytest.raises(Deposed):
        owner(marker, original)


def test_another_queue_at_the_same_url_is_refused(tmp_path: Path, marker: OwnerMarker) -> None:
    owner(marker, folder(tmp_path, "a"))
    with pytest.raises(Conflict, match="another queue"):
        owner(marker, folder(tmp_path, "b"))
    assert read_record(folder(tmp_path, "b")) is None


def test_restore_waits_until_the_owner_has_stopped_and_deposes_it(
    tmp_path: Path, marker: OwnerMarker, clock: Clock
) -> None:
    first = owner(marker, folder(tmp_path, "a"))
    first.renew(folder="copy")
    told: list[str] = []
    restored = folder(tmp_path, "b")
    former = Ownership(marker, restored, 0.0, "").take_over(is_forced=False, on_wait=told.append)
    assert not first.holds()
    assert len(told) == 1
    assert (former.folder, former.store) == ("copy", "s3://bucket/content")
    with pytest.raises(Deposed):
        first.renew()
    begun_s = clock.at_s
    assert owner(marker, restored).marker.epoch == 3
    assert clock.at_s == begun_s
    with pytest.raises(Deposed):
        owner(marker, folder(tmp_path, "a"))


def test_restore_refuses_while_the_owner_renews(tmp_path: Path, marker: OwnerMarker, clock: Clock) -> None:
    first = owner(marker, folder(tmp_path, "a"))
    first.renew(folder="copy")
    clock.while_asleep = first.renew
    with pytest.raises(Conflict, match="is served"):
        Ownership(marker, folder(tmp_path, "b"), 0.0, "").take_over(is_forced=False, on_wait=lambda _: None)
    assert first.holds()


def test_forced_restore_does_not_wait(tmp_path: Path, marker: OwnerMarker, clock: Clock) -> None:
    first = owner(marker, folder(tmp_path, "a"))
    first.renew(folder="copy")
    begun_s = clock.at_s
    Ownership(marker, folder(tmp_path, "b"), 0.0, "").take_over(is_forced=True, on_wait=lambda _: None)
    assert clock.at_s == begun_s
    with pytest.raises(Deposed):
        first.renew()


def test_there_is_nothing_to_restore_before_the_first_whole_copy(tmp_path: Path, marker: OwnerMarker) -> None:
    with pytest.raises(UsageError):
        Ownership(marker, folder(tmp_path, "b"), 0.0, "").take_over(is_forced=True, on_wait=lambda _: None)
    owner(marker, folder(tmp_path, "a"))
    with pytest.raises(UsageError):
        Ownership(marker, folder(tmp_path, "b"), 0.0, "").take_over(is_forced=True, on_wait=lambda _: None)


def test_of_a_daemon_and_its_clone_one_stays(tmp_path: Path, marker: OwnerMarker) -> None:
    """The machine was copied while it ran."""
    found = owner(marker, folder(tmp_path, "a"))
    clone = copy.copy(found)
    clone.renew()
    with pytest.raises(Deposed):
        found.renew()
    clone.renew()


def test_write_whose_answer_was_lost_counts(
    tmp_path: Path, marker: OwnerMarker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The store has it, and the next one is refused for that: it is found to be our own."""
    found = owner(marker, folder(tmp_path, "a"))
    swap = marker.swap

    def lose(content: Marker, version: Version | None) -> Version:
        swap(content, version)
        raise StoreNotVisible("no answer")

    monkeypatch.setattr(marker, "swap", lose)
    with pytest.raises(StoreNotVisible):
        found.renew()
    monkeypatch.setattr(marker, "swap", swap)
    found.renew(folder="copy")
    assert marker.read() is not None
    assert found.marker.folder == "copy"


def test_start_that_was_killed_before_it_knew_its_marker_starts_again(
    tmp_path: Path, marker: OwnerMarker, monkeypatch: pytest.MonkeyPatch
) -> None:
    state_dir = folder(tmp_path, "a")
    owner(marker, state_dir)
    monkeypatch.setattr(OwnerMarker, "check_swaps", lambda *_: (_ for _ in ()).throw(KeyboardInterrupt))
    with pytest.raises(KeyboardInterrupt):
        owner(marker, state_dir)
    monkeypatch.undo()
    owner(marker, state_dir)


def test_store_without_conditional_writes_is_refused(
    tmp_path: Path, marker: OwnerMarker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(type(marker._store), "swap_object", lambda *_: {"e_tag": "1"})
    with pytest.raises(UsageError, match="conditional"):
        owner(marker, folder(tmp_path, "a"))


def test_store_that_replaces_any_version_is_refused(
    tmp_path: Path, marker: OwnerMarker, monkeypatch: pytest.MonkeyPatch
) -> None:
    kind = type(marker._store)
    swap = kind.swap_object

    def replace(store: LocalStore, name: str, content: bytes, version: Version | None) -> Version:
        found = store.read_version(name)
        return swap(store, name, content, None if version is None or found is None else found[1])

    monkeypatch.setattr(kind, "swap_object", replace)
    with pytest.raises(UsageError, match="conditional"):
        owner(marker, folder(tmp_path, "a"))


def test_folder_with_a_replica_is_not_opened_without_it(tmp_path: Path, marker: OwnerMarker) -> None:
    state_dir = folder(tmp_path, "a")
    check_no_record(state_dir)
    owner(marker, state_dir)
    with pytest.raises(Conflict, match="--replicate-to"):
        check_no_record(state_dir)

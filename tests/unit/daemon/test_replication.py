"""What a replica acknowledges, and when Litestream is started anew. It is not run; the marker is in a folder."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from daemons import settings_of
from opsq.daemon import replication
from opsq.daemon.replication import Replication
from opsq.errors import Deposed, StoreNotVisible
from opsq.replica.owner_marker import OwnerMarker
from opsq.replica.ownership import Ownership
from opsq.wire.messages import Changed

DEADLINE_S = 10.0


@dataclass
class Copier:
    """Stands for all runs of Litestream."""

    copy: Callable[[], object] = lambda: None
    start: Callable[[], object] = lambda: None
    runs_count: int = 0
    silences_count: int = 0
    is_running: bool = True
    pid: int = 0
    folder: str = ""

    def __call__(self, state_dir: str, database: str, url: str, epoch: int) -> Copier:
        self.start()
        self.runs_count += 1
        self.silences_count = 0
        self.folder = f"{epoch:08d}-{self.runs_count:08x}"
        return self

    def copy_now(self, timeout_s: float) -> None:
        self.copy()

    def last_words(self) -> str:
        return ""

    def end(self) -> None:
        pass


@dataclass
class Rig:
    """A replication of a log that nobody writes."""

    copier: Copier
    log: SimpleNamespace
    ownership: Ownership
    root: Path
    count: int = 1
    fatal: list[BaseException] = field(default_factory=list)

    def run(self, story: Callable[[Replication], Awaitable[None]]) -> None:
        """Tell a story about a replication that has begun, and finishes in the end."""

        async def tell() -> None:
            settings = settings_of(
                self.root / "state", replicate_to=f"file://{self.root}/replica", replicate_every_s="0.01s"
            )
            told = Replication(
                settings,
                self.ownership,
                self.log,  # type: ignore[arg-type]  # has what it looks at
                commits_count=lambda: self.count,
                is_full=lambda: False,
                pulse_soon=lambda: None,
                on_fatal=self.fatal.append,
            )
            told.start()
            async with asyncio.timeout(DEADLINE_S):
                await story(told)
                await told.finish()

        asyncio.run(tell())


@pytest.fixture
def rig(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Rig:
    copier = Copier()
    monkeypatch.setattr(replication, "LitestreamProcess", copier)
    (tmp_path / "state").mkdir()
    ownership = Ownership(OwnerMarker(f"file://{tmp_path}/replica", 1.0), str(tmp_path / "state"), 30.0, "s3://b/c")
    ownership.acquire()
    log = SimpleNamespace(bytes=0, step_bytes=1, is_read_along=False, was_cut=False)
    return Rig(copier, log, ownership, tmp_path)


async def until(condition: Callable[[], object]) -> None:
    """Return when it holds."""
    while not condition():  # noqa: ASYNC110  # what is waited for has no event
        await asyncio.sleep(0.005)


def test_log_that_was_cut_under_litestream_is_copied_anew_before_anything_is_acknowledged(rig: Rig) -> None:
    runs: list[int] = []

    def cut() -> None:
        rig.log.was_cut = rig.copier.runs_count == 1

    async def story(told: Replication) -> None:
        told.when_copied(lambda: runs.append(rig.copier.runs_count))
        await until(lambda: runs)

    rig.copier.copy = cut
    rig.run(story)
    assert runs == [2]


def test_what_comes_during_the_last_copy_is_not_acknowledged_as_replicated(rig: Rig) -> None:
    said: list[str] = []
    has_begun, may_end = threading.Event(), threading.Event()
    submitting: list[asyncio.Task[None]] = []

    def copy() -> None:
        has_begun.set()
        may_end.wait(DEADLINE_S)

    async def story(told: Replication) -> None:
        await until(lambda: told.state().state == "running")
        rig.copier.copy = copy
        told.when_copied(lambda: said.append("before"))
        submitting.append(asyncio.create_task(submit(told)))

    async def submit(told: Replication) -> None:
        await until(has_begun.is_set)
        told.when_copied(lambda: said.append("during"))
        may_end.set()

    rig.run(story)
    assert said == ["before"]


def test_answer_that_waits_for_the_replica_is_said_when_it_is_copied_whatever_it_is(rig: Rig) -> None:
    peer: Any = SimpleNamespace(awaiting_copy={1})
    said: list[object] = []

    def is_said(told: Replication) -> bool:
        said.extend(reply for _, reply in told.sayable([]))
        return bool(said)

    async def story(told: Replication) -> None:
        assert told.sayable([(peer, Changed(1)), (peer, Changed(2))]) == [(peer, Changed(2))]
        await until(lambda: is_said(told))

    rig.run(story)
    assert said == [Changed(1)]
    assert not peer.awaiting_copy


def test_litestream_that_cannot_be_started_is_tried_again(rig: Rig) -> None:
    copied: list[bool] = []

    def fail() -> None:
        rig.copier.start = lambda: None
        raise StoreNotVisible("Litestream cannot be started.")

    async def story(told: Replication) -> None:
        told.when_copied(lambda: copied.append(rig.log.is_read_along))
        await until(lambda: told.state().error)
        assert not rig.log.is_read_along
        await until(lambda: copied)

    rig.copier.start = fail
    rig.run(story)
    assert copied == [True]


def test_owner_that_was_deposed_unnoticed_acknowledges_nothing_as_replicated(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    said: list[str] = []

    def depose(**_: object) -> None:
        raise Deposed("taken over")

    async def story(told: Replication) -> None:
        await until(lambda: told.state().state == "running")
        monkeypatch.setattr(rig.ownership, "renew", depose)
        told.when_copied(lambda: said.append("replicated"))

    rig.run(story)
    assert not said


def test_only_older_copies_are_deleted(rig: Rig) -> None:
    """Not that of an owner who has deposed this one meanwhile."""
    for name in ("00000000-0000000a", "00000001-0000000a", "00000002-0000000a", "other"):
        (rig.root / "replica" / name).mkdir()

    async def story(told: Replication) -> None:
        await until(lambda: len(list((rig.root / "replica").glob("0*"))) == 1)

    rig.run(story)
    assert {path.name for path in (rig.root / "replica").iterdir() if path.is_dir()} == {"00000002-0000000a", "other"}


def test_litestream_that_hangs_is_started_anew(rig: Rig) -> None:
    def hang() -> None:
        rig.copier.silences_count += 1
        raise StoreNotVisible("Litestream does not answer.")

    async def story(told: Replication) -> None:
        await until(lambda: told.state().state == "running")
        rig.copier.copy = hang
        rig.count += 1
        told.sayable([])
        await until(lambda: rig.copier.runs_count == 2)
        rig.copier.copy = lambda: None

    rig.run(story)


def test_lost_lease_is_logged_when_it_holds_back_a_reply(
    rig: Rig, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async def story(told: Replication) -> None:
        monkeypatch.setattr(rig.ownership, "holds", lambda: False)
        peer: Any = object()
        assert not told.sayable([(peer, Changed(1))])

    rig.run(story)
    assert "nothing is acknowledged" in caplog.text


def test_bug_while_the_lease_is_renewed_ends_the_daemon(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(**_: object) -> None:
        raise TypeError

    async def story(told: Replication) -> None:
        await until(lambda: told.state().state == "running")
        with monkeypatch.context() as patch:
            patch.setattr(rig.ownership, "renew", fail)
            await until(lambda: rig.fatal)

    monkeypatch.setattr(replication, "BEATS_COUNT", 3000)
    rig.run(story)
    assert isinstance(rig.fatal[0], TypeError)

"""What is left in the store when the last step of a submit goes well, is refused, or is never answered."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from opsq.cli.caller import Caller
from opsq.cli.submission_template import Template
from opsq.cli.upload import RoomDeadline, Upload, expand
from opsq.content.content_writer import ContentWriter
from opsq.content.splitter import Splitting
from opsq.content.store_kinds import open_store
from opsq.errors import (
    Conflict,
    NoRoom,
    NotPermitted,
    OpsqError,
    StorageFull,
    TooManyConnections,
    Unreachable,
    UsageError,
    VersionMismatch,
)
from opsq.wire.messages import Capacity, CheckCapacity, Created, Found, Submit, Welcome, Withdraw


class Daemon:
    """Answers a connection after the other with what it was told; an exception stands for what the connection gives.

    Attributes:
        made: the submission that the request key has made.
        refusals: what the next connections are refused with, if they are.
    """

    def __init__(self, folder: Path, *answers: Created | Exception) -> None:
        store = open_store(str(folder))
        self.welcome = Welcome(1, 1, "", "", 5.0, 1 << 20, 1 << 20, True, True, str(folder), store.mark())
        self.answers = list(answers)
        self.submits: list[Submit] = []
        self.asked: list[CheckCapacity] = []
        self.has_room = True
        self.made: int | None = None
        self.refusals: list[OpsqError | None] = []

    def __enter__(self) -> Daemon:
        return self

    def __exit__(self, *_: object) -> None:
        """Nothing to close."""

    def next_id(self) -> int:
        return 2

    def call(self, request: Submit | CheckCapacity | Withdraw, kind: type[Any], timeout_s: float | None = None) -> Any:
        if isinstance(request, Withdraw):
            return Found(2, self.made, self.made is None)
        if isinstance(request, CheckCapacity):
            self.asked.append(request)
            if not self.has_room and request.wait_s == 0.0:
                raise NoRoom
            return Capacity(2, None)
        self.submits.append(request)
        answer = self.answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return kind(2, [answer])


class OfDaemon(Caller):
    """A caller whose connections lead to one daemon."""

    def __init__(self, daemon: Daemon) -> None:
        super().__init__({}, frozenset())
        self.daemon = daemon

    def connect(self, **_: Any) -> Any:
        if self.daemon.refusals and (refusal := self.daemon.refusals.pop(0)):
            raise refusal
        return self.daemon


def hand(daemon: Daemon, path: Path, splitting: Splitting, room: str | None = None) -> None:
    rules = Template().rules(request_key=bytes(16))
    Upload(OfDaemon(daemon), rules, RoomDeadline.of(room)).hand_over([str(path)], splitting)


def submitted(
    runtime_dir: Path, *answers: Created | Exception, made: int | None = None, refusals: Sequence[OpsqError | None] = ()
) -> tuple[Daemon, list[str]]:
    """Submit a file that is too long to travel inline; gives the daemon, and the folders in the store."""
    source = runtime_dir / "in"
    source.write_bytes(b"line\n" * 2000)
    store = runtime_dir / "content"
    store.mkdir()
    daemon = Daemon(store, *answers)
    daemon.made, daemon.refusals = made, list(refusals)
    try:
        hand(daemon, source, Splitting("records", 1000))
    finally:
        daemon_folders = list(open_store(str(store)).folders())
    return daemon, daemon_folders


def test_accepted_submission_keeps_its_content(runtime_dir: Path) -> None:
    daemon, folders = submitted(runtime_dir, Created(5, True))
    assert folders == [bytes(16).hex()]
    assert daemon.submits[0].submissions[0].chunks_count == 2


def test_refused_submission_leaves_nothing(runtime_dir: Path) -> None:
    with pytest.raises(StorageFull):
        submitted(runtime_dir, StorageFull())
    assert list(open_store(str(runtime_dir / "content")).folders()) == []


def test_content_is_removed_if_another_submission_has_the_key(runtime_dir: Path) -> None:
    _, folders = submitted(runtime_dir, Created(5, False))
    assert folders == []


def test_lost_answer_is_asked_for_again_under_the_same_key_and_the_content_stays(runtime_dir: Path) -> None:
    """The second answer says that the submission existed: by its own key."""
    daemon, folders = submitted(runtime_dir, Unreachable(), Created(5, False), made=5)
    first, second = (submit.submissions[0].request_key for submit in daemon.submits)
    assert first == second
    assert folders == [bytes(16).hex()]


def test_content_stays_when_nobody_knows_whether_the_submission_exists(runtime_dir: Path) -> None:
    with pytest.raises(Unreachable):
        submitted(runtime_dir, Unreachable(), Unreachable())
    assert list(open_store(str(runtime_dir / "content")).folders()) == [bytes(16).hex()]


def test_content_stays_if_the_link_below_has_sent_the_submission_twice(runtime_dir: Path) -> None:
    """As that of a router does, so that the one answer says that the submission existed."""
    _, folders = submitted(runtime_dir, Created(5, False), made=5)
    assert folders == [bytes(16).hex()]


@pytest.mark.parametrize("refusal", [NotPermitted(), TooManyConnections(), VersionMismatch()])
def test_content_stays_if_no_second_connection_is_had(runtime_dir: Path, refusal: OpsqError) -> None:
    """The first may have brought the submission."""
    with pytest.raises(type(refusal)):
        submitted(runtime_dir, Unreachable(), made=5, refusals=[None, None, refusal])
    assert list(open_store(str(runtime_dir / "content")).folders()) == [bytes(16).hex()]


@pytest.mark.parametrize("error", [NotPermitted(), Conflict(), UsageError()])
def test_content_of_a_submission_that_is_stored_outlives_an_error(runtime_dir: Path, error: OpsqError) -> None:
    with pytest.raises(type(error)):
        submitted(runtime_dir, error, made=5)
    assert list(open_store(str(runtime_dir / "content")).folders()) == [bytes(16).hex()]


def test_folder_of_an_earlier_submission_is_never_touched(runtime_dir: Path) -> None:
    (runtime_dir / "content" / bytes(16).hex()).mkdir(parents=True)
    (runtime_dir / "in").write_bytes(b"line\n" * 2000)
    daemon = Daemon(runtime_dir / "content")
    with pytest.raises(Conflict):
        hand(daemon, runtime_dir / "in", Splitting())
    assert list(open_store(str(runtime_dir / "content")).folders()) == [bytes(16).hex()]


def test_room_is_asked_for_before_a_byte_of_content_is_written(
    runtime_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With as much as is known by then: of a file that is cut, that it has a chunk, and its size."""
    monkeypatch.setattr(ContentWriter, "__init__", None)  # making one would fail
    (runtime_dir / "in").write_bytes(b"line\n" * 2000)
    (runtime_dir / "content").mkdir()
    daemon = Daemon(runtime_dir / "content")
    daemon.has_room = False
    with pytest.raises(NoRoom):
        hand(daemon, runtime_dir / "in", Splitting())
    assert [(room.chunks_count, room.content_bytes, room.wait_s) for room in daemon.asked] == [(1, 10_000, 0.0)]


def test_producer_that_waits_for_room_waits_before_content_is_written_and_again_when_it_is_handed_over(
    runtime_dir: Path,
) -> None:
    (runtime_dir / "in").write_bytes(b"line\n" * 2000)
    (runtime_dir / "content").mkdir()
    daemon = Daemon(runtime_dir / "content", Created(5, True))
    daemon.has_room = False
    hand(daemon, runtime_dir / "in", Splitting(), "forever")
    assert [room.wait_s for room in daemon.asked] == [0.0, None]
    assert [submit.wait_s for submit in daemon.submits] == [None]


def test_double_star_gives_files_at_any_depth_and_no_folders(runtime_dir: Path) -> None:
    (runtime_dir / "a" / "b").mkdir(parents=True)
    for name in ("a/x", "a/b/y"):
        (runtime_dir / name).touch()
    assert expand([f"{runtime_dir}/a/**"]) == [f"{runtime_dir}/a/b/y", f"{runtime_dir}/a/x"]

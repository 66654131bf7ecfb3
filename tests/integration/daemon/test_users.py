"""Several users of one machine: whom a client greets, whom a daemon listens beside, and whose files they make."""

from __future__ import annotations

import contextlib
import os
import socket
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import pytest

from daemons import DEADLINE_S, Client, connected, end, log_with, running, settings_of, state_of
from opsq.client.shards.dialling import dial
from opsq.daemon import lifecycle, sockets
from opsq.daemon.control_connection import fetch_state
from opsq.errors import Conflict, NotPermitted, OpsqError
from opsq.paths import short_socket_owner, socket_of
from opsq.settings import Settings
from opsq.store.state_folder import make_state_dir
from opsq.wire.messages import Weight
from users import ALICE, BOB, acting_as, need_root, run_as
from waiting import wait_until


@contextmanager
def listening_as(uid: int, path: Path) -> Iterator[socket.socket]:
    """A socket at which a process of this user listens."""
    with closing(socket.socket(socket.AF_UNIX)) as listener:
        with acting_as(uid):
            listener.bind(str(path))
            path.chmod(0o666)
            listener.listen(1)
        yield listener


def folder_of(uid: int, path: Path, mode: int = 0o700) -> Path:
    """A folder that belongs to a user."""
    path.mkdir()
    os.chown(path, uid, uid)
    path.chmod(mode)
    return path


def test_client_sends_nothing_to_a_daemon_that_is_not_the_folder_owners(runtime_dir: Path) -> None:
    need_root()
    runtime_dir.chmod(0o777)
    path = runtime_dir / "opsq.sock"
    with listening_as(BOB, path) as listener:
        with pytest.raises(NotPermitted, match=f"listens at {path} belongs to uid {BOB}, but the folder to uid 0"):
            dial(str(path))
        accepted, _ = listener.accept()
        with closing(accepted):
            assert accepted.recv(1) == b""


def test_root_may_use_the_daemon_of_a_folders_owner(runtime_dir: Path) -> None:
    need_root()
    os.chmod(runtime_dir, 0o755)
    folder = folder_of(ALICE, runtime_dir / "alice")
    with listening_as(ALICE, folder / "opsq.sock"):
        dial(str(folder / "opsq.sock")).close()


def test_short_socket_in_a_folder_that_another_user_made_first_is_refused(runtime_dir: Path) -> None:
    need_root()
    os.chmod(runtime_dir, 0o755)
    state_dir = folder_of(ALICE, runtime_dir / ("long" * 30))
    path, source = socket_of(str(state_dir), "test")
    assert "too long" in source
    assert short_socket_owner(path) == ALICE
    folder = folder_of(BOB, Path(path).parent)
    try:
        with listening_as(BOB, Path(path)), pytest.raises(NotPermitted, match=f"{folder} belongs to uid {BOB}"):
            dial(path)
        with pytest.raises(NotPermitted, match=f"{folder} belongs to uid {BOB}"):
            sockets.bind_unix(path, 0o600, str(state_dir))
    finally:
        Path(path).unlink(missing_ok=True)
        folder.rmdir()


def test_short_socket_that_root_makes_can_be_used_by_the_owner_of_the_state_folder(runtime_dir: Path) -> None:
    need_root()
    os.chmod(runtime_dir, 0o755)
    state_dir = folder_of(ALICE, runtime_dir / ("long" * 30))
    path, _ = socket_of(str(state_dir), "test")
    with closing(sockets.bind_unix(path, 0o600, str(state_dir))):
        assert {os.stat(each).st_uid for each in (path, f"{path}.lock", os.path.dirname(path))} == {ALICE}
        with acting_as(ALICE):
            dial(path).close()
    Path(path).parent.rmdir()  # nothing is left in it


def test_state_folder_that_anybody_may_write_to_is_closed_to_them(runtime_dir: Path) -> None:
    folder = runtime_dir / "state"
    folder.mkdir()
    folder.chmod(0o777)
    make_state_dir(str(folder))
    assert folder.stat().st_mode & 0o777 == 0o755


def test_state_folder_where_somebody_else_has_left_a_file_is_refused(runtime_dir: Path) -> None:
    need_root()
    folder = runtime_dir / "state"
    folder.mkdir()
    folder.chmod(0o777)
    os.chmod(runtime_dir, 0o755)
    with acting_as(BOB):
        (folder / "token").write_text("known to bob")
    with pytest.raises(NotPermitted, match=f"token in it belongs to uid {BOB}"):
        make_state_dir(str(folder))


def test_state_folder_of_another_user_is_refused(runtime_dir: Path) -> None:
    need_root()
    os.chmod(runtime_dir, 0o755)
    folder = folder_of(ALICE, runtime_dir / "alice", 0o777)
    with acting_as(BOB), pytest.raises(NotPermitted, match=f"belongs to uid {ALICE}"):
        make_state_dir(str(folder))


def test_deleted_socket_is_made_again_and_stop_finds_the_daemon(runtime_dir: Path) -> None:
    with running(runtime_dir / "s") as settings:
        with Client(settings.socket) as before:
            before.greet()
            os.unlink(settings.socket)
            wait_until(lambda: os.path.exists(settings.socket), DEADLINE_S, "the socket is there again")
            assert before.greet is not None
            assert fetch_state(settings, DEADLINE_S).connections_count == 2
        assert os.stat(settings.socket).st_mode & 0o777 == 0o600
        log_with(settings, "was missing and has been created again")
        os.unlink(settings.socket)
        assert lifecycle.stop(settings).status == "stopped"
        assert not os.path.exists(settings.socket)


def test_socket_whose_folder_is_deleted_is_made_again(runtime_dir: Path) -> None:
    with running(runtime_dir / "s", socket=str(runtime_dir / "there" / "opsq.sock")) as settings:
        for name in os.listdir(runtime_dir / "there"):
            os.unlink(runtime_dir / "there" / name)
        os.rmdir(runtime_dir / "there")
        wait_until(lambda: os.path.exists(settings.socket), DEADLINE_S, "the socket is there again")
        assert state_of(settings).state == "running"


def test_file_in_the_place_of_a_socket_is_left_alone(runtime_dir: Path) -> None:
    with running(runtime_dir / "s") as settings:
        os.unlink(settings.socket)
        Path(settings.socket).write_text("mine")
        log_with(settings, "was replaced by another file")
        assert Path(settings.socket).read_text() == "mine"


@pytest.fixture
def alices(runtime_dir: Path) -> Path:
    """A state folder that belongs to a user."""
    need_root()
    os.chmod(runtime_dir, 0o755)
    return folder_of(ALICE, runtime_dir / "alice")


def owners(folder: Path) -> dict[str, int]:
    """Who owns what is in a folder, by path."""
    return {str(path.relative_to(folder)): path.lstat().st_uid for path in folder.rglob("*")}


def test_all_that_root_makes_belongs_to_the_owner_of_the_folder(alices: Path) -> None:
    settings = settings_of(alices, listen="127.0.0.1:0")
    assert lifecycle.start(settings, is_temporary=True).status == "started"
    try:
        found = owners(alices)
        assert {"opsq.sqlite", "opsq.sqlite-wal", "opsq.lock", "opsq.log", "opsq.run", "opsq.sock", "token"} < set(
            found
        )
        assert set(found.values()) == {ALICE}
        with acting_as(ALICE):
            assert state_of(settings).state == "running"
    finally:
        end(settings)


WRITTEN = ["opsq.log", "opsq.run", "opsq.lock", "opsq.ballast", "audit.jsonl", "opsq.sqlite", "token"]
"""What a daemon writes to in its state folder when it is there."""


def write_everything(settings: Settings) -> None:
    """Start a daemon, have it write down an act of an operator, and stop it, as far as it lets that be done."""
    try:
        with contextlib.suppress(OpsqError):
            lifecycle.start(settings)
            with connected(settings) as client:
                client.ask(Weight(2, "tenant", "acme", 2.0))
            lifecycle.stop(settings)
    finally:
        end(settings)


@pytest.mark.parametrize("name", WRITTEN)
@pytest.mark.parametrize("plant", [Path.symlink_to, Path.hardlink_to])
def test_root_writes_through_no_link_that_the_owner_of_a_folder_has_made(
    alices: Path, runtime_dir: Path, name: str, plant: Callable[[Path, Path], None]
) -> None:
    """It does without the file, or says that it may not write it."""
    target = runtime_dir / "roots"
    target.write_text("")
    before = target.stat()
    plant(alices / name, target)
    write_everything(settings_of(alices, listen="127.0.0.1:0"))
    after = target.stat()
    assert target.read_text() == ""
    assert (after.st_uid, after.st_mode, after.st_mtime_ns) == (before.st_uid, before.st_mode, before.st_mtime_ns)


@pytest.mark.parametrize("name", WRITTEN)
def test_root_waits_for_no_fifo_that_the_owner_of_a_folder_has_made(alices: Path, name: str) -> None:
    os.mkfifo(alices / name)
    write_everything(settings_of(alices))


def test_state_folder_where_somebody_could_have_left_a_hard_link_is_refused(runtime_dir: Path) -> None:
    precious = runtime_dir / "precious"
    precious.touch()
    folder = runtime_dir / "state"
    folder.mkdir()
    (folder / "opsq.log").hardlink_to(precious)
    folder.chmod(0o777)
    with pytest.raises(NotPermitted, match=r"opsq\.log in it has other names too"):
        make_state_dir(str(folder))


def test_daemon_starts_beside_log_and_marker_of_root(alices: Path) -> None:
    for name in ("opsq.log", "opsq.run"):
        (alices / name).write_text("temporary\n")
        (alices / name).chmod(0o600)
    for verb in ("start", "stop"):
        assert run_as(ALICE, alices, verb).returncode == 0
    assert "serves" in (alices / "opsq.log").read_text()


def test_lock_of_root_says_how_to_get_the_folder_back(alices: Path) -> None:
    (alices / "opsq.lock").touch(0o600)
    from opsq.store.database import Database

    with acting_as(ALICE), pytest.raises(NotPermitted) as refused:
        Database.open(alices / "opsq.sqlite")
    assert refused.value.hint == f"It belongs to uid 0. Let root run: chown -R {ALICE} {alices}"


def test_embedded_owner_is_named_by_stop(runtime_dir: Path) -> None:
    from opsq.store.database import Database

    database = Database.open(runtime_dir / "opsq.sqlite")
    try:
        with pytest.raises(Conflict) as refused:
            lifecycle.stop(settings_of(runtime_dir))
    finally:
        database.close()
    assert f"process {os.getpid()}" in refused.value.hint

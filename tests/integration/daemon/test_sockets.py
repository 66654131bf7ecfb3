"""The Unix socket: whose it is, who may replace and remove it, and sockets that a service manager hands over."""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import TextIO

import pytest

from daemons import DEADLINE_S, Client, connected, end, running, settings_of, state_of
from opsq.daemon import lifecycle, sockets
from opsq.errors import AlreadyRunning, Conflict, NotPermitted
from opsq.settings import Settings
from opsq.wire.messages import Welcome
from waiting import wait_until

ACTIVATED = """
import os, sys
os.environ["LISTEN_PID"] = str(os.getpid())
from opsq.settings import load; from opsq.daemon.daemon_process import run; from opsq.errors import OpsqError
try: sys.exit(run(load()))
except OpsqError as error: print(error); sys.exit(error.exit_status)
"""


@pytest.fixture
def settings(runtime_dir: Path) -> Iterator[Settings]:
    found = settings_of(runtime_dir / "state")
    yield found
    end(found)


def activated(settings: Settings, *listeners: socket.socket | TextIO, **environ: str) -> subprocess.Popen[str]:
    """The daemon as systemd runs it for a socket unit: descriptors from 3 on, and LISTEN_FDS."""

    def hand_over() -> None:
        high = [os.dup2(one.fileno(), 100 + place) for place, one in enumerate(listeners)]
        for place, descriptor in enumerate(high):
            os.dup2(descriptor, 3 + place)

    return subprocess.Popen(
        [sys.executable, "-c", ACTIVATED],
        env={**os.environ, "OPSQ_STATE_DIR": settings.state_dir, "LISTEN_FDS": str(len(listeners)), **environ},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        close_fds=False,
        preexec_fn=hand_over,  # noqa: PLW1509  # no threads here
    )


def listening(path: Path) -> socket.socket:
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    listener.bind(str(path))
    listener.listen()
    return listener


def test_second_server_on_the_path_fails_and_the_first_goes_on(runtime_dir: Path) -> None:
    """Two state folders that are told to use one socket."""
    path = str(runtime_dir / "shared.sock")
    with running(runtime_dir / "a", socket=path) as first:
        pid = state_of(first).pid
        with pytest.raises(AlreadyRunning, match=path):
            lifecycle._spawn(settings_of(runtime_dir / "b", socket=path), is_temporary=False)
        assert state_of(first).pid == pid


def test_socket_of_a_stranger_is_not_taken_over(runtime_dir: Path) -> None:
    """A program that is not opsq listens at the path: its socket stays."""
    with listening(runtime_dir / "s.sock") as stranger:
        with pytest.raises(AlreadyRunning, match="Another process serves"):
            sockets.bind_unix(str(runtime_dir / "s.sock"), 0o600, str(runtime_dir))
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as client:
            client.connect(stranger.getsockname())


def test_stale_socket_is_replaced_but_a_file_is_not(runtime_dir: Path) -> None:
    listening(runtime_dir / "stale.sock").close()
    bound = sockets.bind_unix(str(runtime_dir / "stale.sock"), 0o600, str(runtime_dir))
    bound.close()
    (runtime_dir / "file.sock").write_text("precious")
    with pytest.raises(Conflict, match="is not a socket; it was not touched"):
        sockets.bind_unix(str(runtime_dir / "file.sock"), 0o600, str(runtime_dir))
    assert (runtime_dir / "file.sock").read_text() == "precious"


def test_stop_tolerates_a_missing_socket(settings: Settings) -> None:
    pid = lifecycle.start(settings).pid
    os.unlink(settings.socket)
    os.kill(pid, 15)
    wait_until(lambda: not lifecycle.is_locked(settings.lock_path), DEADLINE_S)
    assert "Traceback" not in Path(settings.log_path).read_text()


def test_stop_removes_only_the_socket_that_it_made(settings: Settings) -> None:
    pid = lifecycle.start(settings).pid
    os.unlink(settings.socket)
    with listening(Path(settings.socket)):
        os.kill(pid, 15)
        wait_until(lambda: not lifecycle.is_locked(settings.lock_path), DEADLINE_S)
        assert Path(settings.socket).is_socket()
    os.unlink(settings.socket)


def test_long_state_folder_works_by_the_short_socket(runtime_dir: Path) -> None:
    folder = runtime_dir / ("deep" * 30)
    with running(folder) as settings:
        assert not settings.socket.startswith(str(folder))
        assert state_of(settings).state
        assert Path(settings.socket).parent.stat().st_mode & 0o777 == 0o700
        assert lifecycle.stop(settings).status == "stopped"
        assert not Path(settings.socket).exists()
        assert not Path(f"{settings.socket}.lock").exists()


def test_lock_that_its_daemon_has_removed_keeps_nobody_else_out(
    runtime_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A daemon opens the lock of another one that is just ending."""
    path = str(runtime_dir / "there" / "opsq.sock")
    (runtime_dir / "there").mkdir(mode=0o700)
    ending = [sockets.bind_unix(path, 0o600, str(runtime_dir))]
    lock = fcntl.flock

    def flock(descriptor: int, operation: int) -> None:
        if ending:
            ending.pop().close()
        lock(descriptor, operation)

    monkeypatch.setattr(fcntl, "flock", flock)
    with contextlib.closing(sockets.bind_unix(path, 0o600, str(runtime_dir))), pytest.raises(AlreadyRunning):
        sockets.bind_unix(path, 0o600, str(runtime_dir))
    assert os.listdir(runtime_dir / "there") == []


def test_short_folder_that_others_can_write_to_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """Anybody can make folders in /tmp, so the short one must be ours alone."""
    folder = Path("/tmp/opsq-test-of-mode")
    folder.mkdir(mode=0o700)
    try:
        folder.chmod(0o777)
        with pytest.raises(NotPermitted, match=r"mode 0777; it must belong to this user, with mode 0700"):
            sockets.bind_unix(str(folder / "x.sock"), 0o600, "/elsewhere")
    finally:
        folder.rmdir()


def test_socket_mode_is_as_set(runtime_dir: Path) -> None:
    with running(runtime_dir / "state", socket_mode="0660", socket=str(runtime_dir / "group.sock")) as settings:
        assert Path(settings.socket).stat().st_mode & 0o777 == 0o660


def test_activation_with_one_socket_serves_it_and_leaves_it(settings: Settings, runtime_dir: Path) -> None:
    """A connection that was made before the daemon ran is answered; the socket file belongs to the service manager."""
    with listening(runtime_dir / "unit.sock") as listener, Client(str(runtime_dir / "unit.sock")) as early:
        daemon = activated(settings, listener)
        assert isinstance(early.greet(), Welcome)
        daemon.terminate()
        daemon.communicate(timeout=DEADLINE_S)
        assert daemon.returncode == 0
        assert (runtime_dir / "unit.sock").is_socket()
        assert not Path(settings.socket).exists()


def test_more_than_one_inherited_socket_fails_closed(settings: Settings, runtime_dir: Path) -> None:
    with listening(runtime_dir / "1") as one, listening(runtime_dir / "2") as two:
        daemon = activated(settings, one, two)
        out, _ = daemon.communicate(timeout=DEADLINE_S)
    assert daemon.returncode == 2
    assert "passed 2 sockets" in out


def test_inherited_file_is_no_socket_and_fails_closed(settings: Settings, tmp_path: Path) -> None:
    with (tmp_path / "file").open("w") as file:
        daemon = activated(settings, file)
        out, _ = daemon.communicate(timeout=DEADLINE_S)
    assert daemon.returncode == 2
    assert "is not a socket" in out


def test_inherited_socket_that_contradicts_a_setting_is_an_error(settings: Settings, runtime_dir: Path) -> None:
    with listening(runtime_dir / "unit.sock") as listener:
        daemon = activated(settings, listener, OPSQ_SOCKET=str(runtime_dir / "other.sock"))
        out, _ = daemon.communicate(timeout=DEADLINE_S)
    assert daemon.returncode == 2
    assert (
        f"OPSQ_SOCKET requests {runtime_dir}/other.sock, but the service manager passed {runtime_dir}/unit.sock" in out
    )


def test_inherited_socket_that_agrees_with_the_setting_is_served(settings: Settings, runtime_dir: Path) -> None:
    path = str(runtime_dir / "unit.sock")
    with listening(Path(path)) as listener:
        daemon = activated(settings, listener, OPSQ_SOCKET=path)
        with connected(settings_of(Path(settings.state_dir), socket=path)):
            daemon.terminate()
        daemon.communicate(timeout=DEADLINE_S)
    assert daemon.returncode == 0


def test_variables_for_another_process_are_ignored(settings: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    """LISTEN_PID names who is meant; a child of an activated process is not."""
    monkeypatch.setenv("LISTEN_PID", "1")
    monkeypatch.setenv("LISTEN_FDS", "1")
    assert sockets.take_inherited() is None
    assert "LISTEN_FDS" not in os.environ


def test_daemon_whose_folder_was_removed_ends_and_does_not_stand_in_the_way_of_the_next(settings: Settings) -> None:
    """It would make its socket again in the folder of the next one, which then could not start."""
    lifecycle.start(settings)
    with connected(settings) as client:
        shutil.rmtree(settings.state_dir)
        started = lifecycle.start(settings)
        assert started.status == "started"
        assert client.is_closed()
    assert state_of(settings).pid == started.pid


def test_start_gives_up_on_a_socket_where_another_process_listens(
    settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A process that is no daemon of this folder: it ends each connection, and nothing holds the lock."""
    monkeypatch.setattr(lifecycle, "ANSWER_S", 0.1)
    os.mkdir(settings.state_dir, 0o700)

    def end_all(listener: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while True:
                listener.accept()[0].close()

    with listening(Path(settings.socket)) as listener:
        thread = threading.Thread(target=end_all, args=(listener,))
        thread.start()
        with pytest.raises(AlreadyRunning):
            lifecycle.start(settings)
        listener.shutdown(socket.SHUT_RDWR)
        thread.join()

"""Two processes at the moments between which a lock stands: one starts while another has half started or half left.

The other process stops at that moment and says so; it goes on when it is told to.
"""

from __future__ import annotations

import contextlib
import fcntl
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from daemons import DEADLINE_S, end, settings_of, state_of
from opsq.daemon import lifecycle, sockets, temporary_daemon
from opsq.daemon.temporary_daemon import DaemonUse
from opsq.errors import AlreadyRunning

PAUSE = """
import sys
def pause(what):
    print(what, flush=True)
    sys.stdin.readline()
def pausing(function, what):
    def call(*args, **options):
        pause(what)
        return function(*args, **options)
    return call
"""


class Other:
    """Another process, at work until its next pause."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process = process

    def wait_for(self, what: str) -> None:
        """Wait until it has come to this pause."""
        assert self._process.stdout is not None
        assert self._process.stdout.readline().strip() == what

    def go_on(self) -> None:
        """Let it go on from its pause."""
        assert self._process.stdin is not None
        self._process.stdin.write("\n")
        self._process.stdin.flush()


@contextlib.contextmanager
def other(script: str, *words: str) -> Iterator[Other]:
    """A process that runs a script with `pause` and `pausing`; it has ended well when the block is left."""
    with subprocess.Popen(
        [sys.executable, "-c", PAUSE + script, *words], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        try:
            yield Other(process)
            process.communicate("\n" * 9, timeout=DEADLINE_S)
            assert process.returncode == 0
        finally:
            process.kill()


BIND = """
from opsq.daemon import sockets
path, folder, at = sys.argv[1:]
if at == "bound":  # and does not listen yet, so it looks like a stale one
    sockets._give = pausing(sockets._give, at)
listening = sockets.bind_unix(path, 0o600, folder)
if at == "leaving":  # it has seen that the socket is its own
    unlink = sockets.os.unlink
    def leave(path):
        sockets.os.unlink = unlink
        pause(at)
        unlink(path)
    sockets.os.unlink = leave
    listening.close()
pause("end")
"""


@pytest.mark.parametrize("moment", ["bound", "leaving"])
def test_socket_of_a_daemon_that_half_started_or_half_left_is_not_taken(runtime_dir: Path, moment: str) -> None:
    """Two state folders that are told to use one socket."""
    path = str(runtime_dir / "shared.sock")
    for name in ("a", "b"):
        (runtime_dir / name).mkdir(mode=0o700)
    with other(BIND, path, str(runtime_dir / "a"), moment) as first:
        first.wait_for(moment)
        inode = Path(path).stat().st_ino
        with pytest.raises(AlreadyRunning, match="Another daemon serves"):
            sockets.bind_unix(path, 0o600, str(runtime_dir / "b"))
        assert Path(path).stat().st_ino == inode
        first.go_on()
        first.wait_for("end")
    sockets.bind_unix(path, 0o600, str(runtime_dir / "b")).close()


USE = """
import msgspec
from opsq.daemon import lifecycle
from opsq.daemon.temporary_daemon import DaemonUse
from opsq.settings import load
use = DaemonUse(load({"state_dir": sys.argv[1]})).enter()
pause("entered")
lifecycle.stop = pausing(lifecycle.stop, "stopping")
print("stopped" if use.leave() else "left", flush=True)
"""


def test_user_who_comes_while_the_last_one_stops_the_daemon_gets_a_new_one(
    runtime_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It must not take the daemon that is about to be stopped for one that it can use."""
    settings = settings_of(runtime_dir)
    was_running: list[bool] = []
    has_come = threading.Event()
    start, lock = lifecycle.start, temporary_daemon.fcntl.lockf

    def note_start(*args: object, **options: object) -> object:
        was_running.append(lifecycle.is_locked(settings.lock_path))
        has_come.set()
        return start(*args, **options)  # type: ignore[arg-type]

    def note_lock(*args: int) -> None:
        has_come.set()
        lock(*args)

    try:
        with other(USE, str(runtime_dir)) as last:
            last.wait_for("entered")
            last.go_on()
            last.wait_for("stopping")
            monkeypatch.setattr(lifecycle, "start", note_start)
            monkeypatch.setattr(temporary_daemon.fcntl, "lockf", note_lock)
            use = DaemonUse(settings)
            coming = threading.Thread(target=use.enter)
            coming.start()
            assert has_come.wait(DEADLINE_S)
            last.go_on()
            last.wait_for("stopped")
            coming.join()
        assert was_running == [False]
        assert use.has_started
        assert state_of(settings).state == "running"
        assert use.leave()
    finally:
        end(settings)


def test_temporary_daemon_is_not_stopped_while_another_process_uses_it(runtime_dir: Path) -> None:
    """Even one that has no connection at the moment."""
    settings = settings_of(runtime_dir)
    try:
        with other(USE, str(runtime_dir)) as first:
            first.wait_for("entered")
            use = DaemonUse(settings).enter()
            assert not use.has_started
            assert not use.leave()
            assert state_of(settings).state == "running"
            first.go_on()
            first.wait_for("stopping")
            first.go_on()
            first.wait_for("stopped")
    finally:
        end(settings)


EXIT = """
from opsq.daemon.temporary_daemon import may_exit
from opsq.settings import load
pause("exits" if may_exit(load({"state_dir": sys.argv[1]})) else "goes on")
"""


def test_daemon_without_connections_exits_only_if_temporary_and_unused_and_lets_nobody_in_meanwhile(
    runtime_dir: Path,
) -> None:
    settings = settings_of(runtime_dir)
    try:
        use = DaemonUse(settings).enter()
        with other(EXIT, str(runtime_dir)) as daemon:
            daemon.wait_for("goes on")
        assert use.leave()
        with other(EXIT, str(runtime_dir)) as daemon, open(temporary_daemon.marker_path(settings), "r+b") as file:
            daemon.wait_for("exits")
            with pytest.raises(BlockingIOError):
                fcntl.lockf(file, fcntl.LOCK_SH | fcntl.LOCK_NB, 1, temporary_daemon._USERS_AT)
        temporary_daemon.write_marker(settings, is_temporary=False)
        with other(EXIT, str(runtime_dir)) as daemon:
            daemon.wait_for("goes on")
    finally:
        end(settings)

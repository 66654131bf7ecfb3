"""Starting the daemon: in the background, in the foreground, twice, after a crash, and when it cannot start."""

from __future__ import annotations

import contextlib
import hashlib
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from daemons import DEADLINE_S, end, holder, kill, running, settings_of, state_of
from opsq.daemon import doctor, lifecycle
from opsq.errors import AlreadyRunning, Bug, DatabaseDamaged, InputUnreadable, NotPermitted
from opsq.settings import Settings
from waiting import wait_until

FOREGROUND = (
    "import sys; from opsq.settings import load\n"
    "from opsq.daemon.daemon_process import run; from opsq.errors import OpsqError\n"
    "try: sys.exit(run(load()))\n"
    "except OpsqError as error: print(error.code, error); sys.exit(error.exit_status)"
)


@pytest.fixture
def settings(runtime_dir: Path) -> Iterator[Settings]:
    """Settings of a state folder that does not exist yet; its daemon is ended after the test."""
    found = settings_of(runtime_dir / "state")
    yield found
    end(found)


def foreground(settings: Settings, **environ: str) -> subprocess.Popen[str]:
    """The daemon as a service manager runs it."""
    environ = {**os.environ, "OPSQ_STATE_DIR": settings.state_dir, **environ}
    return subprocess.Popen(
        [sys.executable, "-c", FOREGROUND], env=environ, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )


def test_started_daemon_serves_from_a_private_folder(settings: Settings) -> None:
    """Everything in the state folder is for its owner alone."""
    found = lifecycle.start(settings)
    assert found.status == "started"
    assert state_of(settings).pid == found.pid == holder(settings)
    assert Path(settings.state_dir).stat().st_mode & 0o777 == 0o700
    assert Path(settings.socket).stat().st_mode & 0o777 == 0o600
    files = [path for path in Path(settings.state_dir).rglob("*") if path.is_file()]
    assert {path.name for path in files} >= {"opsq.sqlite", "opsq.lock", "opsq.log", "store-id", "store-owner"}
    assert [path for path in files if path.stat().st_mode & 0o077] == []


def test_second_start_says_already_running_and_hangup_is_ignored(settings: Settings) -> None:
    first = lifecycle.start(settings)
    assert os.getsid(first.pid) != os.getsid(0)
    os.kill(first.pid, signal.SIGHUP)
    again = lifecycle.start(settings)
    assert (again.status, again.pid) == ("already_running", first.pid)
    assert state_of(settings).pid == first.pid


def test_number_of_a_living_process_does_not_prevent_a_start(settings: Settings) -> None:
    """The lock file of a killed daemon names a process; here that number belongs to somebody else."""
    Path(settings.state_dir).mkdir()
    for name in ("opsq.lock", "opsq.pid"):
        Path(settings.state_dir, name).write_text(f"{os.getpid()}\n")
    assert lifecycle.start(settings).status == "started"


def test_refused_start_changes_nothing(settings: Settings) -> None:
    lifecycle.start(settings)

    def prints() -> dict[str, str]:
        files = [path for path in Path(settings.state_dir).rglob("*") if path.is_file()]
        return {str(path): hashlib.sha256(path.read_bytes()).hexdigest() for path in files}

    before, inode = prints(), os.stat(settings.socket).st_ino
    refused = foreground(settings)
    out, _ = refused.communicate(timeout=DEADLINE_S)
    assert refused.returncode == AlreadyRunning.exit_status
    assert f"in use by process {holder(settings)}" in out
    assert (prints(), os.stat(settings.socket).st_ino) == (before, inode)


def test_start_after_kill_needs_no_clean_up(settings: Settings) -> None:
    first = lifecycle.start(settings)
    kill(settings)
    assert Path(settings.socket).exists()
    again = lifecycle.start(settings)
    assert again.status == "started"
    assert again.pid != first.pid


def test_twenty_starts_at_once_leave_one_daemon(settings: Settings) -> None:
    with ThreadPoolExecutor(20) as pool:
        found = list(pool.map(lambda _: lifecycle.start(settings), range(20)))
    assert {one.pid for one in found} == {state_of(settings).pid}
    assert sorted(one.status for one in found) == ["already_running"] * 19 + ["started"]


def test_daemon_keeps_nothing_of_its_caller_open(settings: Settings) -> None:
    """`opsq start | cat` ends, and so does a shell that waits for the end of a pipe."""
    code = "from opsq.settings import load; from opsq.daemon import lifecycle; print(lifecycle.start(load()).status)"
    environ = {**os.environ, "OPSQ_STATE_DIR": settings.state_dir}
    run = subprocess.run([sys.executable, "-c", code], env=environ, capture_output=True, text=True, timeout=DEADLINE_S)
    assert (run.returncode, run.stdout, run.stderr) == (0, "started\n", "")
    assert state_of(settings).pid


def test_damaged_database_is_refused_and_left_alone(settings: Settings) -> None:
    """The child's error reaches the caller with its class, and no daemon is left behind."""
    Path(settings.state_dir).mkdir()
    Path(settings.database_path).write_bytes(b"no database" * 1000)
    with pytest.raises(DatabaseDamaged, match=r"opsq\.sqlite is damaged"):
        lifecycle.start(settings)
    assert Path(settings.database_path).read_bytes() == b"no database" * 1000
    assert not lifecycle.is_locked(settings.lock_path)


def test_file_in_place_of_the_state_folder_is_named(settings: Settings) -> None:
    Path(settings.state_dir).write_text("")
    with pytest.raises(InputUnreadable, match=settings.state_dir):
        lifecycle.start(settings)


def test_lock_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    (tmp_path / "opsq.lock").symlink_to("opsq.lock")
    with pytest.raises(NotPermitted, match=r"Cannot read .*/opsq\.lock: Too many levels"):
        lifecycle.is_locked(str(tmp_path / "opsq.lock"))


def test_child_that_dies_without_a_word_is_a_bug_of_ours(settings: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "executable", "/bin/false")
    with pytest.raises(Bug, match="exited during startup"):
        lifecycle.start(settings)


def test_embedded_owner_makes_start_and_stop_say_so(settings: Settings) -> None:
    """A process that holds the lock and answers nothing is waited for only so long."""
    from opsq.errors import Conflict
    from opsq.store.database import Database

    Path(settings.state_dir).mkdir()
    database = Database.open(Path(settings.database_path))
    try:
        with pytest.raises(Conflict, match="in use, but no daemon answers"):
            lifecycle.stop(settings)
    finally:
        database.close()


def test_foreground_tells_the_service_manager_and_logs_to_stderr(settings: Settings, runtime_dir: Path) -> None:
    """READY=1 comes when connections are accepted, STOPPING=1 when the drain begins; SIGTERM ends with status 0."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
        manager.bind(str(runtime_dir / "notify"))
        manager.settimeout(DEADLINE_S)
        daemon = foreground(settings, NOTIFY_SOCKET=str(runtime_dir / "notify"))
        assert manager.recv(100) == b"READY=1"
        assert state_of(settings).pid == daemon.pid
        daemon.terminate()
        assert manager.recv(100) == b"STOPPING=1"
    _, said = daemon.communicate(timeout=DEADLINE_S)
    assert daemon.returncode == 0
    assert f"as process {daemon.pid} at {settings.socket}" in said
    assert said.endswith("INFO stopped\n")
    assert not Path(settings.socket).exists()


@pytest.mark.parametrize(("error", "is_bug"), [("ValueError('odd')", True), ("InvalidStrategy('odd')", False)])
def test_error_that_ends_the_daemon_is_logged_as_a_bug_unless_it_is_a_mistake(
    settings: Settings, error: str, is_bug: bool
) -> None:
    script = (
        "from opsq.daemon import daemon_process\nfrom opsq.errors import InvalidStrategy\n"
        f"async def serve(*_):\n    raise {error}\n"
        f"daemon_process._serve = serve\n{FOREGROUND}"
    )
    environ = {**os.environ, "OPSQ_STATE_DIR": settings.state_dir}
    daemon = subprocess.run([sys.executable, "-c", script], env=environ, capture_output=True, text=True)
    assert daemon.returncode != 0
    assert ("internal error (bug), the daemon exits" in daemon.stderr) is is_bug


def test_foreground_tells_a_watchdog_again_and_again_that_it_runs(settings: Settings, runtime_dir: Path) -> None:
    """Also while it drains; a watchdog that is meant for another process is told nothing."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
        manager.bind(str(runtime_dir / "notify"))
        manager.settimeout(DEADLINE_S)
        told = {"NOTIFY_SOCKET": str(runtime_dir / "notify"), "WATCHDOG_USEC": "20000"}
        daemon = foreground(settings, **told)
        assert [manager.recv(100) for _ in range(4)] == [b"READY=1", *[b"WATCHDOG=1"] * 3]
        daemon.terminate()
        daemon.communicate(timeout=DEADLINE_S)
        assert daemon.returncode == 0
        manager.setblocking(False)
        with contextlib.suppress(BlockingIOError):
            while manager.recv(100):
                pass
        manager.settimeout(DEADLINE_S)
        daemon = foreground(settings, **told, WATCHDOG_PID="1")
        assert manager.recv(100) == b"READY=1"
        assert state_of(settings).pid == daemon.pid
        daemon.terminate()
        assert manager.recv(100) == b"STOPPING=1"
        daemon.communicate(timeout=DEADLINE_S)


def test_log_reader_that_blocks_delays_no_reply(settings: Settings) -> None:
    """Nobody reads stderr of the foreground daemon, and more is logged than the pipe holds."""
    daemon = foreground(settings, OPSQ_LOG_LEVEL="debug")
    wait_until(lambda: os.path.exists(settings.socket), DEADLINE_S)
    for _ in range(1000):
        assert state_of(settings).pid == daemon.pid
    daemon.terminate()
    assert daemon.wait(DEADLINE_S) == 0
    daemon.communicate()


def test_doctor_tells_what_is_there_and_what_to_do(settings: Settings) -> None:
    def facts() -> dict[str, doctor.Fact]:
        return {fact.check: fact for fact in doctor.examine(settings)}

    assert facts()["daemon"].advice == "Run: opsq start"
    with running(Path(settings.state_dir)):
        assert facts()["daemon"].is_ok
        os.chmod(settings.state_dir, 0o755)
        assert facts()["state folder"].advice == f"Run: chmod 700 {settings.state_dir}"
    assert facts()["database"].is_ok

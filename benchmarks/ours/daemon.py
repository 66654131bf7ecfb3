"""A private daemon in a folder of its own, started and ended as users do it, and what the system tells of its process.

It must not talk to the daemon; `client.py` does.
"""

from __future__ import annotations

import os
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import IO

_DEADLINE_S = 60.0


def raise_descriptor_limit() -> None:
    """Allow this process and its children as many descriptors as the system lets them have, 65536 at most."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = 65536 if hard == resource.RLIM_INFINITY else min(hard, 65536)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


def environment(state_dir: Path) -> dict[str, str]:
    """The environment of an opsq that uses `state_dir` and no setting of the person who runs the benchmark."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("OPSQ_")}
    return {**kept, "OPSQ_STATE_DIR": str(state_dir), "XDG_CONFIG_HOME": str(state_dir / "no-config")}


class Daemon:
    """`opsq start --foreground` on `state_dir`; a context that starts it, and stops it by SIGTERM.

    Args:
        settings: by name, as the environment has them.
    """

    def __init__(self, state_dir: Path, **settings: str) -> None:
        self.state_dir = state_dir
        self._settings = {f"OPSQ_{name.upper()}": value for name, value in settings.items()}
        self.socket_path = state_dir / "opsq.sock"
        self.database_path = state_dir / "opsq.sqlite"
        self._process: subprocess.Popen[bytes] | None = None
        self._said: IO[bytes] | None = None
        """What it says, from its start until the end of the context."""

    def __enter__(self) -> Daemon:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()
        if self._said is not None:
            self._said.close()

    def start(self) -> None:
        """Start it; returns at once, a client's connect waits until it listens."""
        if self._said is None or self._said.closed:
            self._said = tempfile.TemporaryFile()  # noqa: SIM115  # lives as long as the daemon
        self._process = subprocess.Popen(
            [sys.executable, "-m", "opsq", "start", "--foreground"],
            env=environment(self.state_dir) | self._settings,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=self._said,
        )

    def stop(self) -> None:
        """End it by SIGTERM and wait; by SIGKILL if it does not go."""
        if self._process is not None:
            self._process.terminate()
            try:
                self._process.wait(_DEADLINE_S)
            except subprocess.TimeoutExpired:
                self.kill()
            self._process = None

    def kill(self) -> None:
        """End it by SIGKILL, as a crash would."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None

    def check_runs(self) -> int:
        """Its process id.

        Raises:
            RuntimeError: it does not run, or has ended by itself.
        """
        if self._process is None or self._said is None:
            raise RuntimeError(f"the daemon of {self.state_dir} was not started")
        status = self._process.poll()
        if status is not None:
            self._said.seek(0)
            said = self._said.read().decode(errors="replace")
            raise RuntimeError(f"the daemon of {self.state_dir} ended with exit status {status} and said:\n{said}")
        return self._process.pid

    def anonymous_bytes(self) -> int:
        """Its own memory: RssAnon, which leaves out the pages of files (Linux)."""
        return _anonymous_bytes(str(self.check_runs()))

    def cpu_s(self) -> float:
        """The processor seconds that it has used so far (Linux)."""
        fields = Path(f"/proc/{self.check_runs()}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def log_bytes(self) -> int:
        """The size of SQLite's log file, 0 if there is none."""
        path = Path(f"{self.database_path}-wal")
        return path.stat().st_size if path.exists() else 0


def own_bytes() -> int:
    """The memory of this process: RssAnon (Linux)."""
    return _anonymous_bytes("self")


def _anonymous_bytes(process: str) -> int:
    for line in Path(f"/proc/{process}/status").read_text().splitlines():
        if line.startswith("RssAnon:"):
            return int(line.split()[1]) * 1024
    raise RuntimeError("/proc tells no RssAnon")


def settled_bytes(daemon: Daemon, *, for_s: float = 3.0) -> int:
    """RssAnon once it has not grown for `for_s` seconds: work in the background has ended."""
    highest, since = daemon.anonymous_bytes(), time.monotonic()
    while time.monotonic() - since < for_s:
        time.sleep(0.2)
        now_bytes = daemon.anonymous_bytes()
        if now_bytes > highest + (256 << 10):
            highest, since = now_bytes, time.monotonic()
    return daemon.anonymous_bytes()

"""PostgreSQL for tests and benchmarks: clusters in temporary folders, which a test may kill and start again.

It must not know anything of opsq.
"""

from __future__ import annotations

import contextlib
import glob
import os
import pwd
import shutil
import signal
import subprocess
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from needs import lack
from waiting import wait_until

_PLACES = ("/usr/lib/postgresql/*/bin", "/opt/homebrew/opt/postgresql*/bin", "/usr/local/opt/postgresql*/bin")
SETTINGS = {
    "fsync": "off",  # no test cuts the power of PostgreSQL
    "max_connections": "60",
    "shared_buffers": "32MB",
    "log_min_messages": "fatal",
}


class Cluster:
    """A server of PostgreSQL with its files.

    Args:
        folder: an empty folder with a short path; the socket is in it.
        settings: where they are not those that it comes with.
    """

    def __init__(self, folder: Path, settings: Mapping[str, str] = SETTINGS) -> None:
        self._folder = folder
        self._settings = {"listen_addresses": "", **settings}
        self._programs = programs() or lack("postgres: apt install postgresql / brew install postgresql")
        self._as_user: dict[str, Any] = {}
        if os.geteuid() == 0:  # which PostgreSQL refuses to run as
            account = _account()
            os.chown(folder, account.pw_uid, account.pw_gid)
            self._as_user = {"user": account.pw_uid, "group": account.pw_gid, "extra_groups": []}
        self._process: subprocess.Popen[bytes] | None = None
        self._databases_count = 0
        self._run("initdb", "-D", str(folder / "data"), "-A", "trust", "-U", "opsq", "-E", "UTF8", "--no-locale", "-N")

    def url(self, database: str = "postgres") -> str:
        """Where a database is."""
        return f"postgresql://opsq@/{database}?host={self._folder}"

    def start(self) -> None:
        """Start the server, and wait until it takes connections; after a kill it recovers first."""
        options = [word for name, setting in self._settings.items() for word in ("-c", f"{name}={setting}")]

        def is_up() -> bool:
            if self._process is None or self._process.poll() is not None:  # its predecessor's memory may be in use yet
                with (self._folder / "log").open("ab") as log:
                    self._process = subprocess.Popen(
                        [self._programs / "postgres", "-D", self._folder / "data", "-k", self._folder, *options],
                        stdin=subprocess.DEVNULL,
                        stdout=log,
                        stderr=log,
                        cwd=self._folder,
                        **self._as_user,
                    )
            return self._takes_connections()

        wait_until(is_up, what="PostgreSQL takes connections")

    def kill(self) -> None:
        """Kill the server with all its processes, as a crash would."""
        if self._process is None:
            return
        children = _children(self._process.pid)
        for pid in (self._process.pid, *children):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self._process.wait()
        self._process = None

    def make_database(self, *statements: str) -> str:
        """A new database in which these were run; returns its URL."""
        import psycopg  # few tests need it

        with psycopg.connect(self.url(), autocommit=True) as connection:
            self._databases_count += 1
            name = f"database_{self._databases_count}"
            connection.execute(f"CREATE DATABASE {name}")
        with psycopg.connect(self.url(name)) as connection:
            for statement in statements:
                connection.execute(statement)
        return self.url(name)

    def _takes_connections(self) -> bool:
        import psycopg

        try:
            psycopg.connect(self.url(), connect_timeout=5).close()
        except psycopg.OperationalError:
            return False
        return True

    def _run(self, program: str, *words: str) -> None:
        subprocess.run(
            [self._programs / program, *words], check=True, capture_output=True, cwd=self._folder, **self._as_user
        )


@contextlib.contextmanager
def running(folder: Path, settings: Mapping[str, str] = SETTINGS) -> Iterator[Cluster]:
    """A cluster that is gone afterwards."""
    cluster = Cluster(folder, settings)
    try:
        cluster.start()
        yield cluster
    finally:
        cluster.kill()


def programs() -> Path | None:
    """The folder of the newest server."""
    found = [path for place in _PLACES for path in glob.glob(f"{place}/initdb")]
    if not found and (on_path := shutil.which("initdb")):
        found = [on_path]
    if not found:
        return None
    return Path(max(found, key=lambda path: [int(part) for part in path.split("/") if part.isdigit()])).parent


def _account() -> pwd.struct_passwd:
    """Whom root runs it as."""
    found = {account.pw_name: account for account in pwd.getpwall()}
    account = found.get("postgres") or found.get("nobody")
    return account or lack("an account that PostgreSQL can run as: postgres or nobody")


def _children(pid: int) -> list[int]:
    """The processes that a process has started."""
    found = subprocess.run(["ps", "-e", "-o", "pid=,ppid="], capture_output=True, text=True, check=True).stdout
    return [int(words[0]) for words in map(str.split, found.splitlines()) if int(words[1]) == pid]

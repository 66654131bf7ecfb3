"""A server of PostgreSQL in a folder of its own, with the settings that it comes with: it syncs each commit.

It must not know what is in a database.
"""

from __future__ import annotations

import glob
import os
import pwd
import shutil
import subprocess
from pathlib import Path
from typing import Any

import psycopg

from rivals.programs import RivalMissingError


class Initdb:
    """The program that makes its files; Debian keeps it off PATH."""

    def find(self) -> str:
        """Its full path.

        Raises:
            RivalMissingError: it is not installed.
        """
        found = shutil.which("initdb") or max(glob.glob("/usr/lib/postgresql/*/bin/initdb"), default=None)
        if found is None:
            raise RivalMissingError("PostgreSQL is not installed; try: apt-get install postgresql")
        return found


class Postgresql:
    """A context that starts it, and stops it at once.

    Args:
        folder: empty, and reachable for the user that it runs as if root runs the benchmark.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._programs = Path(Initdb().find()).parent
        self._databases_count = 0
        self._as_user: dict[str, Any] = {}
        if os.geteuid() == 0:
            account = pwd.getpwnam("postgres")
            os.chown(folder, account.pw_uid, account.pw_gid)
            self._as_user = {"user": account.pw_uid, "group": account.pw_gid, "extra_groups": []}

    def __enter__(self) -> Postgresql:
        data = str(self._folder / "data")
        self._run("initdb", "-D", data, "-A", "trust", "-U", "opsq", "-E", "UTF8", "--no-locale")
        options = f"-c listen_addresses='' -k {self._folder}"
        self._run("pg_ctl", "-D", data, "-o", options, "-l", str(self._folder / "log"), "-w", "start")
        return self

    def __exit__(self, *_: object) -> None:
        self._run("pg_ctl", "-D", str(self._folder / "data"), "-m", "immediate", "stop")

    def make_database(self, *statements: str) -> str:
        """A new database in which these were run; returns its URL."""
        self._databases_count += 1
        name = f"database_{self._databases_count}"
        with psycopg.connect(self._url("postgres"), autocommit=True) as connection:
            connection.execute(f"CREATE DATABASE {name}")
        with psycopg.connect(self._url(name)) as connection:
            for statement in statements:
                connection.execute(statement)
        return self._url(name)

    def _url(self, name: str) -> str:
        return f"postgresql://opsq@/{name}?host={self._folder}"

    def _run(self, program: str, *words: str) -> None:
        subprocess.run(
            [self._programs / program, *words],
            check=True,
            stdout=subprocess.DEVNULL,
            cwd=self._folder,
            **self._as_user,
        )

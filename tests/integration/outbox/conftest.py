"""Outboxes for tests: a database of each kind, connections to it, and relays from it to a daemon."""

from __future__ import annotations

import contextlib
import os
import sqlite3
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest

import opsq
from daemons import running
from opsq.cli.daemon_address import connect
from opsq.errors import OpsqError
from opsq.outbox.hand_over import HandOver
from opsq.outbox.postgresql import PostgresqlOutbox
from opsq.outbox.relay import Aside, Relay
from opsq.outbox.sqlite import SqliteOutbox
from opsq.outbox.waiting_rows import Left, Outbox
from opsq.settings import Settings


class Stop:
    """Ends a relay when a test says so."""

    def __init__(self) -> None:
        self.count = 0
        self.fileno, self._write_fd = os.pipe()
        self._stopped = threading.Event()

    def stop(self) -> None:
        """Have the relay end."""
        self.count = 1
        self._stopped.set()
        os.write(self._write_fd, b"\0")

    def wait(self, timeout_s: float) -> None:
        """See `StopSignals`."""
        self._stopped.wait(timeout_s)

    def close(self) -> None:
        """Close the pipe."""
        os.close(self.fileno)
        os.close(self._write_fd)


class Base:
    """A database with an outbox, and a daemon.

    Attributes:
        outages: what relays have said of outages; None: one was over.
        aside: the rows that they have set aside.
    """

    def __init__(self, connect_to: Callable[[], Any], open_outbox: Callable[[], Outbox], settings: Settings) -> None:
        self.connect = connect_to
        self.open_outbox = open_outbox
        self.settings = settings
        self.outages: list[OpsqError | None] = []
        self.aside: list[Aside] = []

    def relay(self, outbox: Outbox | None = None, *, batch: int = 500, poll_s: float = 0.05) -> Relay:
        """A relay."""
        return Relay(
            outbox or self.open_outbox(),
            HandOver(lambda: connect(self.settings)),
            batch=batch,
            poll_s=poll_s,
            keep_s=3600.0,
            on_aside=self.aside.append,
            on_outage=self.outages.append,
        )

    def relay_once(self, outbox: Outbox | None = None, *, batch: int = 500) -> Left:
        """Move all that is there."""
        with contextlib.closing(Stop()) as stop, contextlib.closing(self.relay(outbox, batch=batch)) as relay:
            return relay.run_once(stop)

    @contextlib.contextmanager
    def relaying(self, *, poll_s: float = 0.05) -> Iterator[Relay]:
        """A relay that goes on in another thread."""
        stop = Stop()
        relay = self.relay(poll_s=poll_s)

        def run() -> None:
            with contextlib.closing(relay):
                relay.run(stop)

        thread = threading.Thread(target=run)
        thread.start()
        try:
            yield relay
        finally:
            stop.stop()
            thread.join()
            stop.close()

    def execute(self, statement: str) -> list[Any]:
        """Run a statement of SQL that both understand, and commit."""
        with contextlib.closing(self.connect()) as connection:
            cursor = connection.cursor()
            cursor.execute(statement)
            found = cursor.fetchall() if cursor.description else []
            connection.commit()
        return found


@pytest.fixture
def settings(runtime_dir: Path) -> Iterator[Settings]:
    """A daemon."""
    with running(runtime_dir / "s") as settings:
        yield settings


@pytest.fixture
def queue(settings: Settings) -> Iterator[opsq.Queue]:
    """A client of it."""
    with opsq.connect(settings.socket) as queue:
        yield queue


@pytest.fixture(params=["sqlite", "postgresql"])
def base(request: pytest.FixtureRequest, runtime_dir: Path, settings: Settings) -> Base:
    """A database of each kind."""
    return request.getfixturevalue(f"{request.param}_base")


@pytest.fixture
def sqlite_base(runtime_dir: Path, settings: Settings) -> Base:
    """A file of SQLite."""
    path = str(runtime_dir / "shop.db")
    made = Base(lambda: sqlite3.connect(path), lambda: SqliteOutbox(path), settings)
    with contextlib.closing(made.connect()) as connection:
        connection.execute("PRAGMA journal_mode = WAL")
        connection.executescript(opsq.outbox.ddl("sqlite"))
    return made


@pytest.fixture
def postgresql_base(request: pytest.FixtureRequest, settings: Settings) -> Base:
    """A database of PostgreSQL."""
    url = request.getfixturevalue("postgresql").make_database()
    made = Base(lambda: psycopg.connect(url), lambda: PostgresqlOutbox(url), settings)
    made.execute(opsq.outbox.ddl("postgresql"))
    return made

"""Relays, consumers, the daemon and PostgreSQL are killed at random: each order arrives once and is done once.

`OPSQ_TEST_OUTBOX_ROWS=100000` makes a campaign of it.
"""

from __future__ import annotations

import contextlib
import os
import random
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest

import opsq
from daemons import end, kill, settings_of
from opsq import outbox
from opsq.daemon import lifecycle
from opsq.settings import Settings
from opsq.store import integrity
from opsq.store.database import Database
from postgresql import Cluster, running
from waiting import wait_until

ROWS = int(os.environ.get("OPSQ_TEST_OUTBOX_ROWS", "1000"))
KILLS = min(20 + ROWS // 500, 300)
WRITERS, RELAYS, CONSUMERS, KEYS = 3, 3, 2, 5
RETRIES: Any = {"max_attempts": 1_000_000, "max_lost": 1_000_000, "backoff": (0.0, 1.0, 0.0)}
"""No chunk is dead, however often its consumer is killed."""
DEADLINE_S = 120 + ROWS / 20
TABLES = """
    CREATE TABLE orders (
        id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
        key int, n int, done int NOT NULL DEFAULT 0, submission bigint
    );
    CREATE TABLE counts (key int PRIMARY KEY, n int NOT NULL);
"""
CONSUMER = """
import sys
import psycopg
import opsq

url, address = sys.argv[1:]
connection = None


def work(chunk):
    global connection
    if connection is None or connection.closed:
        connection = psycopg.connect(url)
    with connection.transaction():
        if opsq.outbox.completed(connection, chunk) is None:
            order_id = int(chunk.data[:20])
            connection.execute(
                "UPDATE orders SET done = done + 1, submission = %s WHERE id = %s", (chunk.submission_id, order_id)
            )
            opsq.outbox.complete(connection, chunk, b"done")
    return b"done"


with opsq.connect(address, reconnect_s=None) as queue, queue.consumer("OldestFirst") as consumer:
    consumer.run_each_chunk(work, until_empty=False)
"""


class Writer(threading.Thread):
    """Places orders, a few in a transaction, and takes some back; stops after so many transactions."""

    def __init__(self, url: str, seed: int, transactions: int) -> None:
        super().__init__(daemon=True)
        self._url, self._rng, self._left = url, random.Random(seed), transactions
        self.written_count = 0

    def run(self) -> None:
        """Place orders, also over deaths of the database: which of them committed, the table of orders tells."""
        while self._left > 0:
            with contextlib.suppress(psycopg.Error), psycopg.connect(self._url, connect_timeout=5) as connection:
                while self._left > 0:
                    self._left -= 1
                    for _ in range(self._rng.randrange(1, 5)):
                        self._place(connection)
                    connection.rollback() if self._rng.random() < 0.1 else connection.commit()

    def stop(self) -> None:
        """Place no more."""
        self._left = 0

    def _place(self, connection: psycopg.Connection[Any]) -> None:
        key = self._rng.randrange(2 * KEYS)
        n = None
        if key < KEYS:  # these are in order
            found = connection.execute("UPDATE counts SET n = n + 1 WHERE key = %s RETURNING n", (key,)).fetchone()
            assert found is not None
            [n] = found
        found = connection.execute("INSERT INTO orders (key, n) VALUES (%s, %s) RETURNING id", (key, n)).fetchone()
        assert found is not None
        size = 20_000 if self._rng.random() < 0.02 else 20  # the first go through the store
        chunk = (b"%d" % found[0]).ljust(size)
        order_key = None if n is None else f"key {key}"
        outbox.submit(connection, [chunk], order_key=order_key, **RETRIES)
        self.written_count += 1


class Victims:
    """Processes that are started again when they are dead; consumers also end by themselves while no daemon runs."""

    def __init__(self, relay: list[str], consumer: list[str], log: Path) -> None:
        programs = self._programs = [relay] * RELAYS + [consumer] * CONSUMERS
        self._log = log.open("ab")
        self._running: list[subprocess.Popen[bytes] | None] = [None] * len(programs)

    def start(self) -> None:
        """Start those that do not run."""
        for number, process in enumerate(self._running):
            if process is None or process.poll() is not None:
                said = self._log if number < RELAYS else subprocess.DEVNULL
                self._running[number] = subprocess.Popen(
                    self._programs[number], stdin=subprocess.DEVNULL, stdout=said, stderr=said
                )

    def kill(self, number: int) -> None:
        """Kill one of them."""
        process = self._running[number]
        if process is not None:
            process.kill()
            process.wait()

    def close(self) -> None:
        """Kill all of them."""
        for number in range(len(self._programs)):
            self.kill(number)
        self._log.close()


@pytest.fixture
def cluster(runtime_dir: Path) -> Iterator[Cluster]:
    """A server of PostgreSQL to kill."""
    folder = runtime_dir / "p"
    folder.mkdir()
    runtime_dir.chmod(0o711)
    with running(folder) as cluster:
        yield cluster


@pytest.mark.timeout(DEADLINE_S + 600)
def test_each_order_arrives_once_and_is_done_once_whatever_is_killed(runtime_dir: Path, cluster: Cluster) -> None:
    rng = random.Random(1)
    url = cluster.make_database()
    with psycopg.connect(url) as connection:
        connection.execute(TABLES + outbox.ddl("postgresql"))
        for key in range(KEYS):
            connection.execute("INSERT INTO counts VALUES (%s, 0)", (key,))
    settings = settings_of(runtime_dir / "s")
    lifecycle.start(settings)
    opsq_words = [sys.executable, "-m", "opsq"]
    relay = [*opsq_words, "relay", url, "--socket", settings.socket, "--poll", "1s", "--batch", "50"]
    consumer = [sys.executable, "-c", CONSUMER, url, settings.socket]
    victims = Victims(relay, consumer, runtime_dir / "log")
    # A tenth is rolled back, a transaction has 2.5 orders.
    writers = [Writer(url, seed, ROWS // WRITERS * 10 // 25 * 10 // 9 + 1) for seed in range(WRITERS)]
    try:
        victims.start()
        for writer in writers:
            writer.start()
        _kill_often(rng, cluster, settings, victims, lambda: sum(writer.written_count for writer in writers))
        for writer in writers:
            writer.join()
        wait_until(lambda: _is_done(url, victims), DEADLINE_S, "all orders are done and all rows handed over")
        victims.close()
        assert "Traceback" not in (runtime_dir / "log").read_text()
        _check(url, settings)
    finally:
        for writer in writers:
            writer.stop()
        victims.close()
        end(settings)


def _kill_often(
    rng: random.Random, cluster: Cluster, settings: Settings, victims: Victims, written: Callable[[], int]
) -> None:
    """Kill one thing after the other while orders are placed, and have each come back."""
    for number in range(KILLS):
        # Up to the last transactions: those that are under way may be all that is left.
        wait_until(lambda number=number: written() >= ROWS * number / KILLS * 0.95, DEADLINE_S, "orders are placed")
        choice = rng.randrange(8)
        if choice == 0:
            cluster.kill()
            cluster.start()
        elif choice <= 2:
            kill(settings)
            lifecycle.start(settings)
        else:
            victims.kill(rng.randrange(RELAYS + CONSUMERS))
        victims.start()


def _is_done(url: str, victims: Victims) -> bool:
    victims.start()
    with psycopg.connect(url) as connection:
        found = connection.execute(
            """
            SELECT (SELECT count(*) FROM orders WHERE done = 0) + (SELECT count(*) FROM opsq_outbox)
                 + (SELECT count(*) FROM opsq_outbox_completed WHERE told_at IS NULL)
            """
        ).fetchone()
    return found == (0,)


def _check(url: str, settings: Settings) -> None:
    with psycopg.connect(url) as connection:
        orders = connection.execute("SELECT id, key, n, done, submission FROM orders ORDER BY id").fetchall()
        aside = connection.execute("SELECT count(*) FROM opsq_outbox_completed WHERE refusal IS NOT NULL").fetchone()
    assert len(orders) > ROWS // 2
    assert aside == (0,)
    assert [order for order in orders if order[3] != 1] == []
    for key in range(KEYS):
        in_order = sorted((n, submission) for _, of_key, n, _, submission in orders if of_key == key)
        assert [submission for _, submission in in_order] == sorted(submission for _, submission in in_order)
    with opsq.connect(settings.socket) as queue:
        states = queue.status().states
    assert states["completed"] == len(orders)  # none twice, and none of a transaction that was rolled back
    assert sum(states.values()) == len(orders)
    kill(settings)
    database = Database.open(Path(settings.database_path))
    try:
        assert integrity.problems(database) == []
    finally:
        database.close()

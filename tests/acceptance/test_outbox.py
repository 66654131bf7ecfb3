"""Orders in a database, placed and worked on as the README and examples/outbox.py do it: each once, whatever is killed.

It must not look into an outbox: what arrives, and what is in the user's own table, is what counts.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sqlite3
import subprocess
import sys
from pathlib import Path

import psycopg
import pytest

import readme
from opsq import outbox
from waiting import wait_until

EXAMPLE = str(Path(__file__).parents[2] / "examples" / "outbox.py")
ITEMS = [f"item-{n}" for n in range(30)]


@pytest.fixture(params=["sqlite", "postgresql"])
def shop(request, queue):
    """The words in front of a command of the example, the URL for a relay, and what reads the orders."""
    if request.param == "sqlite":
        words, url, dial = [], "sqlite:shop.db", lambda: sqlite3.connect(queue.folder / "shop.db")
    else:
        url = request.getfixturevalue("postgresql").make_database()
        words, dial = [url], lambda: psycopg.connect(url)

    def orders() -> list[tuple[str, int]]:
        with contextlib.closing(dial()) as connection:
            cursor = connection.cursor()
            cursor.execute("SELECT item, packed FROM orders ORDER BY id")
            return cursor.fetchall()

    return words, url, orders


def python(queue, *words, **variables):
    """Run a Python program in the folder of the test."""
    done = subprocess.run(
        [sys.executable, *words], env=queue.environ | variables, cwd=queue.folder, capture_output=True, text=True
    )
    assert (done.returncode, done.stderr) == (0, "")


def test_orders_are_placed_and_each_is_packed_once(queue, shop):
    words, url, orders = shop
    python(queue, EXAMPLE, *words, "make")
    python(queue, EXAMPLE, *words, "place", *ITEMS)
    assert queue.ok("relay", url, "--once", "--json").json["submitted"] == len(ITEMS)
    python(queue, EXAMPLE, *words, "work")
    assert orders() == [(item, 1) for item in ITEMS]
    assert queue.ok("relay", url, "--once", "--json").json["completed"] == len(ITEMS)


def test_consumer_that_is_killed_after_its_commit_packs_nothing_twice(queue, shop):
    """The order is packed and the daemon does not know: it hands the chunk out again, or the relay tells it."""
    words, url, orders = shop
    python(queue, EXAMPLE, *words, "make")
    python(queue, EXAMPLE, *words, "place", *ITEMS)
    queue.ok("relay", url, "--once")
    kill_after_commit = f"""
import os, signal, sys
sys.path.insert(0, {os.path.dirname(EXAMPLE)!r})
import opsq, outbox
with opsq.connect() as queue:
    for chunk in queue.consume("OldestFirst"):
        outbox.pack({(words or ["shop.db"])[0]!r}, chunk)
        os.kill(os.getpid(), signal.SIGKILL)
"""
    for _ in range(2):
        done = subprocess.run([sys.executable, "-c", kill_after_commit], env=queue.environ, cwd=queue.folder)
        assert done.returncode == -signal.SIGKILL
        wait_until(lambda: queue.ok("status", "--json").json["total"]["reserved"] == 0)
    assert sum(packed for _, packed in orders()) == 1  # the second had the same chunk
    assert queue.ok("relay", url, "--once", "--json").json["completed"] == 1
    python(queue, EXAMPLE, *words, "work")
    assert orders() == [(item, 1) for item in ITEMS]


def test_readme_submits_with_an_order(queue):
    with contextlib.closing(sqlite3.connect(queue.folder / "shop.db")) as connection:
        connection.executescript("CREATE TABLE orders (id, item);" + outbox.ddl("sqlite"))
    python(queue, "-c", readme.PYTHON_OUTBOX)
    queue.ok("relay", "sqlite:shop.db", "--once")
    assert queue.ok("consume", "--until-empty", "-s", "SelectOnly(kind=order)", "--", "cat").status == 0
    [found] = queue.ok("list", "--json").json["submissions"]
    assert queue.ok("results", found["submission_id"]).out == b"order 17"

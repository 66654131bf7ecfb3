"""opsq relay: rows of an outbox become submissions."""

import contextlib
import signal
import sqlite3
import subprocess
import sys
from pathlib import Path

import psycopg
import pytest

from opsq import outbox
from waiting import wait_until


@pytest.fixture
def shop(queue):
    """A file with an outbox."""
    path = queue.folder / "shop.db"
    with contextlib.closing(sqlite3.connect(path)) as connection:
        connection.executescript(queue.ok("outbox", "ddl", "--for", "sqlite").text)
    return path


def write(path, *chunks, **options):
    with contextlib.closing(sqlite3.connect(path)) as connection:
        for chunk in chunks:
            outbox.submit(connection, [chunk], **options)
        connection.commit()


def test_rows_are_handed_over_and_worked_on(queue, shop):
    write(shop, b"a\n", b"b\n", metadata={"tenant": "acme"})
    ran = queue.ok("relay", "sqlite:shop.db", "--once", "--json")
    expected = {"submitted": 2, "completed": 0, "aside": 0, "rows": [], "left": {"waiting": 0, "aside": 0}}
    assert ran.json == expected | {"error": None}
    queue.ok("consume", "--until-empty", "--", "cat")
    states = [each["state"] for each in queue.ok("list", "-m", "tenant=acme", "--json").json["submissions"]]
    assert states == ["completed"] * 2


def test_completion_is_handed_over(queue, shop):
    submission = queue.submit_lines(1)
    handle = queue.reserve()
    with contextlib.closing(sqlite3.connect(shop)) as connection:
        outbox.complete(connection, handle, b"result")
        connection.commit()
    assert queue.ok("relay", f"sqlite:///{shop}", "--once", "--json").json["completed"] == 1
    assert queue.ok("results", submission).out == b"result"


def test_row_that_is_refused_is_reported_and_set_aside(queue, shop):
    write(shop, b"a", metadata={"submission": 1})
    write(shop, b"b")
    ran = queue("relay", "sqlite:shop.db", "--once", "--json")
    assert ran.status == 1
    assert "row 1 of opsq_outbox was set aside: The metadata key 'submission' is built in" in ran.err
    assert (ran.json["submitted"], ran.json["aside"], ran.json["error"]["code"]) == (1, 1, "work_failed")
    assert ran.json["rows"][0]["seq"] == 1
    assert ran.json["error"]["hint"] == "Once the reason is gone: `opsq relay --retry URL`."
    assert queue("relay", "sqlite:shop.db", "--once").status == 0
    assert queue("relay", "sqlite:shop.db", "--once", "--retry").status == 1


def test_relay_moves_what_comes_until_it_is_told_to_end(queue, shop):
    with queue.running("relay", "sqlite:shop.db", "--poll", "1h", "--json") as relay:
        for count in (1, 2):
            write(shop, b"a")
            wait_until(lambda count=count: len(queue.ok("list", "--json").json["submissions"]) == count)
        relay.send_signal(signal.SIGTERM)
        out, err = relay.communicate(timeout=60)
    assert (relay.returncode, err) == (0, b"")
    assert b'"submitted":2' in out


def test_relay_may_be_started_before_the_daemon(opsq, tmp_path):
    path = opsq.folder / "shop.db"
    with contextlib.closing(sqlite3.connect(path)) as connection:
        connection.executescript(outbox.ddl("sqlite"))
    write(path, b"a")
    with opsq.running("relay", "sqlite:shop.db") as relay:
        assert b"Trying again until it works" in relay.stderr.readline()
        opsq.ok("start")
        wait_until(lambda: len(opsq.ok("list", "--json").json["submissions"]) == 1)
        assert relay.stderr.readline() == b"opsq: connected again.\n"
        relay.terminate()


def test_rows_come_from_postgresql(queue, postgresql):
    url = postgresql.make_database()
    with psycopg.connect(url) as connection:
        connection.execute(outbox.ddl("postgresql"))
        outbox.submit(connection, [b"a"])
    assert queue.ok("relay", url, "--once", "--batch", "10", "--json").json["submitted"] == 1


@pytest.mark.parametrize(
    ("url", "status", "complaint"),
    [
        ("mysql://localhost/shop", 2, "postgresql://… or sqlite:PATH"),
        ("text.db", 2, "Then write sqlite:text.db"),
        ("sqlite:missing.db", 2, "missing.db is not there"),
        ("sqlite:empty.db", 2, "no outbox in empty.db"),
        ("sqlite:text.db", 2, "file is not a database"),
        ("postgresql://localhost/shop?nonsense=1", 2, "no URL of a PostgreSQL database"),
        ("postgresql://nobody@/shop?host=/nowhere", 4, "cannot be reached"),
    ],
)
def test_database_that_cannot_be_used_is_named(queue, url, status, complaint):
    queue.file("empty.db", b"")
    queue.file("text.db", b"no database " * 100)
    ran = queue("relay", url, "--once")
    assert ran.status == status, ran.err
    assert complaint in ran.err


def test_without_the_driver_of_postgresql_it_says_how_to_get_it(queue, tmp_path):
    code = "import sys; sys.modules['psycopg'] = None; from opsq.__main__ import main; sys.exit(main())"
    ran = subprocess.run(
        [sys.executable, "-c", code, "relay", "postgresql:///shop"],
        env=queue.environ,
        capture_output=True,
        text=True,
        cwd=Path(tmp_path),
    )
    assert (ran.returncode, "pip install 'opsq[postgresql]'" in ran.stderr) == (2, True), ran.stderr

"""The file of `opsq notify`: an id stays that of its delivery, and a file of an older opsq is taken on."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import apsw
import pytest

from opsq.store.deliveries import Deliveries, NewDelivery

SCHEMA_1 = """
CREATE TABLE progress (id INTEGER PRIMARY KEY CHECK (id = 1), cursor INTEGER, at INTEGER NOT NULL, origin TEXT NOT NULL)
    STRICT;
CREATE TABLE delivery (
    id INTEGER PRIMARY KEY, target TEXT NOT NULL, subject TEXT NOT NULL, message TEXT NOT NULL, at INTEGER NOT NULL,
    body BLOB NOT NULL, attempts INTEGER NOT NULL, due_at INTEGER NOT NULL, dead_at INTEGER, error TEXT NOT NULL
) STRICT;
CREATE INDEX delivery_waiting ON delivery (id) WHERE dead_at IS NULL;
CREATE INDEX delivery_dead ON delivery (id) WHERE dead_at IS NOT NULL;
INSERT INTO progress VALUES (1, 17, 1000, 'abc');
INSERT INTO delivery VALUES (4, 'on.failed', 's', 'm4', 1000, x'626f6479', 1, 2000, NULL, 'refused');
INSERT INTO delivery VALUES (7, 'webhook.ops', 's', 'm7', 1000, x'626f6479', 3, 2000, 3000, 'gone');
PRAGMA user_version = 1;
"""


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "notify.sqlite"


@pytest.fixture
def file(path: Path) -> Iterator[Deliveries]:
    file = Deliveries(path)
    yield file
    file.close()


def taken(file: Deliveries, message: str) -> int:
    [one] = file.take(1, 1000, [NewDelivery("webhook.ops", "s", message, 1000, b"{}")], 1000)
    return one.id


def test_id_of_a_delivery_never_becomes_that_of_another(file: Deliveries) -> None:
    """Whoever drops what died under it must not drop what came later."""
    first = taken(file, "first")
    file.bury(first, 3, 2000, "gone")
    assert file.retry([first]) == 1
    file.delivered(first)
    second = taken(file, "second")
    file.bury(second, 3, 2000, "gone")
    assert file.drop([first]) == 0
    assert [dead.id for dead in file.dead()] == [second]


def test_file_of_the_first_schema_keeps_what_is_in_it(path: Path) -> None:
    connection = apsw.Connection(str(path))
    connection.execute(SCHEMA_1)
    connection.close()
    for _ in range(2):
        file = Deliveries(path)
        assert file.progress() == (17, 1000, "abc")
        assert [tuple(one) for one in file.waiting()] == [(4, "on.failed", "s", 1, 2000)]
        assert [(dead.id, dead.attempts, dead.dead_at, dead.error) for dead in file.dead()] == [(7, 3, 3000, "gone")]
        file.close()
    file = Deliveries(path)
    assert file.drop(None) == 1
    assert taken(file, "next") == 8
    file.close()

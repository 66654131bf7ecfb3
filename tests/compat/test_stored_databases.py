"""Files that older versions wrote open in this one, and say what they said then."""

from __future__ import annotations

import shutil
from ast import literal_eval
from collections.abc import Iterator
from pathlib import Path

import apsw
import pytest

from compat.made import FILE, STATE
from opsq.store.database import migrations
from opsq.wire import messages as m
from unit.model.rig import Rig, Ticket


@pytest.fixture
def rig(runtime_dir: Path) -> Iterator[Rig]:
    """An engine on a copy of the stored file, an hour later."""
    place = runtime_dir / "stored"
    place.mkdir()
    shutil.copy(FILE, place / "opsq.sqlite")
    rig = Rig(runtime_dir)
    rig.close()
    rig.pass_time(3600)
    rig._open(place)
    yield rig
    rig.settle()
    assert rig.broken_rules() == []
    rig.close()


def stored() -> list[str]:
    return STATE.read_text().splitlines()


def test_database_of_schema_1_is_backed_up_migrated_and_says_the_same(rig: Rig) -> None:
    assert rig.database.reader.execute("PRAGMA user_version").get == len(migrations())
    [backup] = rig.path.parent.glob("*.bak")
    older = apsw.Connection(str(backup), flags=apsw.SQLITE_OPEN_READONLY)
    assert older.execute("PRAGMA user_version").get == 1
    older.close()
    assert rig.broken_rules() == []
    assert list(rig.dump()) == stored()[:-1]


def test_database_of_schema_1_goes_on_where_it_stopped(rig: Rig) -> None:
    """A handle given out then is good now; what was finished is not offered; the rest comes in its order."""
    leased = Ticket(*literal_eval(stored()[-1]))
    peer = rig.connect()
    assert rig.complete(peer, leased.held()) == []
    oldest = min(int(str(row[0])) for row in rig.rows("SELECT id FROM submission"))
    handed = [index for ticket in rig.reserve(peer, 500) if ticket.submission_id == oldest for index in ticket.indexes]
    assert sorted(handed) == [4, *range(6, 64), *range(128, 200)]


def test_database_of_schema_1_finds_repeated_requests(rig: Rig) -> None:
    again = m.NewSubmission((1).to_bytes(16, "big"), 200, b"parts")
    unique = m.NewSubmission(b"another request!", 1, unique_key="nightly")
    created = rig.only(rig.connect(), m.Submit(1, [again, unique]), m.Submitted).created
    ids = sorted(int(str(row[0])) for row in rig.rows("SELECT id FROM submission"))
    assert created == [m.Created(ids[0], False), m.Created(ids[-1], False)]

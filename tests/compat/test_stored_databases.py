"""Files that older versions wrote open in this one, and say what they said then."""

from __future__ import annotations

import shutil
from ast import literal_eval
from collections.abc import Iterator
from pathlib import Path

import apsw
import pytest

from compat.made import file_of, state_of
from opsq.store.database_file import migrations
from opsq.wire import messages as m
from unit.model.rig import Rig, Ticket

SCHEMAS = (1, 3)


@pytest.fixture(params=SCHEMAS)
def schema(request: pytest.FixtureRequest) -> int:
    """The schema of the stored file."""
    return int(request.param)


@pytest.fixture
def rig(runtime_dir: Path, schema: int) -> Iterator[Rig]:
    """An engine on a copy of the stored file, an hour later."""
    place = runtime_dir / "stored"
    place.mkdir()
    shutil.copy(file_of(schema), place / "opsq.sqlite")
    rig = Rig(runtime_dir)
    rig.close()
    rig.pass_time(3600)
    rig._open(place)
    yield rig
    rig.settle()
    assert rig.broken_rules() == []
    rig.close()


def stored(schema: int) -> list[str]:
    return state_of(schema).read_text().splitlines()


def test_stored_database_is_backed_up_migrated_and_says_the_same(rig: Rig, schema: int) -> None:
    """And perhaps more: fields that are new stand behind those that were there."""
    assert rig.database.reader.execute("PRAGMA user_version").get == len(migrations())
    [backup] = rig.path.parent.glob("*.bak")
    older = apsw.Connection(str(backup), flags=apsw.SQLITE_OPEN_READONLY)
    assert older.execute("PRAGMA user_version").get == schema
    older.close()
    assert rig.broken_rules() == []
    for now, then in zip(rig.dump(), stored(schema)[:-1], strict=True):
        assert now.startswith(then.removesuffix(")"))


def test_stored_database_goes_on_where_it_stopped(rig: Rig, schema: int) -> None:
    """A handle given out then is good now; what was finished is not offered; the rest comes in its order."""
    leased = Ticket(*literal_eval(stored(schema)[-1]))
    peer = rig.connect()
    assert rig.complete(peer, leased.held()) == []
    oldest = min(int(str(row[0])) for row in rig.rows("SELECT id FROM submission"))
    if schema >= 3:
        rig.ask(peer, m.Unlimit(next(rig.ids), "tenant", "a"))
    handed = [index for ticket in rig.reserve(peer, 500) if ticket.submission_id == oldest for index in ticket.indexes]
    assert sorted(handed) == [4, *range(6, 64), *range(128, 200)]


def test_stored_database_finds_repeated_requests_and_unique_keys(rig: Rig) -> None:
    again = m.NewSubmission((1).to_bytes(16, "big"), 200, b"parts")
    unique = m.NewSubmission(b"another request!", 1, unique_key="nightly")
    created = rig.only(rig.connect(), m.Submit(1, [again, unique]), m.Submitted).created
    ids = sorted(int(str(row[0])) for row in rig.rows("SELECT id FROM submission"))
    assert created == [m.Created(ids[0], False), m.Created(ids[-1], False)]
    assert rig.show(ids[-1]).holds_unique_key


@pytest.mark.parametrize("schema", [3])
def test_stored_rules_hold(rig: Rig) -> None:
    state = rig.only(rig.connect(), m.ShowRules(1), m.RulesState)
    assert [pause.metadata for pause in state.pauses] == [{"tenant": "b"}]
    assert [(limit.key, limit.value, limit.rate_per_s) for limit in state.limits] == [("tenant", "a", 5.0)]
    assert [(weight.key, weight.value, weight.weight) for weight in state.weights] == [("tenant", "a", 3.0)]
    assert rig.rows("SELECT mask FROM dropped") == [(4,)]


def test_old_database_takes_events_that_it_did_not_know(rig: Rig) -> None:
    """Its history was bound to the events of its time."""
    peer = rig.connect()
    [ticket] = rig.reserve(peer)
    rig.fail(peer, ticket.held(), is_final=True)
    dead = rig.only(peer, m.Dead(1), m.DeadChunks).chunks
    assert rig.only(rig.connect(), m.Drop(2, None), m.Changed).count == len(dead)
    at = rig.now.wall
    rig.fold()
    events = rig.only(rig.connect(), m.History(3, m.HistoryFilter(events=["dropped"], from_at=at)), m.HistoryRows).rows
    assert sum(event.mask.bit_count() for event in events) == len(dead)
    assert rig.database.reader.execute("PRAGMA integrity_check").get == "ok"

"""Files that older versions wrote open in this one, and say what they said then."""

from __future__ import annotations

import itertools
import shutil
from ast import literal_eval
from collections.abc import Iterator
from pathlib import Path

import apsw
import pytest

from compat.made import SUBMITTER, WITHDRAWN, file_of, state_of
from opsq.errors import Conflict, Moved
from opsq.store.database_file import migrations
from opsq.wire import messages as m
from unit.model.rig import Rig, Ticket

SCHEMAS = range(1, len(migrations()))
"""Every schema before the newest: a migration that is added needs the stored file of the one that it starts from."""


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


def tables(connection: apsw.Connection) -> set[tuple[str, str]]:
    """Tables and indexes with their SQL, white space aside."""
    rows = connection.execute("SELECT name, ifnull(sql, '') FROM sqlite_schema")
    return {(str(name), "".join(str(sql).split())) for name, sql in rows}


@pytest.mark.parametrize("number", SCHEMAS)
def test_stored_database_has_the_schema_that_its_migration_starts_from(number: int) -> None:
    path = f"file:{file_of(number)}?immutable=1"
    stored = apsw.Connection(path, flags=apsw.SQLITE_OPEN_READONLY | apsw.SQLITE_OPEN_URI)
    fresh = apsw.Connection(":memory:")
    for script in migrations()[:number]:
        fresh.execute(script)
    assert stored.execute("PRAGMA user_version").get == number
    assert tables(stored) == tables(fresh)


def stored(schema: int) -> list[str]:
    return state_of(schema).read_text().splitlines()


def test_stored_database_is_backed_up_migrated_and_says_the_same(rig: Rig, schema: int) -> None:
    """And perhaps more: fields that are new stand behind those that were there.

    Older ones counted a chunk in back-off only once they had read its block.
    """
    assert rig.database.reader.execute("PRAGMA user_version").get == len(migrations())
    [backup] = rig.path.parent.glob("*.bak")
    older = apsw.Connection(str(backup), flags=apsw.SQLITE_OPEN_READONLY)
    assert older.execute("PRAGMA user_version").get == schema
    older.close()
    assert rig.broken_rules() == []
    for now, then in zip(rig.dump(), stored(schema)[:-1], strict=True):
        known = then.removesuffix(")").replace("delayed_count=1", "delayed_count=0")
        assert now.replace("delayed_count=1", "delayed_count=0").startswith(known)


def test_stored_database_goes_on_where_it_stopped(rig: Rig, schema: int) -> None:
    """A handle given out then is good now; what was finished is not offered; the rest comes in its order."""
    leased = Ticket(*literal_eval(stored(schema)[-1]))
    peer = rig.connect()
    assert rig.complete(peer, leased.held()) == []
    oldest = min(int(str(row[0])) for row in rig.rows("SELECT id FROM submission"))
    if schema >= 2:
        rig.ask(peer, m.Unlimit(next(rig.ids), "tenant", "a"))
    handed = [index for ticket in rig.reserve(peer, 500) if ticket.submission_id == oldest for index in ticket.indexes]
    assert sorted(handed) == [4, *range(6, 64), *range(128, 200)]


def test_stored_database_finds_repeated_requests_and_unique_keys(rig: Rig) -> None:
    again = m.NewSubmission((1).to_bytes(16, "big"), 200, b"parts")
    unique = m.NewSubmission(b"another request!", 1, unique_key="nightly")
    created = rig.only(rig.connect(), m.Submit(1, [again, unique]), m.Submitted).created
    ids = sorted(int(str(row[0])) for row in rig.rows("SELECT id FROM submission"))
    [[holder]] = rig.rows("SELECT id FROM submission WHERE unique_key = 'nightly'")
    assert created == [m.Created(ids[0], False), m.Created(int(str(holder)), False)]
    assert rig.show(int(str(holder))).holds_unique_key


@pytest.mark.parametrize("schema", SCHEMAS[1:], indirect=True)
def test_stored_rules_hold(rig: Rig) -> None:
    state = rig.only(rig.connect(), m.ShowRules(1), m.RulesState)
    assert [pause.metadata for pause in state.pauses] == [{"tenant": "b"}]
    assert [(limit.key, limit.value, limit.rate_per_s) for limit in state.limits] == [("tenant", "a", 5.0)]
    assert [(weight.key, weight.value, weight.weight) for weight in state.weights] == [("tenant", "a", 3.0)]


@pytest.mark.parametrize("schema", SCHEMAS[2:], indirect=True)
def test_stored_chunks_that_were_given_up_stay_so(rig: Rig) -> None:
    assert rig.rows("SELECT mask FROM dropped") == [(4,)]


@pytest.mark.parametrize("schema", SCHEMAS[3:], indirect=True)
def test_stored_keys_make_nothing_again(rig: Rig) -> None:
    once = m.NewSubmission(b"another request!", 1, idempotency_key="once")
    [created] = rig.only(rig.connect(), m.Submit(1, [once]), m.Submitted).created
    assert not created.is_new
    with pytest.raises(Conflict, match="withdrawn"):
        rig.only(rig.connect(), m.Submit(2, [m.NewSubmission(WITHDRAWN, 1)]), m.Submitted)


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


@pytest.mark.parametrize("schema", SCHEMAS[4:], indirect=True)
def test_stored_key_is_held_until_the_start(rig: Rig) -> None:
    again = m.NewSubmission(b"another request!", 1, unique_key="first", unique_until_start=True)
    [created] = rig.only(rig.connect(), m.Submit(1, [again]), m.Submitted).created
    assert not created.is_new


def submitters(rig: Rig) -> set[int | None]:
    ids = [int(str(row[0])) for row in rig.rows("SELECT id FROM submission")]
    return {one.submitter for one in rig.only(rig.connect(), m.Describe(1, ids), m.Described).submissions}


@pytest.mark.parametrize("schema", SCHEMAS[:5], indirect=True)
def test_nobody_is_said_to_have_submitted_what_is_stored(rig: Rig) -> None:
    """So its files in place are read below the roots of a consumer only."""
    assert submitters(rig) == {None}


@pytest.mark.parametrize("schema", SCHEMAS[5:], indirect=True)
def test_stored_submitter_is_still_known(rig: Rig) -> None:
    assert submitters(rig) == {None, SUBMITTER}


def titles(rig: Rig) -> set[tuple[str | None, str | None, str | None]]:
    stored = rig.only(rig.connect(), m.List(1), m.Listed).submissions
    return {(one.title, one.submitted_by, one.submitted_from) for one in stored}


@pytest.mark.parametrize("schema", SCHEMAS[:6], indirect=True)
def test_old_database_has_no_titles_and_takes_new_ones(rig: Rig) -> None:
    assert titles(rig) == {(None, None, None)}
    peer = rig.connect("producer")
    peer.user, peer.place = "ada", "build7"
    titled = m.NewSubmission(b"another request!", 1, title="Nightly import")
    [created] = rig.only(peer, m.Submit(2, [titled]), m.Submitted).created
    new = rig.show(created.submission_id)
    assert (new.title, new.submitted_by, new.submitted_from) == ("Nightly import", "ada", "build7")


@pytest.mark.parametrize("schema", SCHEMAS[6:], indirect=True)
def test_stored_title_is_still_known(rig: Rig) -> None:
    assert titles(rig) == {(None, None, None), ("Nightly import", "ada", "build7")}


@pytest.mark.parametrize("schema", SCHEMAS[:7], indirect=True)
def test_old_database_has_no_schedules_and_takes_new_ones(rig: Rig) -> None:
    assert rig.only(rig.connect(), m.ShowSchedules(1), m.Schedules).schedules == []
    new = m.Schedule("nightly", "every 1m", m.NewSubmission(bytes(16), 0))
    rig.only(rig.connect(), m.PutSchedule(2, new), m.Changed)
    rig.advance(61)
    [stored] = rig.only(rig.connect(), m.ShowSchedules(3), m.Schedules).schedules
    assert (stored.schedule, stored.fired_count) == (new, 1)


@pytest.mark.parametrize("schema", SCHEMAS[7:], indirect=True)
def test_stored_schedule_is_still_there_and_paused(rig: Rig) -> None:
    [stored] = rig.only(rig.connect(), m.ShowSchedules(1), m.Schedules).schedules
    assert (stored.schedule.name, stored.paused_at is not None) == ("nightly", True)


@pytest.mark.parametrize("schema", SCHEMAS[:8], indirect=True)
def test_old_database_has_no_events_and_takes_new_ones(rig: Rig) -> None:
    assert rig.only(rig.connect(), m.Events(1), m.EventRows).events == []
    rig.only(rig.connect(), m.Pause(2, {"tenant": "new"}), m.Changed)
    [event] = rig.only(rig.connect(), m.Events(3), m.EventRows).events
    assert (event.seq, event.kind, event.metadata) == (1, "paused", {"tenant": "new"})


@pytest.mark.parametrize("schema", SCHEMAS[8:], indirect=True)
def test_stored_events_are_still_told(rig: Rig) -> None:
    [*_, paused, resumed] = rig.only(rig.connect(), m.Events(1), m.EventRows).events
    assert [(one.kind, one.metadata) for one in (paused, resumed)] == [
        ("paused", {"tenant": "c"}),
        ("resumed", {"tenant": "c"}),
    ]


def test_what_is_stored_can_be_waited_for(rig: Rig) -> None:
    rig.keys = itertools.count(1000)
    states = {one.submission_id: one.state for one in rig.only(rig.connect(), m.List(1), m.Listed).submissions}
    for state in ("scheduled", "open"):
        waited = next(one for one, found in states.items() if found == state)
        waiting = rig.submit(1, after=[m.Dependency(waited, "ended")])
        assert rig.show(waiting).state == "blocked"
        rig.ask(rig.connect(), m.Cancel(2, waited))
        assert rig.show(waiting).state == "open"


@pytest.mark.parametrize("schema", SCHEMAS[9:], indirect=True)
def test_stored_submission_still_waits_for_another(rig: Rig) -> None:
    found = {one.metadata.get("tenant"): one for one in rig.only(rig.connect(), m.List(1), m.Listed).submissions}
    assert found["waiting"].state == "blocked"
    rig.ask(rig.connect(), m.Cancel(2, found["awaited"].submission_id))
    assert rig.show(found["waiting"].submission_id).state == "cancelled"


@pytest.mark.parametrize("schema", SCHEMAS[10:], indirect=True)
def test_stored_keys_of_what_has_moved_are_sent_there_and_its_unique_key_is_free(rig: Rig) -> None:
    with pytest.raises(Moved, match="shard 7"):
        rig.ask(rig.connect(), m.Find(1, None, "moved once"))
    rig.keys = itertools.count(1000)
    assert rig.submit(1, unique_key="moved", metadata={"tenant": "b"})


def test_old_database_has_an_identity_of_its_own_and_what_it_has_can_move(rig: Rig, runtime_dir: Path) -> None:
    peer = rig.connect()
    moves = rig.only(peer, m.ShowMoves(1), m.Moves)
    assert len(moves.identity) == 16
    assert (moves.departed, moves.arriving) == ([], [])
    [leased] = rig.rows("SELECT count(*) FROM lease")
    assert leased == (1,)
    rig.only(peer, m.DriveMoves(4), m.Driving)
    request = m.HoldForMove(2, wait_s=0.0, with_final=True)
    rig.send(peer, request)
    rig.advance(1)
    [held] = rig.replies(peer, request.id)
    assert isinstance(held, m.HeldForMove)
    assert set(held.submission_ids) == {row[0] for row in rig.rows("SELECT id FROM submission")}
    rig.only(peer, m.CommitMove(3, held.move, bytes(16), 1, "there:7400"), m.Changed)
    for _ in range(100):
        rig.advance(1)
    assert rig.rows("SELECT id FROM submission") == []


def test_what_was_started_is_kept_over_a_restart_in_an_old_database(rig: Rig) -> None:
    rig.keys = itertools.count(1000)
    submission_id = rig.submit(2, priority=9)
    peer = rig.connect()
    [ticket] = rig.reserve(peer, 2, "CustomPriority")
    rig.start(peer, ticket, [0])
    rig.restart()
    rig.advance(31)
    found = rig.reserve(rig.connect(), 2, "CustomPriority")
    assert sorted((ticket.submission_id, ticket.attempt, ticket.indexes) for ticket in found) == [
        (submission_id, 0, [1]),
        (submission_id, 1, [0]),
    ]


def test_stored_lease_over_a_restart_is_a_loss_as_it_was_then(rig: Rig, schema: int) -> None:
    """Nobody has noted what was started."""
    leased = Ticket(*literal_eval(stored(schema)[-1]))
    rig.database.begin()
    rig.database.writer.execute("UPDATE lease SET for_restart = 1, deadline_at = 0")
    rig.database.commit()
    rig.crash()
    rig.advance(1)
    [attempts] = rig.rows("SELECT lost, mask FROM attempt WHERE submission_id = ?", leased.submission_id)
    assert attempts == (1, leased.granted)

"""How the stored databases were made: `python tests/compat/made.py SCHEMA` with `tests` on the path makes one anew.

That was needed as long as a schema was not released; afterwards its stored file must never change, and this stays as
its description.
"""

from __future__ import annotations

import shutil
import sys
import tempfile
from pathlib import Path

import apsw

from opsq.wire import messages as m
from unit.model.rig import Rig, Ticket

DATA = Path(__file__).with_name("data")
LEASED_S = 1e9
WITHDRAWN = b"withdrawn before"
SUBMITTER = 1000
HELD = "unique_key IS NOT NULL AND state IN ('scheduled', 'open')"
STEPS_BACK = {
    11: [
        "DROP INDEX moved_unique_key",
        "ALTER TABLE moved DROP COLUMN unique_key",
        "ALTER TABLE lease DROP COLUMN started",
    ],
    9: [
        "DROP TABLE dependency",
        "DROP TABLE dependency_due",
        "DROP TABLE lane_coming",
        "DROP INDEX submission_blocked",
        "DROP INDEX submission_unique_key",
        "DROP INDEX submission_expires",
        "PRAGMA writable_schema = ON",
        "UPDATE sqlite_schema SET sql = replace(sql, '''blocked'', ', '') WHERE type = 'table' AND name = 'submission'",
        "PRAGMA writable_schema = RESET",
        (
            "CREATE UNIQUE INDEX submission_unique_key ON submission (unique_key) WHERE unique_key IS NOT NULL "
            "AND unique_until != 'started' AND state IN ('scheduled', 'open')"
        ),
        (
            "CREATE INDEX submission_expires ON submission (expires_at) "
            "WHERE expires_at IS NOT NULL AND state IN ('scheduled', 'open')"
        ),
    ],
    8: ["DROP TABLE event"],
    7: ["DROP TABLE schedule"],
    6: [f"ALTER TABLE submission DROP COLUMN {name}" for name in ("title", "submitted_by", "submitted_from")],
    5: ["ALTER TABLE submission DROP COLUMN submitter"],
    4: [
        "DROP INDEX submission_unique_key",
        "ALTER TABLE submission DROP COLUMN unique_until",
        "ALTER TABLE rate_limit DROP COLUMN rate_span_s",
        "ALTER TABLE weight DROP COLUMN by_submission",
        f"CREATE UNIQUE INDEX submission_unique_key ON submission (unique_key) WHERE {HELD}",
    ],
    3: ["DROP TABLE idempotency", "DROP TABLE withdrawn"],
    2: [
        "DROP TABLE dropped",
        "ALTER TABLE submission DROP COLUMN chunks_dropped",
        "ALTER TABLE submission DROP COLUMN revived_at",
        "PRAGMA writable_schema = ON",
        "UPDATE sqlite_schema SET sql = replace(sql, ' ''dropped'',', '') WHERE type = 'table' AND name = 'history'",
        "PRAGMA writable_schema = RESET",
    ],
    1: [f"DROP TABLE {table}" for table in ("pause", "rate_limit", "weight", "fair_pass")],
}
"""What leads from the schema after it back to each."""


def file_of(schema: int) -> Path:
    """The stored database of a schema."""
    return DATA / f"schema-{schema}.sqlite"


def state_of(schema: int) -> Path:
    """What it says, line by line; the last line is a ticket that was given out."""
    return DATA / f"schema-{schema}.txt"


def work(rig: Rig) -> Ticket:
    """Submissions in all states, chunks in all states, results, attachments, metadata of both types.

    The ticket of a lease.
    """
    rig.submit(
        200, metadata={"tenant": "a", "n": 7}, keep_on_dead=True, content=b"parts", attachment=b"\x00\xff", priority=3
    )
    rig.submit(0, metadata={"tenant": "b"})
    rig.submit(3, delay_s=1e6)
    rig.submit(3, not_before_at=rig.now.wall + 10**10, expires_s=1e7)
    cancelled = rig.submit(5, metadata={"n": "7"})
    failed = rig.submit(5)
    rig.submit(2, unique_key="nightly", max_attempts=2, max_lost=3, backoff=m.Backoff(2.0, 3.0, 60.0))
    peer = rig.connect("worker")
    first, second, *_ = rig.reserve(peer, 130)
    rig.complete(peer, first.held([0, 1, 5]), results=m.msgspec.Raw(m.msgspec.msgpack.encode([b"a", b"\x00", b""])))
    rig.fail(peer, first.held([2]), is_final=True, reason="broken", exit_status=3)
    rig.fail(peer, first.held([3]), delay_s=1e6, reason="later")
    rig.fail(peer, first.held([4]), delay_s=0.0, reason="at once")
    rig.complete(peer, second.held())
    rig.disconnect(peer)
    rig.ask(rig.connect(), m.Cancel(1, cancelled, "not needed"))
    peer = rig.connect("worker")
    for ticket in rig.reserve(peer, 200):
        if ticket.submission_id == failed:
            rig.fail(peer, ticket.held([0]), is_final=True, signal=9)
    rig.disconnect(peer)
    [leased] = rig.reserve(rig.connect("shell"), 1, "NewestFirst", lease_s=LEASED_S)
    return leased


def add_rules(rig: Rig) -> None:
    """What schema 2 has besides."""
    operator = rig.connect("operator")
    rig.ask(operator, m.Pause(next(rig.ids), {"tenant": "b"}))
    rig.ask(operator, m.Limit(next(rig.ids), "tenant", "a", rate_per_s=5.0))
    rig.ask(operator, m.Weight(next(rig.ids), "tenant", "a", 3.0))


def drop_chunk(rig: Rig) -> None:
    """What schema 3 has besides: a dead chunk that was given up."""
    oldest = min(int(str(row[0])) for row in rig.rows("SELECT id FROM submission"))
    rig.fold()
    rig.ask(rig.connect("operator"), m.Drop(next(rig.ids), oldest, [2]))


def add_keys(rig: Rig) -> None:
    """What schema 4 has besides: a submission that is made once for ever, and a request that was withdrawn."""
    rig.submit(1, idempotency_key="once", metadata={"tenant": "b"})
    rig.only(rig.connect("producer"), m.Withdraw(next(rig.ids), WITHDRAWN), m.Found)


def hold_until_start(rig: Rig) -> None:
    """What schema 5 has besides: a unique key that is held until the first chunk starts."""
    rig.submit(1, unique_key="first", unique_until_start=True, metadata={"tenant": "b"})


def name_submitter(rig: Rig) -> None:
    """What schema 6 has besides: a submission of a user of this machine."""
    peer = rig.connect("producer")
    peer.uid = SUBMITTER
    rig.submit(1, peer=peer, metadata={"tenant": "b"})


def add_title(rig: Rig) -> None:
    """What schema 7 has besides: a title, and who submitted it from where."""
    peer = rig.connect("producer")
    peer.user, peer.place = "ada", "build7"
    rig.submit(1, peer=peer, metadata={"tenant": "b"}, title="Nightly import")


def add_schedule(rig: Rig) -> None:
    """What schema 8 has besides: a schedule, paused."""
    new = m.Schedule("nightly", "@daily", m.NewSubmission(bytes(16), 0))
    rig.only(rig.connect("operator"), m.PutSchedule(next(rig.ids), new), m.Changed)
    rig.only(rig.connect("operator"), m.PauseSchedule(next(rig.ids), "nightly"), m.Changed)


def add_event(rig: Rig) -> None:
    """What schema 9 has besides: events, of which the newest is the pause of this pair."""
    rig.only(rig.connect("operator"), m.Pause(next(rig.ids), {"tenant": "c"}), m.Changed)
    rig.only(rig.connect("operator"), m.Resume(next(rig.ids), {"tenant": "c"}), m.Changed)


def add_dependency(rig: Rig) -> None:
    """What schema 10 has besides: a submission that waits for another."""
    awaited = rig.submit(1, metadata={"tenant": "awaited"})
    rig.submit(1, metadata={"tenant": "waiting"}, after=[m.Dependency(awaited)])


def give_away(rig: Rig) -> None:
    """What schema 11 has besides: a submission with keys that has moved to another daemon."""
    moved = rig.submit(1, idempotency_key="moved once", unique_key="moved", metadata={"tenant": "moved"})
    peer = rig.connect("mover")
    rig.only(peer, m.DriveMoves(next(rig.ids)), m.Driving)
    hold = m.HoldForMove(next(rig.ids), after=moved - 1, limit=1)
    rig.send(peer, hold)
    rig.advance(1)
    [held] = rig.replies(peer, hold.id)
    assert isinstance(held, m.HeldForMove)
    assert held.submission_ids == [moved]
    rig.only(peer, m.CommitMove(next(rig.ids), held.move, bytes(16), 7, "there:7400"), m.Changed)
    rig.only(peer, m.ConfirmMoved(next(rig.ids), [moved]), m.Changed)
    rig.disconnect(peer)
    for _ in range(5):
        rig.advance(1)
    assert rig.rows("SELECT id FROM submission WHERE state = 'removed'") == []


STEPS = (
    (2, add_rules),
    (3, drop_chunk),
    (4, add_keys),
    (5, hold_until_start),
    (6, name_submitter),
    (7, add_title),
    (8, add_schedule),
    (9, add_event),
    (10, add_dependency),
    (11, give_away),
)
"""What each schema has besides what the one before had."""


def main(schema: int) -> None:
    """Make the file and the text that tells its state."""
    folder = Path(tempfile.mkdtemp(prefix="opsq-"))
    rig = Rig(folder)
    leased = work(rig)
    for since, add in STEPS:
        if schema >= since:
            add(rig)
    rig.stop()
    DATA.mkdir(exist_ok=True)
    file_of(schema).unlink(missing_ok=True)
    shutil.copy(rig.path, file_of(schema))
    connection = apsw.Connection(str(file_of(schema)))
    back = [statement for step, statements in STEPS_BACK.items() if step >= schema for statement in statements]
    for statement in (
        *back,
        f"PRAGMA user_version = {schema}",
        "VACUUM",
        "PRAGMA journal_mode = DELETE",
        "PRAGMA journal_mode = WAL",
    ):
        connection.execute(statement)
    connection.close()
    rig._open(rig.path.parent)
    lines = [*rig.dump(), str(tuple(leased))]
    state_of(schema).write_text("".join(f"{line}\n" for line in lines))
    rig.close()
    shutil.rmtree(folder)


if __name__ == "__main__":
    main(int(sys.argv[1]))

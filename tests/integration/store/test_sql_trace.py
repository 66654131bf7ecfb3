"""`--trace-sql`: what SQL was run, and what it cost, without a value of anybody's."""

from __future__ import annotations

import os
from pathlib import Path

from daemons import connected, log_with, running, whole_log
from opsq.store.database import Database
from opsq.wire.messages import NewSubmission, Reserve, Reserved, Submit, Submitted


def test_each_statement_is_told_once_it_has_run_with_its_cost(runtime_dir: Path) -> None:
    told: list[str] = []
    database = Database.open(runtime_dir / "opsq.sqlite", on_statement=told.append)
    told.clear()
    database.begin()
    database.writer.execute("UPDATE meta\n   SET value = 7 WHERE key = 'starts'")
    database.commit()
    assert list(database.reader.execute("SELECT count(*) FROM meta WHERE value = ?", ("secret",))) == [(0,)]
    database.close()
    [update] = [line for line in told if "UPDATE" in line]
    assert update.startswith("writer: UPDATE meta SET value = 7 WHERE key = 'starts' (")
    assert "steps" in update
    [scan] = [line for line in told if line.startswith("reader: SELECT count(*)")]
    assert "rows scanned" in scan
    assert "secret" not in scan


def test_daemon_writes_its_statements_to_the_log_if_that_is_set(runtime_dir: Path) -> None:
    with running(runtime_dir / "s", trace_sql="true") as settings, connected(settings) as client:
        new = NewSubmission(os.urandom(16), 1, content=b"of somebody", metadata={"tenant": "somebody"})
        assert isinstance(client.ask(Submit(2, [new])), Submitted)
        assert isinstance(client.ask(Reserve(3, 1, "SelectOnly(tenant=somebody)")), Reserved)
        log = log_with(settings, "FROM lane_submission")
        assert "writer: INSERT INTO submission (" in log
        assert "somebody" not in log


def test_nothing_is_traced_by_default(runtime_dir: Path) -> None:
    with running(runtime_dir / "s") as settings, connected(settings) as client:
        assert isinstance(client.ask(Submit(2, [NewSubmission(os.urandom(16), 1)])), Submitted)
    assert "INSERT" not in whole_log(settings)

"""The statements of outboxes: they run, again too, and there are none for other databases."""

from __future__ import annotations

import sqlite3

import pytest

from opsq.errors import UsageError
from opsq.outbox.ddl import DIALECTS, ddl


def test_statements_for_sqlite_may_be_run_again() -> None:
    connection = sqlite3.connect(":memory:")
    for _ in range(2):
        connection.executescript(ddl("sqlite"))
    found = {name for (name,) in connection.execute("SELECT name FROM sqlite_schema WHERE type = 'table'")}
    connection.close()
    assert {"opsq_outbox", "opsq_outbox_completed"} <= found


@pytest.mark.parametrize("dialect", DIALECTS)
def test_statements_fit_a_line(dialect: str) -> None:
    assert max(map(len, ddl(dialect).splitlines())) <= 120


def test_another_database_is_refused_by_name() -> None:
    with pytest.raises(UsageError, match="'oracle'"):
        ddl("oracle")

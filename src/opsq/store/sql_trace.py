"""Reports each SQL statement that a connection has run, with its cost (`--trace-sql`): those that `opsq explain` shows.

Must not report values: they belong to users.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import apsw

OnStatement = Callable[[str], None]
"""Told of a statement that has ended, in one line."""


def trace(connection: apsw.Connection, name: str, on_statement: OnStatement) -> None:
    """Call `on_statement` for each statement of a connection named `name`."""

    def ended(found: dict[str, Any]) -> None:
        status = found["stmt_status"]
        facts = [f"{found['nanoseconds'] / 1e6:.0f} ms", f"{status['SQLITE_STMTSTATUS_VM_STEP']} steps"]
        for fact, counter in (
            ("rows scanned", "FULLSCAN_STEP"),
            ("sorts", "SORT"),
            ("automatic index rows", "AUTOINDEX"),
        ):
            if count := status[f"SQLITE_STMTSTATUS_{counter}"]:
                facts.append(f"{count} {fact}")
        on_statement(f"{name}: {' '.join(found['sql'].split())} ({', '.join(facts)})")

    connection.trace_v2(apsw.SQLITE_TRACE_PROFILE, ended)

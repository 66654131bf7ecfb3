"""The few values that the file remembers about itself."""

from __future__ import annotations

import secrets

import apsw


def get_int(connection: apsw.Connection, key: str) -> int:
    """An integer of `meta`; 0 when it has never been set."""
    row = connection.execute("SELECT value FROM meta WHERE key = ?", (key,)).fetchone()
    return int(row[0]) if row else 0


def get_text(connection: apsw.Connection, key: str) -> str:
    """A text of `meta`; empty when it has never been set."""
    row = connection.execute("SELECT value FROM meta WHERE key = ?", (key,)).fetchone()
    return str(row[0]) if row else ""


def put(writer: apsw.Connection, key: str, value: int | bytes | str) -> None:
    """Set a value."""
    writer.execute(
        "INSERT INTO meta (key, value) VALUES (?1, ?2) ON CONFLICT (key) DO UPDATE SET value = ?2", (key, value)
    )


def secret(connection: apsw.Connection) -> bytes:
    """The 32 bytes that reservation tokens are keyed with; made when the file was first opened."""
    row = connection.execute("SELECT value FROM meta WHERE key = 'secret'").fetchone()
    return bytes(row[0]) if row else secrets.token_bytes(32)

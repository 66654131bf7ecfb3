"""The tables of an outbox, as statements for each database: safe to run again, and to copy into a migration.

This file must not connect to anything.
"""

from __future__ import annotations

from opsq.errors import UsageError

CHANNEL = "opsq_outbox"
"""PostgreSQL notifies relays of new rows here."""

_POSTGRESQL = """\
-- The outbox of opsq for PostgreSQL 12 or newer: see opsq-outbox(7). Running this again changes nothing.

-- Submissions that have not been handed over. `opsq relay` deletes a row once the daemon has acknowledged it.
CREATE TABLE IF NOT EXISTS opsq_outbox (
    seq bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    order_key text,                                        -- rows that share one arrive in the order of seq
    submission bytea NOT NULL,                             -- its request key and options, in MessagePack
    chunks bytea,                                          -- its chunks, where they are not in the submission
    added_at timestamptz NOT NULL DEFAULT now(),
    refusal text                                           -- why the daemon does not want it; NULL: it waits
);
CREATE INDEX IF NOT EXISTS opsq_outbox_order_key ON opsq_outbox (order_key, seq) WHERE order_key IS NOT NULL;

-- Chunks that were completed. A row stays for a while after it was handed over (`opsq relay --keep`), so that no
-- second transaction can complete the same chunk.
CREATE TABLE IF NOT EXISTS opsq_outbox_completed (
    seq bigint GENERATED ALWAYS AS IDENTITY,
    submission_id bigint,
    chunk_index bigint,
    handle text NOT NULL,
    result bytea NOT NULL,
    added_at timestamptz NOT NULL DEFAULT now(),
    told_at timestamptz,                                   -- when the daemon has acknowledged it; NULL: it has not
    refusal text,
    PRIMARY KEY (submission_id, chunk_index)
);
CREATE INDEX IF NOT EXISTS opsq_outbox_completed_waiting ON opsq_outbox_completed (seq) WHERE told_at IS NULL;
CREATE INDEX IF NOT EXISTS opsq_outbox_completed_told ON opsq_outbox_completed (told_at) WHERE told_at IS NOT NULL;

-- Wakes relays when a transaction with new rows commits. PostgreSQL commits notifying transactions one after the
-- other: if thousands commit each second, leave the triggers out, and use `opsq relay --poll 100ms`.
CREATE OR REPLACE FUNCTION opsq_outbox_notify() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    NOTIFY opsq_outbox;
    RETURN NULL;
END
$$;
DROP TRIGGER IF EXISTS opsq_outbox_notify ON opsq_outbox;
CREATE TRIGGER opsq_outbox_notify AFTER INSERT ON opsq_outbox
    FOR EACH STATEMENT EXECUTE FUNCTION opsq_outbox_notify();
DROP TRIGGER IF EXISTS opsq_outbox_notify ON opsq_outbox_completed;
CREATE TRIGGER opsq_outbox_notify AFTER INSERT ON opsq_outbox_completed
    FOR EACH STATEMENT EXECUTE FUNCTION opsq_outbox_notify();
"""

_SQLITE = """\
-- The outbox of opsq for SQLite: see opsq-outbox(7). Running this again changes nothing.

-- Submissions that have not been handed over. `opsq relay` deletes a row once the daemon has acknowledged it.
CREATE TABLE IF NOT EXISTS opsq_outbox (
    seq INTEGER PRIMARY KEY AUTOINCREMENT,                 -- never used again: a relay deletes by it
    order_key TEXT,                                        -- rows that share one arrive in the order of seq
    submission BLOB NOT NULL,                              -- its request key and options, in MessagePack
    chunks BLOB,                                           -- its chunks, where they are not in the submission
    added_at TEXT NOT NULL DEFAULT CURRENT_TIMESTAMP,
    refusal TEXT                                           -- why the daemon does not want it; NULL: it waits
);

-- Chunks that were completed. A row stays for a while after it was handed over (`opsq relay --keep`), so that no
-- second transaction can complete the same chunk.
CREATE TABLE IF NOT EXISTS opsq_outbox_completed (
    seq INTEGER PRIMARY KEY AUTOINCREMENT,
    submission_id INTEGER NOT NULL,
    chunk_index INTEGER NOT NULL,
    handle TEXT NOT NULL,
    result BLOB NOT NULL,
    added_at TEXT NOT NULL DEFAULT CURRENT_TIMESTAMP,
    told_at TEXT,                                          -- when the daemon has acknowledged it; NULL: it has not
    refusal TEXT,
    UNIQUE (submission_id, chunk_index)
);
CREATE INDEX IF NOT EXISTS opsq_outbox_completed_waiting ON opsq_outbox_completed (seq) WHERE told_at IS NULL;
CREATE INDEX IF NOT EXISTS opsq_outbox_completed_told ON opsq_outbox_completed (told_at) WHERE told_at IS NOT NULL;
"""

DIALECTS = {"postgresql": _POSTGRESQL, "sqlite": _SQLITE}
"""By database, what makes the tables."""


def ddl(dialect: str) -> str:
    """The statements that make the tables of an outbox.

    Args:
        dialect: `postgresql` or `sqlite`.

    Raises:
        UsageError: it is neither.
    """
    if dialect not in DIALECTS:
        raise UsageError(f"{dialect!r} is no database that can have an outbox: {' and '.join(DIALECTS)} can.")
    return DIALECTS[dialect]

-- Schedules. `definition` is the record of the protocol; every planned instant up to `decided_at` is decided, for good.
-- `waiting` and `open_ids` are MessagePack arrays: instants that wait, and submissions whose end was not seen yet.
CREATE TABLE schedule (
    name TEXT PRIMARY KEY,
    definition BLOB NOT NULL,
    created_at INTEGER NOT NULL,
    created_by TEXT,
    created_from TEXT,
    creator INTEGER,
    decided_at INTEGER NOT NULL,
    fired_count INTEGER NOT NULL,
    skipped_count INTEGER NOT NULL,
    missed_count INTEGER NOT NULL,
    waiting BLOB NOT NULL,
    open_ids BLOB NOT NULL,
    last_planned_at INTEGER,
    last_submission_id INTEGER,
    paused_at INTEGER,
    paused_by TEXT NOT NULL,
    note TEXT NOT NULL
) STRICT, WITHOUT ROWID;

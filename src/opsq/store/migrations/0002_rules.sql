-- What operators and users ask for: pauses, limits, weights; and how far each value of a fair strategy has been served.

CREATE TABLE pause (
    id          INTEGER PRIMARY KEY,
    pairs       BLOB NOT NULL UNIQUE,     -- MessagePack: [[key, value], ...], by key; empty: everything
    by_operator INTEGER NOT NULL,
    by_name     TEXT NOT NULL,
    paused_at   INTEGER NOT NULL
) STRICT;

CREATE TABLE rate_limit (
    id          INTEGER PRIMARY KEY,
    key         TEXT NOT NULL,
    value       ANY,                      -- NULL: each value of the key
    concurrency INTEGER,
    rate_per_s  REAL,
    burst       INTEGER,
    by_name     TEXT NOT NULL,
    limited_at  INTEGER NOT NULL
) STRICT;
CREATE UNIQUE INDEX rate_limit_pair ON rate_limit (key, ifnull(value, x'00'));

CREATE TABLE weight (
    key    TEXT NOT NULL,
    value  ANY NOT NULL,
    weight REAL NOT NULL,
    PRIMARY KEY (key, value)
) STRICT, WITHOUT ROWID;

-- scope names a fair arm (its key, filters and gates); lane 0 is the share of submissions without the key.
CREATE TABLE fair_pass (
    scope   TEXT NOT NULL,
    lane_id INTEGER NOT NULL,
    pass    REAL NOT NULL,
    PRIMARY KEY (scope, lane_id)
) STRICT, WITHOUT ROWID;

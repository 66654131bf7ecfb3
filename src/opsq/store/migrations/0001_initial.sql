-- Chunks are never rows of their own. A block is 64 chunks of a submission; `block` has a row only for blocks below the submission's
-- frontier that still have something pending; from the frontier on every chunk is pending and nothing is stored.
-- *_at: milliseconds since 1970 UTC. mask, pending: 64 bits, two's complement.

CREATE TABLE meta (
    key   TEXT PRIMARY KEY,
    value ANY NOT NULL
) STRICT, WITHOUT ROWID;

CREATE TABLE owner (
    id    INTEGER PRIMARY KEY CHECK (id = 1),
    token BLOB NOT NULL
) STRICT;

CREATE TABLE submission (
    id               INTEGER PRIMARY KEY,
    state            TEXT NOT NULL CHECK (state IN ('scheduled', 'open', 'completed', 'failed', 'cancelled', 'expired', 'removed')),
    chunks_total     INTEGER NOT NULL,
    chunks_completed INTEGER NOT NULL DEFAULT 0, -- folded completions; history above meta.folded_seq comes on top
    chunks_dead      INTEGER NOT NULL DEFAULT 0,
    chunks_skipped   INTEGER NOT NULL DEFAULT 0,
    frontier         INTEGER NOT NULL DEFAULT 0,
    priority         INTEGER NOT NULL,
    shuffle          INTEGER NOT NULL,
    reservation_s    REAL NOT NULL,
    max_attempts     INTEGER NOT NULL,
    max_lost         INTEGER NOT NULL,
    backoff_base_s   REAL NOT NULL,
    backoff_factor   REAL NOT NULL,
    backoff_max_s    REAL NOT NULL,
    keep_on_dead     INTEGER NOT NULL,
    submitted_at     INTEGER NOT NULL,
    not_before_at    INTEGER,
    delay_ms         INTEGER,                    -- set when not_before_at came from a duration; its full length
    expires_at       INTEGER,
    expires_ms       INTEGER,                    -- likewise for expires_at
    finished_at      INTEGER,
    request_key      BLOB NOT NULL UNIQUE,
    unique_key       TEXT,
    reason           TEXT NOT NULL DEFAULT '',
    lanes            BLOB NOT NULL,              -- MessagePack: key -> [lane id, value]; what submission_lane says, found without a join
    content          BLOB NOT NULL,
    attachment       BLOB
) STRICT;

CREATE UNIQUE INDEX submission_unique_key ON submission (unique_key) WHERE unique_key IS NOT NULL AND state IN ('scheduled', 'open');
CREATE INDEX submission_not_before ON submission (not_before_at) WHERE state = 'scheduled';
CREATE INDEX submission_expires ON submission (expires_at) WHERE expires_at IS NOT NULL AND state IN ('scheduled', 'open');
CREATE INDEX submission_finished ON submission (finished_at) WHERE finished_at IS NOT NULL;
CREATE INDEX submission_removed ON submission (id) WHERE state = 'removed';

-- A lane is a metadata pair, with its counters; lane 0 is everything.
CREATE TABLE lane (
    id                INTEGER PRIMARY KEY,
    key               TEXT NOT NULL,
    value             ANY NOT NULL,
    submissions_count INTEGER NOT NULL DEFAULT 0,
    chunks_total      INTEGER NOT NULL DEFAULT 0,
    chunks_completed  INTEGER NOT NULL DEFAULT 0,
    chunks_dead       INTEGER NOT NULL DEFAULT 0,
    chunks_skipped    INTEGER NOT NULL DEFAULT 0,
    UNIQUE (key, value)
) STRICT;
INSERT INTO lane (id, key, value) VALUES (0, '', '');

CREATE TABLE submission_lane (
    submission_id INTEGER NOT NULL,
    lane_id       INTEGER NOT NULL,
    PRIMARY KEY (submission_id, lane_id)
) STRICT, WITHOUT ROWID;
CREATE INDEX submission_lane_lane ON submission_lane (lane_id, submission_id);

CREATE VIEW strategic_metadata (submission_id, key, value) AS
    SELECT submission_id, key, value FROM submission_lane JOIN lane ON lane.id = lane_id;

-- Open submissions only, once in lane 0 and once in each of their own: what strategies walk, one index an order.
CREATE TABLE lane_submission (
    lane_id       INTEGER NOT NULL,
    submission_id INTEGER NOT NULL,
    shuffle       INTEGER NOT NULL,
    rank          INTEGER NOT NULL,              -- minus the priority, so that (rank, submission_id) ascends and a walk can start anywhere
    PRIMARY KEY (lane_id, submission_id)
) STRICT, WITHOUT ROWID;
CREATE INDEX lane_submission_shuffle ON lane_submission (lane_id, shuffle, submission_id);
CREATE INDEX lane_submission_rank ON lane_submission (lane_id, rank, submission_id);

CREATE TABLE block (
    submission_id INTEGER NOT NULL,
    block         INTEGER NOT NULL,
    pending       INTEGER NOT NULL CHECK (pending != 0),
    PRIMARY KEY (submission_id, block)
) STRICT, WITHOUT ROWID;

-- Chunks of a block with equal counts and due time share a row.
CREATE TABLE attempt (
    submission_id INTEGER NOT NULL,
    block         INTEGER NOT NULL,
    mask          INTEGER NOT NULL,
    attempts      INTEGER NOT NULL,
    lost          INTEGER NOT NULL,
    due_at        INTEGER NOT NULL, -- 0: at once
    delay_ms      INTEGER NOT NULL,
    PRIMARY KEY (submission_id, block, mask)
) STRICT, WITHOUT ROWID;

CREATE TABLE dead (
    submission_id INTEGER NOT NULL,
    chunk         INTEGER NOT NULL,
    attempts      INTEGER NOT NULL,
    lost          INTEGER NOT NULL,
    dead_at       INTEGER NOT NULL,
    reason        TEXT NOT NULL,
    exit_status   INTEGER,
    signal        INTEGER,
    PRIMARY KEY (submission_id, chunk)
) STRICT, WITHOUT ROWID;

-- seq is given by the writer, ascending for ever (no AUTOINCREMENT: unfolded rows are never deleted, so the highest is known); rows above meta.folded_seq are not in `block` yet.
CREATE TABLE history (
    seq            INTEGER PRIMARY KEY,
    at             INTEGER NOT NULL,
    event          TEXT NOT NULL CHECK (event IN ('completed', 'failed', 'lost', 'dead', 'requeued', 'cancelled', 'expired')),
    submission_id  INTEGER NOT NULL,
    block          INTEGER NOT NULL,
    mask           INTEGER NOT NULL,
    attempt        INTEGER NOT NULL,
    reservation_id INTEGER NOT NULL,
    consumer       TEXT NOT NULL,
    run_s          REAL NOT NULL,
    run_max_s      REAL NOT NULL,
    wait_s         REAL NOT NULL,
    exit_status    INTEGER,
    signal         INTEGER,
    reason         TEXT NOT NULL
) STRICT;

-- Finds the history of a block; filled when rows are folded, many at a time and sorted, so that a completion itself stays one append.
CREATE TABLE history_block (
    submission_id INTEGER NOT NULL,
    block         INTEGER NOT NULL,
    seq           INTEGER NOT NULL,
    PRIMARY KEY (submission_id, block, seq)
) STRICT, WITHOUT ROWID;

CREATE TABLE result (
    submission_id INTEGER NOT NULL,
    block         INTEGER NOT NULL,
    mask          INTEGER NOT NULL,
    results       BLOB NOT NULL,
    PRIMARY KEY (submission_id, block, mask)
) STRICT, WITHOUT ROWID;

CREATE TABLE lease (
    reservation_id INTEGER NOT NULL,
    submission_id  INTEGER NOT NULL,
    block          INTEGER NOT NULL,
    granted        INTEGER NOT NULL,
    mask           INTEGER NOT NULL,
    attempt        INTEGER NOT NULL,
    consumer       TEXT NOT NULL,
    deadline_at    INTEGER NOT NULL,
    length_ms      INTEGER NOT NULL,
    for_restart    INTEGER NOT NULL, -- 1: a connection held it when the daemon ended; whoever takes it up again needs no lease
    PRIMARY KEY (reservation_id, submission_id, block, granted)
) STRICT, WITHOUT ROWID;

INSERT INTO meta (key, value) VALUES ('folded_seq', 0), ('starts', 0);

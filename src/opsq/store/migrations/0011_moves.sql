-- Submissions that have moved to another daemon: where they are now. Confirmed: that one hands them out.
CREATE TABLE moved (
    submission_id   INTEGER PRIMARY KEY,
    identity        BLOB NOT NULL,               -- of the other file
    shard           INTEGER NOT NULL,
    address         TEXT NOT NULL,
    request_key     BLOB NOT NULL UNIQUE,
    idempotency_key TEXT,
    moved_at        INTEGER NOT NULL,
    is_confirmed    INTEGER NOT NULL DEFAULT 0
) STRICT;
CREATE INDEX moved_idempotency_key ON moved (idempotency_key) WHERE idempotency_key IS NOT NULL;
CREATE INDEX moved_unconfirmed ON moved (submission_id) WHERE NOT is_confirmed;

-- Submissions that are moving here. They are in the state 'removed', so nobody sees them, until they are activated;
-- one that is given up is removed like any other, but for its content, which is not ours.
CREATE TABLE arriving (
    submission_id INTEGER PRIMARY KEY,
    source        BLOB NOT NULL,                 -- the identity of the file that it comes from
    move          BLOB NOT NULL,                 -- names the attempt
    next_slice    INTEGER,                       -- NULL: it is all here
    is_given_up   INTEGER NOT NULL DEFAULT 0,
    unique_key    TEXT,
    header        BLOB NOT NULL,                 -- MessagePack
    pending_count INTEGER NOT NULL DEFAULT 0,    -- chunks, of the slices that are here; so the next two
    dead_count    INTEGER NOT NULL DEFAULT 0,
    dropped_count INTEGER NOT NULL DEFAULT 0
) STRICT;
CREATE INDEX arriving_unique_key ON arriving (unique_key) WHERE unique_key IS NOT NULL;

-- Submissions that are made once for ever: keys that outlive the end of their submission, and requests that were taken back
-- before they came, which must not make one any more.

CREATE TABLE idempotency (
    key           TEXT PRIMARY KEY,
    submission_id INTEGER NOT NULL UNIQUE
) STRICT, WITHOUT ROWID;

CREATE TABLE withdrawn (
    request_key  BLOB PRIMARY KEY,
    withdrawn_at INTEGER NOT NULL
) STRICT, WITHOUT ROWID;
CREATE INDEX withdrawn_withdrawn_at ON withdrawn (withdrawn_at);

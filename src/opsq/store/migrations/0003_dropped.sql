-- Dead letters that were given up: their chunks are skipped for good, and no requeue brings them back. They are counted in chunks_skipped too.

ALTER TABLE submission ADD COLUMN chunks_dropped INTEGER NOT NULL DEFAULT 0;
ALTER TABLE submission ADD COLUMN revived_at INTEGER; -- when a requeue led it out of a final state last

CREATE TABLE dropped (
    submission_id INTEGER NOT NULL,
    block         INTEGER NOT NULL,
    mask          INTEGER NOT NULL,
    PRIMARY KEY (submission_id, block)
) STRICT, WITHOUT ROWID;

-- One more event. The constraint alone changes, so the millions of rows below it need not be copied: https://sqlite.org/lang_altertable.html, section 7.
PRAGMA writable_schema = ON;
UPDATE sqlite_schema SET sql = replace(sql, '''requeued'', ', '''requeued'', ''dropped'', ') WHERE type = 'table' AND name = 'history';
PRAGMA writable_schema = RESET;

-- Until when a unique key is held: 'done' (the submission is final), 'start' (a chunk of it is handed out), 'started' (that was so, and has come).

ALTER TABLE submission ADD COLUMN unique_until TEXT NOT NULL DEFAULT 'done' CHECK (unique_until IN ('done', 'start', 'started'));
DROP INDEX submission_unique_key;
CREATE UNIQUE INDEX submission_unique_key ON submission (unique_key)
    WHERE unique_key IS NOT NULL AND unique_until != 'started' AND state IN ('scheduled', 'open');

-- The time for which a rate was given, so that people read it as they wrote it.
ALTER TABLE rate_limit ADD COLUMN rate_span_s REAL NOT NULL DEFAULT 1;

-- Whether the weight came with a submission: then it goes when no submission has the pair any more.
ALTER TABLE weight ADD COLUMN by_submission INTEGER NOT NULL DEFAULT 0;

-- Submissions that wait for others. `target` is a submission, or ~lane: all that have the pair of the lane.
-- `outcome` is how that ended for this one: NULL while it is not decided, 'void' once the submission has ended by itself.
CREATE TABLE dependency (
    submission_id INTEGER NOT NULL,
    target        INTEGER NOT NULL,
    needs         TEXT NOT NULL CHECK (needs IN ('completed', 'ended')),
    on_failed     TEXT NOT NULL CHECK (on_failed IN ('cancel', 'run', 'keep')),
    outcome       TEXT,
    PRIMARY KEY (submission_id, target)
) STRICT, WITHOUT ROWID;
CREATE INDEX dependency_target ON dependency (target, outcome, submission_id);

-- What has ended, with how: those behind `after_id` that wait for it have not been told yet.
CREATE TABLE dependency_due (
    target   INTEGER PRIMARY KEY,
    outcome  TEXT NOT NULL,
    after_id INTEGER NOT NULL
) STRICT;

-- Blocked and scheduled submissions, in each lane of their own: with those of lane_submission, all that are unfinished.
CREATE TABLE lane_coming (
    lane_id       INTEGER NOT NULL,
    submission_id INTEGER NOT NULL,
    PRIMARY KEY (lane_id, submission_id)
) STRICT, WITHOUT ROWID;
INSERT INTO lane_coming (lane_id, submission_id)
    SELECT lane_id, submission_id FROM submission JOIN submission_lane ON submission_id = id WHERE state = 'scheduled';

-- One more state. The constraint alone changes, as in 0003.
PRAGMA writable_schema = ON;
UPDATE sqlite_schema SET sql = replace(sql, '(''scheduled'', ''open'', ''completed''', '(''blocked'', ''scheduled'', ''open'', ''completed''')
    WHERE type = 'table' AND name = 'submission';
PRAGMA writable_schema = RESET;

DROP INDEX submission_unique_key;
CREATE UNIQUE INDEX submission_unique_key ON submission (unique_key)
    WHERE unique_key IS NOT NULL AND unique_until != 'started' AND state IN ('blocked', 'scheduled', 'open');
DROP INDEX submission_expires;
CREATE INDEX submission_expires ON submission (expires_at) WHERE expires_at IS NOT NULL AND state IN ('blocked', 'scheduled', 'open');
CREATE INDEX submission_blocked ON submission (not_before_at) WHERE state = 'blocked' AND delay_ms IS NOT NULL;

-- What people want to be told: ends of submissions, deaths, pauses, instants of schedules. The newest row is never deleted, so that no seq comes twice.
-- `detail` is a MessagePack map of the other fields of the event; NULL without any.
CREATE TABLE event (
    seq           INTEGER PRIMARY KEY,
    at            INTEGER NOT NULL,
    kind          TEXT NOT NULL,
    submission_id INTEGER,
    detail        BLOB
) STRICT;

-- The unique key that a submission held when it moved: who submits over shards asks for it where it is now.
ALTER TABLE moved ADD COLUMN unique_key TEXT;
CREATE INDEX moved_unique_key ON moved (unique_key) WHERE unique_key IS NOT NULL;
-- Of chunks that a connection held when the daemon ended: on which of them work had started. The others are no loss if nobody takes them up again.
ALTER TABLE lease ADD COLUMN started INTEGER NOT NULL DEFAULT -1; -- mask; -1: all, as was taken for granted before this was kept

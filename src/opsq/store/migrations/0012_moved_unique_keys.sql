-- The unique key that a submission held when it moved: who submits over shards asks for it where it is now.
ALTER TABLE moved ADD COLUMN unique_key TEXT;
CREATE INDEX moved_unique_key ON moved (unique_key) WHERE unique_key IS NOT NULL;

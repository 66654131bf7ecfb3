-- What people read of a submission: its title, and who submitted it, from which host; NULL: there is none, it is unknown, or it came before this was kept.
ALTER TABLE submission ADD COLUMN title TEXT;
ALTER TABLE submission ADD COLUMN submitted_by TEXT;
ALTER TABLE submission ADD COLUMN submitted_from TEXT;

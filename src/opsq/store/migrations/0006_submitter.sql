-- The user whose process on this machine submitted it; NULL: it came over the network, or before this was kept.
ALTER TABLE submission ADD COLUMN submitter INTEGER;

"""List, add, edit, show, pause, resume, trigger, backfill or remove schedules."""

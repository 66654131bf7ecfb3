"""opsq schedule backfill: the submissions of past instants."""


def test_each_instant_has_one_submission_however_often_it_is_asked_for(queue):
    queue.ok("schedule", "add", "n", "0 3 * * *")
    ids = queue.ok("schedule", "backfill", "n", "2026-03-01T00:00Z", "2026-03-04T00:00Z").lines
    assert len(ids) == 3
    more = queue.ok("schedule", "backfill", "n", "2026-03-01T00:00Z", "2026-03-05T00:00Z", "--json")
    assert len(more.json["submission_ids"]) == 1
    planned = {one["metadata"]["planned"] for one in queue.ok("list", "-m", "schedule=n", "--json").json["submissions"]}
    assert planned == {f"2026-03-0{day}T03:00:00.000Z" for day in (1, 2, 3, 4)}
    nothing = queue.ok("schedule", "backfill", "n", "2026-03-01T00:00Z", "2026-03-02T00:00Z")
    assert nothing.out == b""


def test_too_many_are_refused(queue):
    queue.ok("schedule", "add", "n", "every 1s")
    refused = queue("schedule", "backfill", "n", "2026-01-01", "2026-02-01")
    assert refused.status == 2
    assert "1000 planned instants" in refused.err

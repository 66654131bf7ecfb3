"""opsq schedule rm: schedules come no more."""


def test_removed_schedule_leaves_its_submissions(queue):
    queue.ok("schedule", "add", "n", "@yearly")
    [submission_id] = queue.ok("schedule", "trigger", "n").lines
    assert queue.ok("schedule", "rm", "n", "--json").json["count"] == 1
    assert queue.ok("schedule", "list", "--json").json["schedules"] == []
    assert queue.ok("show", submission_id, "--json").json["state"] == "open"
    assert queue("schedule", "rm", "n").status == 3

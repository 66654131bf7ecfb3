"""opsq schedule edit: what is given changes, and nothing else."""


def test_what_is_not_given_stays(queue):
    queue.ok("schedule", "add", "n", "@daily", "-", "-m", "tenant=acme", "--overlap", "queue", stdin=b"one")
    queue.ok("schedule", "edit", "n", "--when", "@hourly", "-m", "kind=x", "--pause-on-failure")
    shown = queue.ok("schedule", "show", "n", "--json").json
    assert (shown["when"], shown["overlap"], shown["on_failure"]) == ("@hourly", "queue", "pause")
    assert shown["metadata"] == {"tenant": "acme", "kind": "x"}
    [submission_id] = queue.ok("schedule", "trigger", "n").lines
    queue.ok("consume", "--until-empty", "--", "cat")
    assert queue.ok("results", submission_id).text == "one"
    queue.ok("schedule", "edit", "n", "--pause-on-failure=no")
    assert queue.ok("schedule", "show", "n", "--json").json["on_failure"] == "continue"
    assert "--pause-on-failure=no" in queue("schedule", "edit", "n", "--pause-on-failure=maybe").err


def test_other_content_is_used_from_then_on(queue):
    queue.ok("schedule", "add", "n", "@daily", "-", stdin=b"one")
    queue.ok("schedule", "edit", "n", "--content", "-", stdin=b"two")
    [submission_id] = queue.ok("schedule", "trigger", "n").lines
    queue.ok("consume", "--until-empty", "--", "cat")
    assert queue.ok("results", submission_id).text == "two"


def test_what_cannot_be_changes_nothing(queue):
    queue.ok("schedule", "add", "n", "@daily")
    assert queue("schedule", "edit", "n", "--when", "x").status == 2
    assert queue("schedule", "edit", "other", "--when", "@daily").status == 3
    assert queue.ok("schedule", "show", "n", "--json").json["when"] == "@daily"

"""opsq schedule trigger: one submission now."""


def test_trigger_prints_the_id_and_does_not_count_as_an_instant(queue):
    queue.ok("schedule", "add", "n", "@yearly")
    queue.ok("schedule", "pause", "n")
    [submission_id] = queue.ok("schedule", "trigger", "n").lines
    assert queue.ok("schedule", "trigger", "n", "--json").json["submission_ids"] != [submission_id]
    shown = queue.ok("schedule", "show", "n", "--json").json
    assert (shown["fired"], shown["open"]) == (0, 2)
    assert queue.ok("show", submission_id, "--json").json["metadata"]["schedule"] == "n"
    assert queue("schedule", "trigger", "nope").status == 3

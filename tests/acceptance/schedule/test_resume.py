"""opsq schedule resume: a paused schedule comes again."""


def test_resumed_schedule_goes_on_from_now(queue):
    queue.ok("schedule", "add", "n", "@daily")
    queue.ok("schedule", "pause", "n")
    done = queue.ok("schedule", "resume", "n", "--json")
    assert done.json["count"] == 1
    shown = queue.ok("schedule", "show", "n", "--json").json
    assert (len(shown["upcoming"]), shown["paused_at"], shown["missed"]) == (3, None, 0)
    assert queue.ok("schedule", "resume", "n", "--json").json["count"] == 0

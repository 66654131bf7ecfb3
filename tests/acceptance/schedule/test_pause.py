"""opsq schedule pause: instants are passed over."""


def test_paused_schedule_says_by_whom_and_why_and_has_no_next_instant(queue):
    queue.ok("schedule", "add", "n", "every 1s")
    queue.ok("schedule", "pause", "n", "--note", "moving house")
    shown = queue.ok("schedule", "show", "n", "--json").json
    assert (shown["upcoming"], shown["note"]) == ([], "moving house")
    assert "@" in shown["paused_by"]


def test_pausing_twice_changes_nothing(queue):
    queue.ok("schedule", "add", "n", "@daily")
    assert queue.ok("schedule", "pause", "n", "--json").json["count"] == 1
    assert queue.ok("schedule", "pause", "n", "--json").json["count"] == 0
    assert queue("schedule", "pause", "nope").status == 3

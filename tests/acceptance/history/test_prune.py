"""opsq history prune: deletes the oldest rows."""


def events(queue, *options):
    return queue.ok("history", "list", "--json", "--oldest-first", *options).json["events"]


def test_prune_forgets_the_oldest_and_says_how_many(queue, worked):
    count = len(events(queue))
    assert queue("history", "prune").status == 2
    assert queue.ok("history", "prune", "--older-than", "1h", "--json").json == {"count": 0}
    assert queue.ok("history", "prune", "--keep", "2", "--json").json == {"count": count - 2}
    assert len(events(queue)) == 2
    assert queue.ok("show", "--json", worked).json["completed"] == 9

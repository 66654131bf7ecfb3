"""opsq schedule list: the next three instants of each, and how the last one went."""


def test_list_in_a_pipe_has_a_line_for_each(queue):
    assert queue.ok("schedule").out == b""
    queue.ok("schedule", "add", "b", "@yearly", "--tz", "Europe/Amsterdam")
    queue.ok("schedule", "add", "a", "30 2 * * *")
    queue.ok("schedule", "pause", "a")
    queue.ok("schedule", "trigger", "b")
    first, second = (line.split("\t") for line in queue.ok("schedule", "list").lines)
    assert first == ["a", "30 2 * * *", "paused", "-", "0", "0", "0"]
    assert (second[0], second[1], second[3]) == ("b", "@yearly Europe/Amsterdam", "open")
    assert [planned[5:] for planned in second[2].split(", ")] == ["12-31T23:00:00.000Z"] * 3


def test_documents_are_those_of_show(queue):
    queue.ok("schedule", "add", "a", "@yearly")
    [listed] = queue.ok("schedule", "list", "--json").json["schedules"]
    assert listed == queue.ok("schedule", "show", "a", "--json").json

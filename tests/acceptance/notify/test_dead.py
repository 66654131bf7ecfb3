"""opsq notify dead: what was given up, and why."""


def test_what_was_given_up_is_listed_with_its_event(notified, one_dead):
    [delivery] = notified.ok("notify", "dead", "--json").json["deliveries"]
    assert (delivery["target"], delivery["attempts"]) == ("on", 1)
    assert delivery["error"] == "sh: exit status 1: no mail"
    assert delivery["event"]["kind"] == "resumed"
    [line] = notified.ok("notify", "dead").lines
    fields = line.split("\t")
    assert (fields[0], fields[1], fields[5]) == (one_dead, "on", "Work of tenant=a was resumed.")


def test_nothing_was_given_up(queue):
    assert queue.ok("notify", "dead").lines == []
    assert queue.ok("notify", "dead", "--json").json == {"deliveries": []}
    assert "There are no dead deliveries." in queue.on_terminal("notify", "dead").text

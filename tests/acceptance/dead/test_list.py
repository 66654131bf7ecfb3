"""opsq dead list: dead chunks, why and when they died."""


def names(ran):
    return [line.split("\t")[0] for line in ran.lines]


def test_list_names_the_chunk_and_why_it_died(queue, dead):
    (line,) = queue.ok("dead", "list", dead).lines
    fields = line.split("\t")
    assert (fields[0], fields[5]) == (f"{dead}/0", "boom")
    (chunk,) = queue.ok("dead", "list", "--json").json["chunks"]
    assert (chunk["submission_id"], chunk["index"], chunk["attempts"], chunk["reason"]) == (dead, 0, 1, "boom")


def test_plain_form_lists(queue, dead):
    assert queue.ok("dead", dead).out == queue.ok("dead").out == queue.ok("dead", "list").out


def test_letters_of_a_stopped_queue_are_still_listed(queue, dead):
    queue.ok("stop")
    assert names(queue.ok("dead")) == [f"{dead}/0"]
    assert queue.ok("dead", "show", f"{dead}/0", "--json").json["state"] == "dead"
    assert queue("dead", "requeue", dead).status == 4


def test_all_that_a_list_names_are_requeued(queue):
    submission = queue.submit_lines(1500, "--max-attempts", "1", "--on-dead", "keep")
    queue("consume", "--until-empty", "-j", "2", "--", "false")
    listed = names(queue.ok("dead", "list"))
    assert listed == [f"{submission}/{index}" for index in range(1500)]
    assert len(queue.ok("dead", "list", "--json").json["chunks"]) == 1500
    assert len(names(queue.ok("dead", "list", "-n", "7"))) == 7
    drawn = queue.on_terminal("dead", "list").text
    assert f"{submission}/100" not in drawn
    assert "more" in drawn
    ran = queue.shell("opsq dead list | cut -f1 | xargs opsq dead requeue --json")
    assert (ran.status, sum(document["count"] for document in ran.documents)) == (0, 1500), ran
    assert queue.ok("dead", "list").lines == []

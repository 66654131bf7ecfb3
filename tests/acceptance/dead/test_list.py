"""opsq dead list: dead chunks, why and when they died."""


def names(ran):
    return [line.split("\t")[0] for line in ran.lines]


def test_list_names_the_chunk_and_why_it_died(queue, dead):
    (line,) = queue.ok("dead", "list", dead).lines
    assert (line.split("\t")[0], line.split("\t")[-1]) == (f"{dead}/0", "boom")
    (chunk,) = queue.ok("dead", "list", "--json").json["chunks"]
    assert (chunk["submission_id"], chunk["index"], chunk["attempts"], chunk["reason"]) == (dead, 0, 1, "boom")


def test_plain_form_lists(queue, dead):
    assert queue.ok("dead", dead).out == queue.ok("dead").out == queue.ok("dead", "list").out


def test_letters_of_a_stopped_queue_are_still_listed(queue, dead):
    queue.ok("stop")
    assert names(queue.ok("dead")) == [f"{dead}/0"]
    assert queue.ok("dead", "show", f"{dead}/0", "--json").json["state"] == "dead"
    assert queue("dead", "requeue", dead).status == 4

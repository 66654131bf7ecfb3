"""opsq dead drop: gives dead chunks up for good."""


def names(ran):
    return [line.split("\t")[0] for line in ran.lines]


def test_dropped_chunks_count_as_skipped_and_their_results_are_missing(queue, many):
    assert queue.ok("dead", "drop", "-m", "tenant=a", "--json").json == {"count": 3}
    shape = queue.ok("show", "--json", many[0]).json
    assert (shape["state"], shape["dead"], shape["skipped"]) == ("completed", 0, 3)
    assert names(queue.ok("dead")) == [f"{many[1]}/0"]
    assert queue.ok("dead", "requeue", many[0], "--json").json == {"count": 0}
    assert queue("results", many[0]).status == 1
    assert queue.ok("results", "--skip-dead", many[0]).out == b""
    assert queue.ok("show", "--json", f"{many[0]}/1").json["state"] == "skipped"

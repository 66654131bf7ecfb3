"""opsq cancel: what runs loses its reservation; what has ended stays as it is."""


def test_cancelled_submission_is_handed_out_no_more(queue):
    submission = queue.submit_lines(2)
    handle = queue.reserve()
    assert queue.ok("cancel", "--reason", "wrong file", "--json", submission).json == {"count": 1}
    assert queue("reserve").status == 3
    assert queue("complete", handle).status == 5
    shape = queue.ok("show", "--json", submission).json
    assert (shape["state"], shape["reason"]) == ("cancelled", "wrong file")


def test_ended_submission_stays_as_it_is(queue):
    submission = queue.submit_lines(0)
    assert queue.ok("cancel", "--json", submission).json == {"count": 0}
    assert queue.ok("show", "--json", submission).json["state"] == "completed"


def test_unknown_id_is_exit_3(queue):
    assert queue("cancel", "999").status == 3

"""opsq pause: hands out nothing more of some submissions."""


def test_paused_submission_is_not_handed_out_and_what_is_reserved_continues(queue):
    submission = queue.submit_lines(3, "-m", "tenant=a")
    handle = queue.reserve()
    assert queue.ok("pause", "tenant=a", "--json").json == {"count": 1}
    assert queue("reserve").status == 3
    queue.ok("complete", handle)
    assert queue.ok("show", "--json", submission).json["completed"] == 1


def test_second_pause_of_the_same_changes_nothing(queue):
    queue.ok("pause", "--all")
    assert queue.ok("pause", "--all", "--json").json == {"count": 0}


def test_pause_of_nothing_in_particular_is_refused(queue):
    ran = queue("pause")
    assert (ran.status, "--all" in ran.err) == (2, True)

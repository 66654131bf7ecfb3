"""opsq resume: ends a pause, named by the same pairs."""


def test_resumed_submission_is_handed_out_again(queue):
    queue.submit_lines(1, "-m", "tenant=a")
    queue.ok("pause", "tenant=a")
    assert queue.ok("resume", "tenant=a", "--json").json == {"count": 1}
    assert queue.reserve()


def test_pause_that_does_not_exist_is_exit_3(queue):
    queue.ok("pause", "--all")
    assert queue("resume", "tenant=a").status == 3


def test_pause_of_an_operator_needs_operator_to_end(queue):
    queue.ok("pause", "--all", "--operator")
    assert queue("resume", "--all").status == 7
    queue.ok("resume", "--all", "--operator")

"""opsq check: looks for damage, with and without a daemon."""


def test_sound_queue_has_no_problems_running_or_stopped(queue):
    queue.submit_lines(100)
    queue.ok("complete", *queue.ok("reserve", "-n", "70").lines)
    assert queue.ok("check", "--json").json == {"problems": []}
    queue.ok("stop")
    assert queue.ok("check", "--json").json == {"problems": []}
    assert queue.ok("check").out == b""


def test_nothing_to_check_is_exit_4(opsq):
    assert opsq("check").status == 4

"""opsq drain: nothing new comes in, what is there is worked off."""

from waiting import wait_until


def test_drained_daemon_refuses_submissions_over_a_restart_until_that_is_undone(queue):
    submission = queue.submit_lines(1)
    assert queue.ok("drain", "--json").json == {"count": 1}
    assert queue.ok("drain", "--json").json == {"count": 0}
    for _ in range(2):
        ran = queue("submit", "-", "--json", stdin=b"new\n")
        assert ran.status == 6
        assert ran.json["error"]["code"] == "draining"
        assert "opsq drain --undo" in ran.json["error"]["hint"]
        queue.ok("restart")
    assert queue.ok("status", "--json").json["takes_new"] is False
    queue.ok("consume", "--until-empty", "--", "cat")
    assert queue.ok("results", submission).out == b"0\n"
    assert queue.ok("drain", "--undo", "--json").json == {"count": 1}
    queue.submit_lines(1)
    assert queue.ok("status", "--json").json["takes_new"] is True


def test_producer_that_waits_for_room_is_refused_when_the_drain_begins(opsq):
    opsq.ok("start", "--max-backlog-chunks", "1")
    opsq.submit_lines(1)
    opsq.file("in", b"new\n")
    with opsq.running("submit", "in", "--wait-for-room") as process:
        wait_until(lambda: opsq.ok("status", "--json").json["room_waiting"] == 1)
        opsq.ok("drain")
        _, said = process.communicate()
    assert process.returncode == 6
    assert b"being drained" in said


def test_wait_returns_when_nothing_is_unfinished(queue):
    queue.submit_lines(2)
    ran = queue("drain", "--wait", "--timeout", "10ms")
    assert (ran.status, "1 submission not finished yet" in ran.err) == (124, True)
    with queue.running("drain", "--wait") as process:
        queue.ok("consume", "--until-empty", "--", "true")
        process.communicate()
    assert process.returncode == 0


def test_options_that_exclude_each_other_are_exit_2(queue):
    assert queue("drain", "--undo", "--wait").status == 2
    assert queue("drain", "--timeout", "1s").status == 2

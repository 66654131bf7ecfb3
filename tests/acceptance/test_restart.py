"""opsq restart: another process, the same queue."""


def test_restart_is_another_process_with_the_same_submissions(queue):
    submission = queue.submit_lines(1)
    before = queue.ok("status", "--json").json["pid"]
    document = queue.ok("restart", "--json").json
    assert document["status"] == "started"
    assert document["pid"] != before
    assert queue.ok("show", submission, "--json").json["state"] == "open"


def test_restart_starts_when_none_runs(opsq):
    opsq.ok("restart")
    assert opsq.ok("status", "--json").json["state"] == "running"

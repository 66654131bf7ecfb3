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


def test_rule_that_matches_nothing_is_told_and_holds(queue):
    queue.submit_lines(1, "-m", "tenant=flood")
    for words in (["pause", "tenant=flod"], ["limit", "tenant=flod", "-c", "2"], ["weight", "tenant=flod", "2"]):
        ran = queue(*words)
        assert (ran.status, "No submission matches tenant=flod now" in ran.err) == (0, True), ran
    ran = queue("limit", "tennant", "-c", "2")
    assert (ran.status, "No submission matches tennant now" in ran.err) == (0, True), ran
    queue.submit_lines(1, "-m", "tenant=flod")
    assert queue.ok("limit", "tenant=flod", "-c", "3").out == b""
    assert len(queue.ok("limits").lines) == 4


def test_run_under_a_pause_says_once_what_holds_it_back_and_how_to_go_on(queue):
    assert queue("pause", "tenant=acme").status == 0
    queue.file("in", b"a\nb\n")
    with queue.running("run", "in", "-m", "tenant=acme", "--lines", "1", "--", "cat") as process:
        told = process.stderr.readline().decode()
        assert "paused by" in told
        assert "tenant=acme" in told
        assert process.stderr.readline() == b"opsq: `opsq resume tenant=acme` ends the pause.\n"
        assert process.poll() is None
        queue.ok("resume", "tenant=acme")
        out, err = process.communicate()
    assert (process.returncode, out, err) == (0, b"a\nb\n", b"")

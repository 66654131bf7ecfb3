"""opsq stop: ends the daemon and keeps everything."""


def test_stopped_daemon_is_gone_and_its_submissions_are_not(queue):
    submission = queue.submit_lines(2)
    assert queue.ok("stop", "--json").json == {"status": "stopped"}
    assert queue("status").status == 4
    assert not (queue.state_dir / "opsq.sock").exists()
    queue.ok("start")
    assert queue.ok("show", submission, "--json").json["waiting"] == 2


def test_stop_when_none_runs_is_exit_0(opsq):
    assert opsq.ok("stop", "--json").json == {"status": "not_running"}
    assert opsq.ok("stop").out == b""


def test_drain_does_not_wait_for_leases(queue):
    queue.submit_lines(1)
    queue.reserve("--lease", "1h")
    queue.ok("stop", "--drain", "30")


def test_bad_duration_is_exit_2(queue):
    assert queue("stop", "--drain", "soon").status == 2

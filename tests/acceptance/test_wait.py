"""opsq wait: exit statuses that a script can act on."""

import json
import re
import signal


def test_completed_submission_is_exit_0_and_silent(queue):
    submission = queue.submit_lines(1)
    queue.ok("complete", queue.reserve())
    assert queue.ok("wait", submission).out == b""


def test_failed_submission_is_exit_1_and_named(queue):
    good, bad = queue.submit_lines(0), queue.submit_lines(1)
    queue.ok("fail", "--no-retry", "--reason", "bad input", queue.reserve())
    ran = queue("wait", good, bad)
    assert ran.status == 1
    assert bad in ran.err
    assert good not in ran.err
    assert "bad input" in ran.err


def test_cancelled_submission_is_exit_1_with_its_state_in_json(queue):
    submission = queue.submit_lines(1)
    queue.ok("cancel", submission)
    ran = queue("wait", "--json", submission)
    assert ran.status == 1
    assert ran.json["submissions"][0]["state"] == "cancelled"
    assert ran.json["error"]["code"] == "work_failed"


def test_unknown_id_is_exit_3(queue):
    assert queue("wait", queue.submit_lines(1), "999").status == 3
    assert queue("wait", "no-id").status == 3


def test_timeout_is_exit_124(queue):
    ran = queue("wait", "--timeout", "0.05", queue.submit_lines(1))
    assert ran.status == 124


def test_end_of_the_work_ends_the_wait(queue):
    submissions = [queue.submit_lines(1) for _ in range(2)]
    with queue.running("wait", "--json", *submissions) as process:
        for _ in submissions:
            queue.ok("complete", queue.reserve())
        out, _ = process.communicate()
    assert process.returncode == 0
    assert [shape["state"] for shape in json.loads(out)["submissions"]] == ["completed", "completed"]


def test_wait_survives_a_restart_of_the_daemon(queue):
    submission = queue.submit_lines(1)
    with queue.running("wait", submission) as process:
        queue.wait_until_seen()
        queue.ok("restart")
        queue.ok("complete", queue.reserve())
        assert process.communicate() == (b"", b"")
    assert process.returncode == 0


def test_interrupt_is_exit_130_and_quiet(queue):
    with queue.running("wait", queue.submit_lines(1)) as process:
        queue.wait_until_seen()
        process.send_signal(signal.SIGINT)
        assert process.communicate() == (b"", b"")
    assert process.returncode == 130


def test_rate_and_time_left_are_shown_on_a_terminal(queue, terminal):
    submission = queue.submit_lines(3)
    shown = terminal("wait", submission)
    shown.wait("0/3")
    queue.ok("complete", queue.reserve())
    shown.wait("1/3", " left")
    assert re.search(r"\d/[smhd] ", shown.text)  # a rate, in the unit that fits it
    for _ in range(2):
        queue.ok("complete", queue.reserve())
    assert shown.ended() == 0
    assert shown.is_restored


def test_conditions_wait_for_what_is_unfinished_now(queue):
    mine = queue.submit_lines(1, "-m", "tenant=a")
    queue.submit_lines(1, "-m", "tenant=b")
    queue.submit_lines(0, "-m", "tenant=a")
    assert queue("wait", "-m", "tenant=a", "--timeout", "0.1s").status == 124
    with queue.running("wait", "-m", "tenant=a", "--json") as waiting:
        queue.ok("complete", queue.reserve())
        out, _ = waiting.communicate(timeout=180)
    document = json.loads(out)
    assert (waiting.returncode, [each["submission_id"] for each in document["submissions"]]) in ((0, [mine]), (0, []))
    ran = queue("wait", "-m", "tenant=a")
    assert (ran.status, "under these conditions" in ran.err) == (0, True)
    assert queue("wait").status == 2


def test_what_holds_a_submission_back_is_said_once_off_a_terminal(queue):
    submission = queue.submit_lines(1, "-m", "tenant=acme")
    queue.ok("pause", "tenant=acme")
    with queue.running("wait", submission) as process:
        assert f"Submission {submission} has been paused by".encode() in process.stderr.readline()
        assert b"`opsq resume tenant=acme` ends the pause." in process.stderr.readline()
        queue.ok("resume", "tenant=acme")
        queue.ok("complete", queue.reserve())
        assert process.communicate() == (b"", b"")
    assert process.returncode == 0


def test_quiet_wait_says_nothing_of_what_holds_back(queue):
    submission = queue.submit_lines(1, "-m", "tenant=acme")
    queue.ok("pause", "tenant=acme")
    ran = queue("wait", submission, "--timeout", "5s", "--quiet")
    assert ran.status == 124
    assert "paused" not in ran.err


def test_submission_that_is_not_due_says_when(queue):
    submission = queue.submit_lines(1, "--delay", "1h")
    with queue.running("wait", submission) as process:
        assert b"is not due until" in process.stderr.readline()

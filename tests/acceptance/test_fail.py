"""opsq fail: a failed attempt is retried after its pause, or the chunk dies."""

import os


def test_failed_chunk_is_retried_after_the_delay_with_one_attempt_more(queue):
    queue.submit_lines(1)
    queue.ok("fail", queue.reserve(), "--delay", "0.01")
    assert queue.ok("reserve", "--wait", "20", "--json").json["chunks"][0]["attempt"] == 1


def test_back_off_keeps_the_chunk_delayed(queue):
    submission = queue.submit_lines(1, "--backoff", "1h")
    queue.ok("fail", queue.reserve())
    assert queue("reserve").status == 3
    assert queue.ok("show", submission, "--json").json["delayed"] == 1


def test_no_retry_buries_the_chunk_with_its_reason(queue):
    submission = queue.submit_lines(1)
    queue.ok("fail", queue.reserve(), "--no-retry", "--reason", "line 3: bad\tdate")
    fields = queue.ok("dead", submission).text.split("\t")
    assert fields[0] == f"{submission}/0"
    assert fields[-2] == r"line 3: bad\tdate"


def test_reason_that_is_no_text_is_written_with_escapes(queue):
    """It is the tail of what some program said, cut wherever that fell."""
    submission = queue.submit_lines(1)
    queue.ok("fail", queue.reserve(), "--no-retry", "--reason", os.fsdecode(b"na\xc3\xafve \xff"))
    assert queue.ok("dead", submission).text.split("\t")[-2] == "na\u00efve \\xff"


def test_contradicting_options_are_exit_2(queue):
    queue.submit_lines(1)
    ran = queue("fail", queue.reserve(), "--no-retry", "--delay", "1")
    assert ran.status == 2
    assert "--no-retry and --delay" in ran.err


def test_failure_under_a_lost_reservation_is_refused(queue):
    queue.submit_lines(1)
    handle = queue.reserve()
    queue.ok("release", handle)
    assert queue("fail", handle).status == 5

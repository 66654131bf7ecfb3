"""--unique as cron meets it: one submission at a time, until it starts or until it ends."""


def submit(queue, *options):
    return queue.ok("submit", "-", "--unique", "nightly", "--json", *options, stdin=b"x\n").json


def test_key_is_taken_until_the_end_by_default(queue):
    first = submit(queue)
    again = submit(queue)
    assert (first["created"], again["created"]) == (True, False)
    assert again["submission_id"] == first["submission_id"]
    handle = queue.reserve()
    assert submit(queue, "--unique-until", "done")["submission_id"] == first["submission_id"]
    queue.ok("complete", handle)
    assert submit(queue)["created"]


def test_key_is_taken_until_the_start_if_that_is_asked_for(queue):
    first = submit(queue, "--unique-until", "start")
    assert not submit(queue, "--unique-until", "start")["created"]
    queue.reserve()
    queue.ok("restart")
    second = submit(queue, "--unique-until", "start")
    assert second["created"]
    assert second["submission_id"] != first["submission_id"]


def test_scope_of_a_key_is_shown(queue):
    """The same for `opsq list`, whose JSON has the same parts."""
    submission = submit(queue, "--unique-until", "start")["submission_id"]
    assert "unique\tnightly (until the start)" in queue.ok("show", submission).lines
    queue.reserve()
    assert "unique\tnightly (until the start, free again)" in queue.ok("show", submission).lines
    [listed] = queue.ok("list", "--json").json["submissions"]
    assert (listed["unique"], listed["unique_until"], listed["unique_held"]) == ("nightly", "start", False)
    other = submit(queue)["submission_id"]
    assert "unique\tnightly (until the end)" in queue.ok("show", other).lines


def test_key_that_is_taken_needs_no_room(opsq):
    opsq.ok("start", "--max-backlog-chunks", "1")
    first = submit(opsq)
    assert submit(opsq) == first | {"created": False}
    assert opsq("submit", "-", stdin=b"x\n").status == 6


def test_unique_until_without_unique_is_a_usage_error(queue):
    ran = queue("submit", "-", "--unique-until", "start", stdin=b"x\n")
    assert ran.status == 2
    assert "--unique" in ran.err


def submit_once(queue, *options, content=b"x\n"):
    return queue("submit", "-", "--idempotency-key", "day 1", "--json", *options, stdin=content)


def test_idempotency_key_outlives_the_end(queue):
    first = submit_once(queue).json
    assert first["created"]
    assert submit_once(queue, "--keep", "1d").json == first | {"created": False}
    queue.ok("complete", queue.reserve())
    assert submit_once(queue, "--keep", "1d").json == first | {"created": False}
    assert submit_once(queue, "--keep", "0s").json["created"]


def test_idempotency_key_of_something_else_is_exit_5(queue):
    first = submit_once(queue).json["submission_id"]
    for options, content, word in ([], b"y\n", "content"), (["-m", "k=v"], b"x\n", "metadata"):
        ran = submit_once(queue, *options, content=content)
        assert (ran.status, first in ran.err, f"other {word}" in ran.err) == (5, True, True), ran
    assert len(queue.ok("list").lines) == 1


def test_idempotency_key_is_refused_where_it_cannot_hold(queue):
    assert submit_once(queue, "--unique", "k").status == 2
    assert queue("submit", "-", "--keep", "1d", stdin=b"x\n").status == 2
    ran = submit_once(queue, "--keep", "8d")
    assert (ran.status, "finished_days" in ran.err) == (2, True), ran

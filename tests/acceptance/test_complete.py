"""opsq complete: the end of a chunk, and what a token that does not hold any more gives."""


def test_complete_ends_the_chunk(queue):
    submission = queue.submit_lines(2)
    queue.ok("complete", *queue.ok("reserve", "-n", "2").lines)
    assert queue.ok("show", submission, "--json").json["state"] == "completed"


def test_result_comes_from_a_file(queue):
    submission = queue.submit_lines(1)
    queue.ok("complete", queue.reserve(), "--result", queue.file("result", b"x" * 10_000))
    assert queue.ok("results", submission).out == b"x" * 10_000


def test_the_same_completion_again_is_exit_0_or_5_but_never_counted_twice(queue):
    """A repeated completion under the same token answers done; a new result does not replace the first."""
    submission = queue.submit_lines(1)
    handle = queue.reserve()
    queue.ok("complete", handle, "-r", "-", stdin=b"first")
    again = queue("complete", handle, "-r", "-", stdin=b"second")
    assert again.status in {0, 5}
    assert queue.ok("results", submission).out == b"first"


def test_completion_with_a_token_of_before_is_refused_when_finished_by_another(queue):
    queue.submit_lines(1)
    old = queue.reserve()
    queue.ok("release", old)
    queue.ok("complete", queue.reserve())
    ran = queue("complete", old, "--json")
    assert ran.status == 5
    assert ran.json["error"]["code"] in {"already_finished", "reservation_lost"}


def test_forged_token_is_exit_5(queue):
    submission = queue.submit_lines(1)
    ran = queue("complete", f"{submission}/0@1.0.1.1")
    assert ran.status == 5
    assert f"{submission}/0" in ran.err


def test_bad_command_lines_are_exit_2(queue):
    handle = "1/0@1.0.1.1"
    for words in ([], ["handle"], [handle, handle, "--result", "-"], [handle, "--result", "vanished"]):
        assert queue("complete", *words).status == 2


def test_closed_stdin_as_result_is_exit_2(queue):
    queue.submit_lines(1)
    assert queue("complete", queue.reserve(), "--result", "-").status == 2


def test_json_counts(queue):
    queue.submit_lines(1)
    assert queue.ok("complete", "--json", queue.reserve()).json == {"count": 1}

"""opsq reserve: one handle a line; nothing and exit 3 when nothing is free."""

import re

from waiting import wait_until

HANDLE = re.compile(r"\d+/\d+@[0-9a-f.]+")


def test_prints_one_handle_a_line_up_to_the_count(queue):
    submission = queue.submit_lines(3)
    lines = queue.ok("reserve", "-n", "2").lines
    assert len(lines) == 2
    assert all(HANDLE.fullmatch(line) and line.startswith(submission) for line in lines)
    assert len(queue.ok("reserve", "-n", "2").lines) == 1


def test_with_nothing_free_it_prints_nothing_and_is_exit_3(queue):
    ran = queue("reserve")
    assert (ran.status, ran.out, ran.err) == (3, b"", "")


def test_json_names_the_chunks_and_also_says_that_there_are_none(queue):
    assert queue("reserve", "--json").json["error"]["code"] == "nothing_free"
    submission = queue.submit_lines(1, "--reservation", "2h")
    document = queue.ok("reserve", "--json").json
    (chunk,) = document["chunks"]
    assert HANDLE.fullmatch(chunk["handle"])
    assert (chunk["submission_id"], chunk["index"], chunk["attempt"]) == (submission, 0, 0)
    assert document["deadline_s"] == 7200


def test_lease_survives_the_process_and_a_restart_of_the_daemon(queue):
    queue.submit_lines(1)
    handle = queue.reserve("--lease", "1h")
    queue.ok("restart")
    assert queue("reserve").status == 3
    queue.ok("complete", handle)


def test_short_lease_expires_and_the_chunk_is_offered_again(queue):
    queue.submit_lines(1, "--backoff", "0")
    queue.reserve("--lease", "0.05")
    assert queue.ok("reserve", "--wait", "20").text


def test_length_of_the_submission_is_that_of_the_lease(queue):
    queue.submit_lines(1, "--reservation", "0.1", "--backoff", "0")
    queue.reserve()
    assert queue.ok("reserve", "--wait", "20", "--lease", "1h").text


def test_wait_parks_until_a_chunk_comes(queue):
    with queue.running("reserve", "--wait", "30") as process:
        wait_until(lambda: queue.ok("status", "--json").json["parked"], 180, "a parked reserve")
        submission = queue.submit_lines(1)
        out, _ = process.communicate()
    assert out.decode().startswith(submission)
    assert process.returncode == 0


def test_wait_that_ends_in_vain_is_exit_3(queue):
    assert queue("reserve", "--wait", "0.05").status == 3


def test_order_is_that_of_the_strategy(queue):
    old, new = queue.submit_lines(1), queue.submit_lines(1)
    assert queue.ok("reserve", "-s", "NewestFirst").text.startswith(new)
    assert queue.ok("reserve", "-s", "OldestFirst").text.startswith(old)


BAD = [
    (["-n", "0"], "-n 0: give a number"),
    (["-n"], "-n needs a value"),
    (["--lease", "long"], "--lease: 'long' is not a duration"),
    (["--lease", "0"], "--lease 0: give more than 0"),
    (["--strategy", "Fastest"], "Fastest"),
    (["--bogus"], "no option --bogus"),
    (["extra"], "takes no argument"),
    (["--json=1"], "--json takes no value"),
]


def test_bad_options_are_exit_2_and_named(queue):
    for words, told in BAD:
        ran = queue("reserve", *words)
        assert ran.status == 2
        assert told in ran.err
        assert queue("reserve", "--json", *words).json["error"]["exit"] == 2


def test_environment_stands_in_for_options(queue):
    queue.submit_lines(3)
    assert len(queue("reserve", environ={"OPSQ_RESERVE_COUNT": "2"}).lines) == 2
    assert queue("reserve", environ={"OPSQ_JSON": "yes"}).json["chunks"]
    assert queue("reserve", environ={"OPSQ_RESERVE_COUNT": "many"}).status == 2


def test_daemon_that_is_stopping_is_exit_4_and_not_an_empty_queue(queue):
    queue.submit_lines(2)
    busy = "touch begun; until [ -e go ]; do sleep 0.1; done"
    with queue.running("consume", "--max-chunks", "1", "--", "sh", "-c", busy) as consumer:
        wait_until((queue.folder / "begun").exists, 180, "a chunk that is worked on")
        with queue.running("stop") as stop:
            wait_until(lambda: queue.ok("status", "--json").json["state"] == "draining", 180, "the drain")
            ran = queue("reserve")
            (queue.folder / "go").touch()
            consumer.communicate()
            assert stop.wait(180) == 0
    assert (ran.status, ran.out) == (4, b"")
    assert "is stopping" in ran.err
    assert "--wait" in ran.err

"""opsq results: in chunk order, byte exact; never half a result for a whole one."""

import base64
import sqlite3


def complete(queue, count, result=lambda index: b"r%d\n" % index):
    """Complete `count` chunks, the last index first, each with its result."""
    handles = queue.ok("reserve", "-n", str(count), "-s", "OldestFirst").lines
    for handle in sorted(handles, key=lambda text: -int(text.partition("/")[2].partition("@")[0])):
        index = int(handle.partition("/")[2].partition("@")[0])
        queue.ok("complete", handle, "--result", "-", stdin=result(index))


def test_results_come_in_chunk_order_however_they_were_completed(queue):
    submission = queue.submit_lines(3)
    complete(queue, 3)
    assert queue.ok("results", submission).out == b"r0\nr1\nr2\n"


def test_bytes_survive_unchanged_small_and_large(queue):
    submission = queue.submit_lines(2)
    parts = [b"\0\r\n\xff no end", b"\xfe\n" * 50_000]
    complete(queue, 2, parts.__getitem__)
    assert queue.ok("results", submission).out == b"".join(parts)
    queue.ok("results", submission, "-o", "out")
    assert (queue.folder / "out").read_bytes() == b"".join(parts)


def test_output_named_as_stdout_is_stdout(queue):
    submission = queue.submit_lines(2)
    complete(queue, 2)
    for output in ("-", "/dev/stdout"):
        assert queue.ok("results", submission, "-o", output).out == b"r0\nr1\n"
    assert not (queue.folder / "-").exists()
    assert len(queue.ok("results", submission, "-o", "-", "--json").json["results"]) == 2
    queue.file("log", b"before\n")
    assert queue.shell(f"opsq results {submission} -o /dev/stdout >> log").status == 0
    assert (queue.folder / "log").read_bytes() == b"before\nr0\nr1\n"


def test_header_is_left_out_of_all_but_the_first(queue):
    submission = queue.submit_lines(3)
    complete(queue, 3, lambda index: b"'h\n'|i\n%d" % index * (1 if index else 2))
    ran = queue.ok("results", submission, "--header-once", "--end-lines", "--csv-delimiter", "|", "--csv-quote", "'")
    assert ran.out == b"'h\n'|i\n0'h\n'|i\n0\n1\n2\n"


def test_unfinished_submission_prints_nothing_and_is_exit_5(queue):
    submission = queue.submit_lines(2)
    complete(queue, 1)
    ran = queue("results", submission)
    assert (ran.status, ran.out) == (5, b"")
    assert f"opsq wait {submission}" in ran.err
    assert queue("results", submission, "-o", "out").status == 5
    assert not (queue.folder / "out").exists()


def test_follow_writes_each_result_as_it_comes(queue):
    submission = queue.submit_lines(2)
    first, second = queue.ok("reserve", "-n", "2", "-s", "OldestFirst").lines
    with queue.running("results", "--follow", submission) as process:
        queue.ok("complete", first, "-r", "-", stdin=b"r0\n")
        assert process.stdout.readline() == b"r0\n"
        queue.ok("complete", second, "-r", "-", stdin=b"r1\n")
        out, err = process.communicate()
    assert (process.returncode, out, err) == (0, b"r1\n", b"")


def test_unknown_submission_is_exit_3(queue):
    assert queue("results", "999").status == 3
    assert queue("results", "999", "--follow").status == 3


def test_dead_chunk_stops_the_stream_and_is_named(queue):
    submission = queue.submit_lines(3, "--on-dead", "keep")
    first, dead, last = queue.ok("reserve", "-n", "3", "-s", "OldestFirst").lines
    queue.ok("complete", first, "-r", "-", stdin=b"one")
    queue.ok("complete", last, "-r", "-", stdin=b"three")
    queue.ok("fail", "--no-retry", dead)
    ran = queue("results", submission)
    assert (ran.status, ran.out) == (1, b"one")
    assert f"{submission}/1" in ran.err
    assert queue.ok("results", "--skip-dead", submission).out == b"onethree"
    assert queue("results", "-o", "out", submission).status == 1
    assert not (queue.folder / "out").exists()


def test_json_holds_text_or_base64_and_parses_also_when_it_stops(queue):
    submission = queue.submit_lines(3, "--on-dead", "keep")
    first, second, dead = queue.ok("reserve", "-n", "3", "-s", "OldestFirst").lines
    queue.ok("complete", first, "-r", "-", stdin="é".encode())
    queue.ok("complete", second, "-r", "-", stdin=b"\xff" * 5000)
    assert queue("results", "--json", submission).json["error"]["exit"] == 5
    queue.ok("fail", "--no-retry", dead)
    ran = queue("results", "--json", submission)
    assert ran.status == 1
    assert ran.json["results"][0]["text"] == "é"
    assert base64.b64decode(ran.json["results"][1]["base64"]) == b"\xff" * 5000
    assert ran.json["error"]["exit"] == 1


def test_full_device_is_exit_6_not_a_success(queue):
    submission = queue.submit_lines(1)
    complete(queue, 1)
    ran = queue.shell(f"opsq results {submission} > /dev/full")
    assert ran.status == 6
    assert "No space left" in ran.err


def test_cancelled_submission_gives_its_reason_and_no_advice_about_dead_chunks(queue):
    submission = queue.submit_lines(1)
    queue.ok("cancel", submission, "--reason", "wrong file")
    ran = queue("results", submission)
    assert ran.status == 1
    assert "is cancelled: wrong file" in ran.err
    assert "dead list" not in ran.err


def test_malformed_result_is_named_and_left_out_if_asked(queue):
    """As an earlier version stored whatever a consumer sent."""
    submission = queue.submit_lines(3)
    complete(queue, 3)
    queue.ok("stop")
    with sqlite3.connect(queue.state_dir / "opsq.sqlite") as database:
        database.execute("UPDATE result SET results = x'05' WHERE mask = 2")
    database.close()
    queue.ok("start")
    ran = queue("results", submission)
    assert ran.status == 6
    assert f"{submission}/1" in ran.err
    assert "--skip-bad" in ran.err
    assert ran.out == b"r0\n"
    ran = queue("results", submission, "--skip-bad")
    assert (ran.status, ran.out) == (0, b"r0\nr2\n")
    assert f"{submission}/1" in ran.err
    assert len(queue("results", submission, "--skip-bad", "--json").json["results"]) == 2


def test_result_that_is_gone_from_the_store_is_left_out_if_asked(queue):
    submission = queue.submit_lines(3)
    complete(queue, 3, lambda index: b"%d" % index * (5000 if index == 1 else 1))
    [stored] = (queue.state_dir / "content").glob("*/results/*")
    stored.unlink()
    assert queue("results", submission).status == 4
    ran = queue("results", submission, "--skip-bad")
    assert (ran.status, ran.out) == (0, b"02")
    assert f"{submission}/1" in ran.err

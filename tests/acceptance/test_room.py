"""Back-pressure as a shell meets it: a submit for which there is no room exits 6, or waits.

Work that is there goes on.
"""

import gzip
import os
import signal

import pytest

from waiting import wait_until

DEADLINE_S = 180


@pytest.fixture
def queue(opsq):
    """The program, with a daemon that lets ten chunks be unfinished."""
    opsq.ok("start", "--max-backlog-chunks", "10")
    return opsq


def folders(queue):
    """The content that is in the store."""
    return [name for name in os.listdir(queue.state_dir / "content") if not name.startswith("store-")]


def wait_until_waiting(queue, count):
    wait_until(lambda: queue.ok("status", "--json").json["room_waiting"] == count, DEADLINE_S, f"{count} wait for room")


def complete_all(queue, count):
    handles = queue.ok("reserve", "-n", str(count)).lines
    assert len(handles) == count
    queue.ok("complete", *handles)


def test_submit_over_the_limit_exits_6_says_what_is_so_and_leaves_nothing(queue):
    queue.submit_lines(8)
    before = folders(queue)
    ran = queue("submit", "-", "--lines", "1", stdin=b"line\n" * 3)
    assert (ran.status, ran.out) == (6, b"")
    assert "3 more chunks: 8 are unfinished, and 10 may be" in ran.err
    assert "max_backlog_chunks. --wait-for-room waits for it." in ran.err
    assert folders(queue) == before
    error = queue("submit", "-", "--lines", "1", "--json", stdin=b"line\n" * 11).json["error"]
    assert (error["code"], error["exit"]) == ("no_room", 6)
    assert "11 chunks are more than the 10" in error["message"]
    assert "--wait-for-room" not in error["hint"]
    queue.submit_lines(2)


def test_full_backlog_is_told_before_a_file_is_read(queue):
    """A named pipe that nobody writes would never end."""
    queue.submit_lines(10)
    os.mkfifo(queue.folder / "pipe")
    descriptor = os.open(queue.folder / "pipe", os.O_RDWR)
    try:
        assert queue("submit", "pipe").status == 6
    finally:
        os.close(descriptor)


def test_count_of_files_is_known_before_they_are_copied(queue):
    for number in range(11):
        queue.file(f"{number}.txt", b"x" * 10_000)
    ran = queue("submit", "--per-file", "*.txt")
    assert ran.status == 6
    assert folders(queue) == []


def test_submit_that_waits_for_room_gets_in_when_chunks_complete(queue):
    queue.submit_lines(10)
    queue.file("in", b"a\nb\nc\n")
    with queue.running("submit", "in", "--lines", "1", "--wait-for-room") as process:
        wait_until_waiting(queue, 1)
        complete_all(queue, 1)
        wait_until_waiting(queue, 1)  # it was let in to write, and waits again with all of its chunks
        complete_all(queue, 2)
        out, err = process.communicate(timeout=DEADLINE_S)
    assert (process.returncode, err) == (0, b"")
    assert queue.ok("show", out.decode().strip(), "--json").json["chunks"] == 3
    state = queue.ok("status", "--json").json
    assert (state["backlog"], state["backlog_limit"], state["room_waiting"]) == (10, 10, 0)
    assert state["disk_free_bytes"] > 0


@pytest.mark.parametrize("option", [["--wait-for-room=0.2s"], []], ids=["option", "variable"])
def test_submit_waits_no_longer_than_it_was_told(queue, option):
    queue.submit_lines(10)
    queue.file("in", b"x\n")
    ran = queue("submit", "in", *option, environ={"OPSQ_SUBMIT_WAIT_FOR_ROOM": "0.1s"})
    assert (ran.status, ran.out) == (6, b"")
    assert "10 are unfinished" in ran.err


def test_value_of_wait_for_room_stands_behind_an_equals_sign(queue):
    ran = queue("submit", "--wait-for-room=soon", "in")
    assert ran.status == 2
    assert "--wait-for-room: 'soon' is not a duration" in ran.err


def test_interrupted_while_it_waits_for_room_it_leaves_nothing(queue):
    queue.submit_lines(10)
    before = folders(queue)
    queue.file("in", b"x\n" * 10_000)
    with queue.running("submit", "in", "--wait-for-room") as process:
        wait_until_waiting(queue, 1)
        process.send_signal(signal.SIGINT)
        assert process.wait(DEADLINE_S) == 130
    wait_until_waiting(queue, 0)
    assert folders(queue) == before
    assert len(queue.ok("list").lines) == 1


@pytest.mark.parametrize("before", [9, 10], ids=["with its content written", "without"])
def test_waiting_submit_survives_a_restart_of_the_daemon(queue, before):
    queue.submit_lines(before)
    queue.file("in", b"a\nb\n")
    with queue.running("submit", "in", "--lines", "1", "--wait-for-room") as process:
        wait_until_waiting(queue, 1)
        queue.ok("restart", "--max-backlog-chunks", "10")
        wait_until_waiting(queue, 1)
        complete_all(queue, before - 8)
        assert process.wait(DEADLINE_S) == 0


def test_run_says_that_it_waits_for_room_and_goes_on_when_there_is_some(queue):
    queue.submit_lines(9)
    queue.file("in", b"a\nb\n")
    with queue.running("run", "in", "--lines", "1", "--", "tr", "a-z", "A-Z") as process:
        wait_until_waiting(queue, 1)
        assert b"2 more chunks: 9 are unfinished, and 10 may be. Waiting for it.\n" in process.stderr.readline()
        complete_all(queue, 1)
        out, err = process.communicate()
    assert (process.returncode, out, err) == (0, b"A\nB\n", b"")


def test_run_makes_its_own_room_where_a_stream_is_larger_than_the_backlog(queue):
    """It is handed over in segments that grow, here of 2, 4 and 7 chunks."""
    queue.file("in.gz", gzip.compress((b"x" * ((1 << 20) - 1) + b"\n") * 26))
    ran = queue("run", "in.gz", "--lines", "2", "--", "wc", "-l")
    assert (ran.status, ran.out) == (0, b"2\n" * 13), ran
    assert ran.err.count("Waiting for it.") <= 1


def test_run_that_waits_for_room_ends_by_a_signal_and_leaves_nothing(queue):
    queue.submit_lines(10)
    queue.file("in", b"a\n")
    with queue.running("run", "in", "--", "cat") as process:
        wait_until_waiting(queue, 1)
        process.send_signal(signal.SIGINT)
        assert process.wait(DEADLINE_S) == 130
    wait_until_waiting(queue, 0)
    assert len(queue.ok("list").lines) == 1


def test_run_that_is_larger_than_the_backlog_is_refused(queue):
    queue.file("in", b"a\n" * 11)
    ran = queue("run", "in", "--lines", "1", "--", "cat")
    assert ran.status == 6
    assert "11 chunks are more than the 10" in ran.err


def test_terminal_tells_that_it_waits_and_status_shows_the_bound(queue):
    queue.submit_lines(10)
    queue.file("in", b"x\n")
    ran = queue.on_terminal("submit", "in", "--wait-for-room=20s")  # time enough to get there on a busy machine
    assert "Waiting for it." in " ".join(ran.out.decode().split())
    assert "10 of at most 10" in queue.on_terminal("status").out.decode()


def test_disk_below_its_floor_refuses_submits_and_goes_on_with_the_rest(queue):
    queue.submit_lines(2)
    queue.ok("restart", "--min-free-bytes", "1000000G")
    ran = queue("submit", "-", stdin=b"x\n")
    assert ran.status == 6
    assert "must stay free" in ran.err
    assert "min_free_bytes" in ran.err
    complete_all(queue, 2)

"""The options of opsq consume as a shell user meets them.

How many, how long, which end means what, and what is said about it.
"""

import os
import re
import signal
import subprocess
import time

import pytest

from opsq.runner.stop_signals import ECHO_S
from waiting import wait_until


def ended(ran):
    """The lines of a consume with --json without the last, by index."""
    return {line["index"]: line for line in ran.documents[:-1]}


def test_max_chunks_ends_after_exactly_so_many_and_reserves_no_more(queue):
    submission = queue.submit_lines(10)
    ran = queue.ok("consume", "-j", "3", "--max-chunks", "4", "--json", "--", "cat")
    assert ran.documents[-1] == {"completed": 4, "failed": 0, "dead": 0, "released": 0}
    shown = queue.ok("show", submission, "--json").json
    assert (shown["completed"], shown["waiting"], shown["reserved"]) == (4, 6, 0)


def test_max_chunks_counts_failures_too_and_waits_for_chunks_that_are_not_there_yet(queue):
    with queue.running("consume", "-j", "1", "--max-chunks", "1", "--json", "--", "false") as process:
        queue.wait_until_seen()
        queue.submit_lines(2, "--backoff", "1h")
        out, _ = process.communicate()
    assert process.returncode == 0
    assert out.splitlines()[-1] == b'{"completed":0,"failed":1,"dead":0,"released":0}'


def test_stop_after_ends_one_that_waits_for_work(queue):
    assert queue.ok("consume", "--stop-after", "0.1", "--", "cat").out == b""


def test_submission_takes_no_other_and_ends_when_that_one_is_done(queue):
    queue.submit_lines(3)
    wanted = queue.submit_lines(2)
    ran = queue.ok("consume", "--submission", wanted, "-s", "OldestFirst", "--until-empty", "--json", "--", "cat")
    assert {line["submission_id"] for line in ran.documents[:-1]} == {wanted}
    assert ran.documents[-1]["completed"] == 2
    assert (
        queue.ok("consume", "--submission", wanted, "--until-empty", "--json", "--", "cat").documents[-1]["completed"]
        == 0
    )


def test_submission_that_does_not_exist_is_exit_3(queue):
    assert queue("consume", "--submission", "12345", "--until-empty", "--", "cat").status == 3


def test_statuses_complete_retry_and_bury_as_listed_and_a_completion_keeps_its_status(queue):
    submission = queue.ok(
        "submit",
        "-",
        "-l",
        "1",
        "--on-dead",
        "keep",
        "--max-attempts",
        "3",
        "--backoff",
        "0.01,1,1",
        stdin=b"3\n9\n5\n0\n",
    ).text
    script = 'read status; echo "$status"; exit "$status"'
    lists = ("--complete-on", "0,3", "--bury-on", "9", "--retry-on", "5")
    ran = queue("consume", "-j", "1", "--until-empty", "--json", *lists, "--", "sh", "-c", script)
    assert ran.status == 1
    assert [(end["outcome"], end["exit_status"]) for end in (ended(ran)[index] for index in range(4))] == [
        ("completed", 3),
        ("failed", 9),
        ("failed", 5),
        ("completed", 0),
    ]
    attempts = {
        chunk["index"]: chunk["attempts"] for chunk in queue.ok("dead", "list", submission, "--json").json["chunks"]
    }
    assert attempts == {1: 1, 2: 3}
    assert queue.ok("results", submission, "--skip-dead").out == b"3\n0\n"


def test_status_in_two_lists_is_exit_2_and_names_both(queue):
    ran = queue("consume", "--retry-on", "1-5", "--bury-on", "5", "--", "cat")
    assert ran.status == 2
    assert "--retry-on and --bury-on both name 5" in ran.err


def test_127_of_a_later_chunk_is_a_failure_like_any_other(queue):
    """One bad record does not stop every consumer."""
    queue.submit_lines(3, "--on-dead", "keep", "--max-attempts", "1")
    script = "read x; [ $x != 1 ] || exit 127; cat"
    ran = queue("consume", "-j", "1", "-s", "OldestFirst", "--until-empty", "--json", "--", "sh", "-c", script)
    assert (ran.status, ran.documents[-1]["completed"], ran.documents[-1]["dead"]) == (1, 2, 1)


def test_127_in_a_list_means_what_the_list_says(queue):
    queue.submit_lines(2)
    ran = queue.ok("consume", "--until-empty", "--complete-on", "0,127", "--json", "--", "sh", "-c", "exit 127")
    assert ran.documents[-1]["completed"] == 2


@pytest.mark.parametrize(("script", "status"), [("exit 0", 0), ("exit 9", 9), ("kill -SEGV $$", 139)])
def test_exit_status_of_the_child_becomes_our_own(queue, script, status):
    queue.submit_lines(1)
    assert queue("consume", "--max-chunks", "1", "--exit-status", "child", "--", "sh", "-c", script).status == status


def test_exit_status_of_the_child_stands_for_a_dead_chunk_too(queue):
    queue.submit_lines(1, "--max-attempts", "1")
    ran = queue("consume", "--until-empty", "--exit-status", "child", "--", "sh", "-c", "exit 9")
    assert (ran.status, "1 chunk died" in ran.err) == (9, True)


def test_program_that_runs_too_long_is_ended_with_its_descendants_and_has_failed(queue):
    """This is no matter of reservations."""
    submission = queue.submit_lines(1, "--max-attempts", "1")
    script = "sh -c 'echo $$ > grandchild; while :; do sleep 0.01; done' & wait"
    ran = queue("consume", "--until-empty", "--max-runtime", "0.5", "--json", "--", "sh", "-c", script)
    assert ran.status == 1
    assert ended(ran)[0]["reason"] == "ran longer than 0.5s"
    (chunk,) = queue.ok("dead", "list", submission, "--json").json["chunks"]
    assert chunk["reason"] == "ran longer than 0.5s"
    assert not _is_alive(int((queue.folder / "grandchild").read_text()))


def test_program_that_is_deaf_is_killed_when_its_grace_is_over_too(queue):
    queue.submit_lines(1, "--max-attempts", "1")
    script = "trap '' TERM; echo here >&2; while :; do sleep 0.01; done"
    ran = queue(
        "consume", "--until-empty", "--max-runtime", "0.3", "--grace", "0.1", "--json", "--", "sh", "-c", script
    )
    assert (ran.status, ended(ran)[0]["signal"], ended(ran)[0]["reason"]) == (
        1,
        "SIGKILL",
        "ran longer than 0.3s: here",
    )


def test_program_that_writes_without_end_has_failed_and_others_complete(queue):
    submission = queue.submit_lines(2, "--max-attempts", "1", "--on-dead", "keep")
    script = "read n; echo $n; test $n = 0 || exec yes"
    ran = queue("consume", "-j", "2", "--until-empty", "--max-result", "3M", "--json", "--", "sh", "-c", script)
    assert ran.status == 1
    assert ended(ran)[0]["outcome"] == "completed"
    assert ended(ran)[1]["reason"] == "it wrote more than 3M (--max-result)"
    assert queue.ok("results", "--skip-dead", submission).out == b"0\n"


def _is_alive(pid):
    found = subprocess.run(["ps", "-o", "stat=", "-p", str(pid)], capture_output=True, text=True).stdout
    return bool(found.strip()) and not found.startswith("Z")


# --- what programs say ------------------------------------------------------------------------------------------------


def test_stderr_of_programs_comes_in_whole_lines_with_the_chunk_in_front(queue):
    """However they write it: in bits, with colours, with a bar, without a last line end."""
    submission = queue.submit_lines(2)
    script = (
        r"""read x; printf 'first ' >&2; sleep 0.01; """
        r"""printf '\033[31mhalf\033[0m\n10%%\r20%%\n' >&2; printf 'no end' >&2"""
    )
    ran = queue("consume", "-j", "2", "--until-empty", "--", "sh", "-c", script)
    assert ran.status == 0
    lines = ran.err.splitlines()
    for index in (0, 1):
        prefix = f"{submission}/{index}: "
        assert [line for line in lines if line.startswith(prefix)] == [
            prefix + text for text in ("first half", "20%", "no end")
        ]
    assert len(lines) == 6


def test_failure_does_not_repeat_what_its_program_was_seen_to_say(queue):
    submission = queue.submit_lines(1, "--max-attempts", "1")
    ran = queue("consume", "--until-empty", "--", "sh", "-c", "echo no such date >&2; exit 7")
    assert ran.err.splitlines()[:2] == [
        f"{submission}/0: no such date",
        f"opsq: Chunk {submission}/0 (stdin, bytes 0-1) failed (attempt 1 of 1, dead): exit status 7",
    ]


def test_reason_that_a_server_answers_is_told(queue):
    submission = queue.submit_lines(1, "--max-attempts", "1")
    script = (
        'while read -r length name attempt more; do head -c "$length" > /dev/null; printf "8 7\nno such"; printf " "; '
        "done"
    )
    ran = queue("consume", "--until-empty", "--server", "frames", "--", "sh", "-c", script)
    said = f"opsq: Chunk {submission}/0 (stdin, bytes 0-1) failed (attempt 1 of 1, dead): exit status 7: no such"
    assert (ran.status, ran.err.splitlines()[0]) == (1, said)


def test_log_dir_has_a_file_per_attempt_that_says_anything_and_only_we_may_read_it(queue):
    submission = queue.submit_lines(3, "--backoff", "0.01,1,1")
    script = (
        "read x; [ $x != 2 ] || exit 0; printf '\\033[1m%s' $x >&2; [ $x = 0 ] || [ -e tried ] || { : > tried; exit "
        "3; }"
    )
    ran = queue("consume", "-j", "1", "--until-empty", "--log-dir", "logs", "--", "sh", "-c", script)
    assert ran.status == 0
    said = f"opsq: Chunk {submission}/1 (stdin, bytes 2-3) failed (attempt 1 of 5, again at once): exit status 3:  [1m1"
    assert ran.err.splitlines() == [said]
    folder = queue.folder / "logs"
    found = {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*.log")}
    assert found == {f"{submission}/{name}.log": b"\x1b[1m" + name[:1].encode() for name in ("0.0", "1.0", "1.1")}
    assert [path.stat().st_mode & 0o777 for path in (folder, folder / submission)] == [0o700, 0o700]


def test_log_failed_keeps_the_logs_of_failures_only(queue):
    submission = queue.submit_lines(20, "--on-dead", "keep", "--max-attempts", "1")
    other = queue.submit_lines(2)
    script = "read x; echo $x >&2; [ $x != 7 ]"
    assert (
        queue(
            "consume", "-j", "2", "--until-empty", "--log-dir", "logs", "--log-failed", "--", "sh", "-c", script
        ).status
        == 1
    )
    folder = queue.folder / "logs"
    assert [str(path.relative_to(folder)) for path in folder.rglob("*.log")] == [f"{submission}/7.0.log"]
    assert not (folder / other).exists()


def test_log_dir_that_cannot_be_made_is_exit_2_before_anything_runs(queue):
    queue.submit_lines(1)
    queue.file("taken", b"")
    ran = queue("consume", "--until-empty", "--log-dir", "taken/logs", "--", "cat")
    assert ran.status == 2
    assert "--log-dir" in ran.err
    assert queue("consume", "--log-failed", "--", "cat").status == 2


# --- what is told -----------------------------------------------------------------------------------------------------


def test_json_lines_tell_each_end_and_the_document_comes_last(queue):
    submission = queue.submit_lines(1, "--backoff", "0.01,1,1")
    script = "[ -e tried ] || { : > tried; echo oh >&2; kill -9 $$; }"
    first, second, end = queue("consume", "--until-empty", "--json", "--", "sh", "-c", script).documents
    assert (first.pop("run_s") > 0, second.pop("run_s") > 0) == (True, True)
    who = {"submission_id": submission, "index": 0, "input": "-", "offset": 0, "length": 2}
    assert first == who | {
        "attempt": 0,
        "outcome": "failed",
        "exit_status": None,
        "signal": "SIGKILL",
        "reason": "killed by SIGKILL: oh",
    }
    assert second == who | {"attempt": 1, "outcome": "completed", "exit_status": 0, "signal": None, "reason": ""}
    assert end == {"completed": 1, "failed": 1, "dead": 0, "released": 0}


def test_reader_of_json_lines_that_goes_away_ends_no_work(queue):
    submission = queue.submit_lines(300)
    ran = queue.shell("{ opsq consume -j 2 --until-empty --json -- true; echo $? > status; } | head -1")
    assert ran.err == ""
    assert (queue.folder / "status").read_text() == "0\n"
    assert queue.ok("show", submission, "--json").json["completed"] == 300


def test_json_lines_that_cannot_be_written_are_a_failure_after_the_work_is_done(queue):
    submission = queue.submit_lines(3)
    ran = queue.shell("opsq consume --until-empty --json -- true > /dev/full")
    assert (ran.status, "No space left" in ran.err) == (6, True)
    assert queue.ok("show", submission, "--json").json["completed"] == 3


def test_progress_off_a_terminal_is_lines_without_returns(queue):
    """The first comes at once, and nothing comes with --quiet."""
    submission = queue.submit_lines(3, "-m", "tenant=a")
    script = "opsq consume -j 1 --until-empty --progress -- sh -c 'while [ ! -s err ]; do sleep 0.01; done' 2> err"
    assert queue.shell(script).status == 0
    said = (queue.folder / "err").read_text()
    assert re.fullmatch(rf"opsq: \d of 3 chunks done, .*1 running; on {submission} \(tenant=a\)\n", said), said
    queue.submit_lines(1)
    assert queue.ok("consume", "--until-empty", "--progress", "--quiet", "--", "cat").err == ""


def test_progress_on_a_terminal_shows_counts_operations_and_what_runs(queue):
    submission = queue.ok("submit", "-", "-l", "5", stdin=b"x\n" * 20).text
    drawn = queue.on_terminal("consume", "-j", "1", "--until-empty", "--", "sleep", "0.5", columns=200).out.decode()
    assert "1 running" in drawn
    assert submission in drawn
    assert "operations" in drawn
    assert re.search(r"[1-4]/4", drawn)
    assert re.search(r"left", drawn)


def test_progress_on_a_narrow_terminal_keeps_the_counts_whole(queue):
    """What runs on what gives way."""
    queue.ok("submit", "-", "-l", "5", "-m", "tenant=quite-a-long-name-for-one", stdin=b"x\n" * 20)
    drawn = queue.on_terminal("consume", "-j", "1", "--until-empty", "--", "sleep", "0.5", columns=80).out.decode()
    assert "1 running" in drawn
    assert re.search(r"[1-4]/4\b", drawn)
    assert re.search(r"0:00:0\d", drawn)


def test_second_signal_does_not_wait_for_a_stderr_that_nobody_reads(queue):
    """A stopped terminal is no reason to be left with SIGKILL only."""
    submission = queue.submit_lines(2)
    script = "head -c 1500000 /dev/zero | tr '\\0' e >&2; echo > said; exec sleep 1000"
    read_fd, write_fd = os.pipe()
    process = subprocess.Popen(
        [*queue.program, "consume", "-j", "1", "--", "sh", "-c", script],
        env=queue.environ,
        cwd=queue.folder,
        stdin=subprocess.DEVNULL,
        stderr=write_fd,
    )
    os.close(write_fd)
    try:
        wait_until((queue.folder / "said").exists, what="more is said than a pipe holds")
        process.send_signal(signal.SIGTERM)
        time.sleep(5 * ECHO_S)  # sooner, both would count as one
        process.send_signal(signal.SIGINT)
        assert process.wait(180) == 130
    finally:
        process.kill()
        process.wait()
        os.close(read_fd)
    assert queue.ok("show", submission, "--json").json["waiting"] == 2


def test_stderr_that_nobody_reads_holds_up_nothing_for_ever(queue):
    """A stopped terminal: what runs goes on and is completed.

    Nothing new is begun until somebody reads; then all is done.
    """
    submission = queue.submit_lines(6)
    script = "head -c 1500000 /dev/zero | tr '\\0' e >&2"
    read_fd, write_fd = os.pipe()
    process = subprocess.Popen(
        [*queue.program, "consume", "-j", "1", "--until-empty", "--", "sh", "-c", script],
        env=queue.environ,
        cwd=queue.folder,
        stdin=subprocess.DEVNULL,
        stderr=write_fd,
    )
    os.close(write_fd)
    try:
        wait_until(
            lambda: queue.ok("show", submission, "--json").json["completed"] >= 1,
            what="one is completed although nobody reads",
        )
        assert process.poll() is None
        with open(read_fd, "rb") as reader:
            said = reader.read()
        assert process.wait() == 0
    finally:
        process.kill()
        process.wait()
    assert queue.ok("show", submission, "--json").json["completed"] == 6
    assert said.count(b"e") >= 6 * 1_500_000

"""A zoo of programs under opsq consume: what each of them does to its chunk, and to the consumer.

Signals, lost chunks and daemons that go away are in tests/faults.
"""

import os
import random
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from waiting import wait_until

PROGRAM = Path(sys.executable).with_name("opsq")


def only_dead(queue, submission):
    """The one dead chunk of a submission."""
    (chunk,) = queue.ok("dead", submission, "--json").json["chunks"]
    return chunk


def attempt_of_next(queue):
    """How many attempts at the next free chunk were counted."""
    return queue.ok("reserve", "--strategy", "OldestFirst", "--json").json["chunks"][0]["attempt"]


def test_results_come_in_input_order_whatever_ends_first(queue):
    """Chunks of all lengths around pipes and memory: byte exact, from two slots."""
    sizes = [1, 4095, 4096, 4097, 65535, 65536, 65537, 1 << 20, (1 << 20) + 1, 3 << 20, 17]
    source = random.Random(5)
    parts = [queue.file(f"part{at}", source.randbytes(size)) for at, size in enumerate(sizes)]
    submission = queue.ok("submit", "--per-file", *parts).text
    queue.ok("consume", "-j", "2", "--until-empty", "--", "cat")
    assert queue.ok("results", submission).out == b"".join((queue.folder / part).read_bytes() for part in parts)


def test_long_output_goes_through_a_file_and_leaves_none(queue):
    submission = queue.submit_lines(3)
    queue.ok("consume", "-j", "2", "--until-empty", "--", "sh", "-c", "read x; head -c 5000000 /dev/zero | tr '\\0' $x")
    assert queue.ok("results", submission).out == b"".join(b"%d" % number * 5_000_000 for number in range(3))
    names = [name for _, _, names in os.walk(queue.state_dir / "content") for name in names]
    assert [name for name in names if not name.endswith(".part") and not name.startswith("store-")] == []


def test_nul_invalid_utf8_and_a_missing_line_end_survive(queue):
    content = b"\0\xff\xfe\r\n\xc3("
    submission = queue.ok("submit", "--quiet", queue.file("odd", content)).text
    queue.ok("consume", "--until-empty", "--", "cat")
    assert queue.ok("results", submission).out == content


def test_program_that_writes_nothing_completes_with_an_empty_result(queue):
    submission = queue.submit_lines(2)
    assert queue.ok("consume", "--until-empty", "--json", "--", "true").documents[-1]["completed"] == 2
    assert queue.ok("results", submission).out == b""


def test_program_that_does_not_read_its_stdin_completes(queue):
    submission = queue.ok("submit", queue.file("big", b"x" * (3 << 20))).text
    queue.ok("consume", "--until-empty", "--", "sh", "-c", "exec <&-; echo enough")
    assert queue.ok("results", submission).out == b"enough\n"


def test_csv_header_comes_before_each_chunk(queue):
    queue.file("table.csv", b"a,b\n" + b"".join(b"%d,%s\n" % (number, b"x" * 40_000) for number in range(4)))
    submission = queue.ok("submit", "table.csv", "--csv-header", "--lines", "2").text
    queue.ok("consume", "--until-empty", "--", "sh", "-c", "cut -d, -f1")
    assert queue.ok("results", submission).out == b"a\n0\n1\na\n2\n3\n"


def test_failed_attempt_is_tried_again_after_its_backoff(queue):
    """Until-empty waits for it; what failed is told on stderr, the end is good."""
    submission = queue.submit_lines(1, "--backoff", "0.01,1,1")
    ran = queue(
        "consume", "--until-empty", "--json", "--", "sh", "-c", "if [ ! -e tried ]; then : > tried; exit 9; fi; cat"
    )
    assert (ran.status, ran.documents[-1]) == (0, {"completed": 1, "failed": 1, "dead": 0, "released": 0})
    assert f"{submission}/0 (stdin, bytes 0-1) failed (attempt 1 of 5, again at once): exit status 9" in ran.err
    assert queue.ok("results", submission).out == b"0\n"


def test_chunk_that_always_kills_its_program_dies_with_the_signal_recorded(queue):
    submission = queue.submit_lines(1, "--max-attempts", "2", "--backoff", "0.01,1,1")
    assert queue("consume", "--until-empty", "--", "sh", "-c", "kill -SEGV $$").status == 1
    chunk = only_dead(queue, submission)
    assert (chunk["signal"], chunk["exit_status"], chunk["attempts"]) == (signal.SIGSEGV, None, 2)
    assert "SIGSEGV" in chunk["reason"]


def test_of_megabytes_on_stderr_the_tail_is_the_reason(queue):
    submission = queue.submit_lines(1, "--max-attempts", "1")
    ran = queue(
        "consume",
        "--until-empty",
        "--",
        "sh",
        "-c",
        "head -c 3000000 /dev/zero | tr '\\0' e >&2; echo '\033[2Jlast' >&2; exit 1",
    )
    assert ran.status == 1  # and its stderr has no escape, as every run is checked for
    reason = only_dead(queue, submission)["reason"]
    assert reason.endswith("last")
    assert len(reason) < 5000


def test_dead_chunk_skips_the_rest_and_others_are_still_done(queue):
    """Only the chunk that died here is counted as dead."""
    failing = queue.submit_lines(20, "--max-attempts", "1")
    other = queue.submit_lines(2)
    script = "read x; test $x -lt 2"
    ran = queue("consume", "-j", "1", "-s", "OldestFirst", "--until-empty", "--json", "--", "sh", "-c", script)
    assert (ran.status, ran.documents[-1]["completed"], ran.documents[-1]["dead"]) == (1, 4, 1)
    assert queue.ok("show", failing, "--json").json["state"] == "failed"
    assert queue.ok("show", other, "--json").json["state"] == "completed"


def test_program_that_is_not_executable_is_exit_126_and_costs_no_attempt(queue):
    queue.submit_lines(3)
    queue.file("program", b"#!/bin/sh\n")
    assert queue("consume", "-j", "2", "--until-empty", "--", "./program").status == 126
    assert attempt_of_next(queue) == 0


@pytest.mark.parametrize("status", [126, 127])
def test_command_that_ends_with_126_or_127_ends_the_consumer_with_it(queue, status):
    """The shell says so of what it could not run; what had ended well in the same moment is kept."""
    queue.submit_lines(5)
    ran = queue("consume", "-j", "2", "--until-empty", "--", "sh", "-c", f"echo no-such: not found >&2; exit {status}")
    assert ran.status == status
    assert "not found" in ran.err
    assert attempt_of_next(queue) == 0


def test_program_that_vanishes_half_way_costs_no_attempt(queue):
    submission = queue.submit_lines(3)
    queue.file("program", b"#!/bin/sh\nrm program\nexec cat\n")
    (queue.folder / "program").chmod(0o755)
    ran = queue("consume", "-j", "1", "-s", "OldestFirst", "--until-empty", "--", "./program")
    assert ran.status in {126, 127}
    assert queue.ok("show", submission, "--json").json["completed"] == 1
    assert attempt_of_next(queue) == 0


def test_chunk_whose_file_has_changed_fails_and_says_so(queue):
    submission = queue.ok("submit", "--in-place", "--max-attempts", "1", queue.file("data", b"before\n")).text
    queue.file("data", b"afterwards\n")
    assert queue("consume", "--until-empty", "--", "cat").status == 1
    assert "has changed" in only_dead(queue, submission)["reason"]


def test_until_idle_ends_at_once_although_others_work(queue):
    queue.submit_lines(2)
    queue.reserve("--lease", "1h")
    assert queue.ok("consume", "--until-idle", "--json", "--", "cat").documents[-1]["completed"] == 1


def test_nothing_is_reserved_ahead_while_chunks_take_long(queue):
    """A second consumer gets what the first one cannot work on yet."""
    submission = queue.submit_lines(3)
    with queue.running("consume", "-j", "1", "--", "sh", "-c", "while [ ! -e go ]; do sleep 0.01; done; cat"):
        wait_until(lambda: queue.ok("show", submission, "--json").json["reserved"] == 1)
        assert len(queue.ok("reserve", "-n", "3", "--json").json["chunks"]) == 2


def test_consumer_has_its_name_in_status(queue):
    with queue.running("consume", "--name", "night-shift", "--", "cat"):
        wait_until(lambda: "night-shift" in queue.ok("status", "--json").text)


def test_more_slots_than_open_files_are_lowered_and_said_so(queue):
    submission = queue.submit_lines(50)
    ran = queue.shell("ulimit -n 120; opsq consume -j 64 --until-empty -- cat")
    assert ran.status == 0
    assert "Only 2 programs run at once" in ran.err
    assert queue.ok("results", submission).out == b"".join(b"%d\n" % number for number in range(50))


def test_as_many_programs_as_open_files_allow_for_can_each_open_all_that_is_its_own(queue):
    """All at once have said something, written much, and not read all: a log, an output and an input each."""
    parts = [queue.file(f"part{at}", b"%04d" % at * 50_000) for at in range(120)]
    submission = queue.ok("submit", "--per-file", *parts).text
    (queue.folder / "begun").mkdir()
    queue.file(
        "program",
        b"echo said >&2; head -c 1000000 /dev/zero; : > begun/$OPSQ_CHUNK; "
        b"while set -- begun/* && [ $# -lt 75 ]; do sleep 0.2; done; exec cat\n",
    )
    ran = queue.shell("ulimit -n 700; opsq consume -j 120 --log-dir logs --until-empty -- sh $PWD/program")
    assert (ran.status, "Only 75 programs run at once" in ran.err, "cannot be" in ran.err) == (0, True, False)
    assert len([*(queue.folder / "logs").rglob("*.log")]) == len(parts)
    assert queue.shell(f"opsq results {submission} | wc -c").text == str(len(parts) * 1_200_000)


def test_program_inherits_nothing_but_its_streams(queue):
    """Neither the socket nor what the caller of the consumer has open."""
    submission = queue.submit_lines(1)
    ran = queue.shell(
        "exec 9> held; opsq consume --until-empty -- sh -c 'ls -l /dev/fd/ | grep -c held; ls /dev/fd/ | wc -l'"
    )
    assert ran.status == 0
    held, count = queue.ok("results", submission).lines
    assert (held, int(count) <= 5) == ("0", True)


def test_one_signal_of_timeout_is_one_although_it_comes_twice(queue):
    """`timeout` sends its signal to the process and then to the group: the running chunk is still completed."""
    submission = queue.submit_lines(1)
    script = "touch begun; while [ ! -e go ]; do sleep 0.01; done; cat"
    words = ["timeout", "--signal=TERM", "3600", "opsq", "consume", "--grace", "1h", "--", "sh", "-c", script]
    environ = queue.environ | {"PATH": f"{PROGRAM.parent}:/usr/bin:/bin"}
    with subprocess.Popen(
        words, env=environ, cwd=queue.folder, stdin=subprocess.DEVNULL, start_new_session=True
    ) as process:
        wait_until((queue.folder / "begun").exists)
        process.send_signal(signal.SIGTERM)  # which it hands on, twice
        queue.file("go", b"")
        process.wait(60)
    assert queue.ok("results", submission).out == b"0\n"


def test_results_of_any_length_take_little_memory(queue):
    """Results of 200 MB stream through."""
    submission = queue.submit_lines(4)
    words = ["consume", "-j", "2", "--until-empty", "--", "sh", "-c", "head -c 50000000 /dev/zero"]
    # A process spawned from here would be charged with what pytest itself holds, until its exec; so a small one stands
    # between.
    between = (
        "import resource, subprocess, sys; subprocess.run(sys.argv[1:], check=True);"
        "print(resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss)"
    )
    command = [sys.executable, "-S", "-c", between, str(PROGRAM), *words]
    done = subprocess.run(
        command, env=queue.environ, cwd=queue.folder, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, check=True
    )
    assert int(done.stdout) * (1 if sys.platform == "darwin" else 1024) < 100_000_000
    assert queue.shell(f"opsq results {submission} | wc -c").text.strip() == "200000000"

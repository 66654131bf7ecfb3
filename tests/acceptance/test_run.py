"""opsq run: the whole round in one line, with a daemon or without one.

Again and again until all results are written.
"""

from __future__ import annotations

import base64
import os
import signal
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from acceptance.conftest import DEADLINE_S, PROGRAM
from waiting import wait_until

if TYPE_CHECKING:
    from acceptance.conftest import Opsq, Ran

LOGGING = "read -r first; echo $first >> runs; echo out-$first; cat"


def lines(count: int) -> bytes:
    """Numbered lines."""
    return b"".join(b"line %d\n" % number for number in range(count))


def daemon_runs(opsq: Opsq) -> bool:
    """Whether a daemon answers."""
    return opsq("status").status == 0


def left(opsq: Opsq) -> bytes:
    """What a daemon that is started now knows of."""
    opsq.ok("start")
    return opsq.ok("list").out


def contents(opsq: Opsq) -> list[str]:
    """The folders of content."""
    return [name for name in os.listdir(opsq.state_dir / "content") if not name.startswith("store-")]


# --- the round --------------------------------------------------------------------------------------------------------


def test_results_come_in_input_order_and_nothing_is_left(opsq: Opsq):
    """No daemon ran before, none runs afterwards, and no copy of anything is kept."""
    text = lines(50_000)
    opsq.file("in", text)
    assert opsq.ok("run", "--bytes", "10K", "-j3", "in", "--", "tr", "a-z", "A-Z").out == text.upper()
    assert not daemon_runs(opsq)
    assert contents(opsq) == []
    assert left(opsq) == b""


def test_running_daemon_is_used_and_goes_on(queue: Opsq):
    """What others have in the queue is left alone."""
    other = queue.submit_lines(2)
    queue.file("in", lines(10))
    assert queue.ok("run", "--lines", "1", "in", "--", "cat").out == lines(10)
    assert daemon_runs(queue)
    assert [line.split("\t")[0] for line in queue.ok("list").lines] == [other]


def test_files_globs_and_stdin_in_the_order_named(opsq: Opsq):
    """Payloads are bytes: NUL, CRLF, invalid UTF-8 and a missing last line end survive."""
    parts = {"a1": b"1\0\r\n", "a2": b"\xff\xfe", "b": b"", "c": b"last"}
    for name, content in parts.items():
        opsq.file(name, content)
    ran = opsq("run", "--lines", "1", "a*", "-", "b", "c", "--", "cat", stdin=b"from\nstdin")
    assert (ran.status, ran.out) == (0, b"1\0\r\n\xff\xfefrom\nstdinlast")
    assert "a1 has NUL bytes" in ran.err


def test_stream_is_worked_on_before_it_ends(opsq: Opsq):
    """The first results are there while the input is still open."""
    piece = lines(600_000)
    words = [PROGRAM, "run", "-", "--", "cat"]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    with subprocess.Popen(words, env=opsq.environ, cwd=opsq.folder, bufsize=0, **pipes) as process:
        rest = memoryview(piece)
        while rest:
            rest = rest[process.stdin.write(rest) :]
        begin = process.stdout.read(1 << 20)
        process.stdin.write(b"the end\n")
        out, err = process.communicate(timeout=DEADLINE_S)
    assert (process.returncode, err) == (0, b"")
    assert begin + out == piece + b"the end\n"


def test_empty_inputs_give_nothing(opsq: Opsq):
    """No chunk, no program."""
    opsq.file("in", b"")
    assert opsq.ok("run", "in", "--", "touch", "made").out == b""
    assert opsq.ok("run", "-", "--", "touch", "made", stdin=b"").out == b""
    assert not (opsq.folder / "made").exists()


def test_output_file_is_whole_or_unchanged(opsq: Opsq):
    """-o as in opsq results."""
    opsq.file("in", lines(3))
    opsq.file("out", b"before")
    ran = opsq("run", "--max-attempts", "1", "-o", "out", "in", "--", "false")
    assert (ran.status, ran.out) == (1, b"")
    assert (opsq.folder / "out").read_bytes() == b"before"
    assert opsq.ok("run", "-o", "out", "in", "--", "cat").out == b""
    assert (opsq.folder / "out").read_bytes() == lines(3)


def test_output_into_an_open_descriptor_goes_where_that_stands(opsq: Opsq):
    """A shell has redirected it with >>: nothing of the file may go."""
    opsq.file("in", lines(3))
    opsq.file("log", b"before\n")
    for output in ("/dev/stdout", "-", "/dev/fd/1"):
        assert opsq.shell(f"opsq run -o {output} in -- cat >> log").status == 0
    assert opsq.shell("opsq run -o /dev/fd/3 in -- cat 3>> log").status == 0
    assert (opsq.folder / "log").read_bytes() == b"before\n" + lines(3) * 4


def test_output_into_a_named_pipe_is_what_its_reader_gets(opsq: Opsq):
    """As in `opsq run ... -o pipe & sort < pipe`."""
    opsq.file("in", lines(3))
    ran = opsq.shell("mkfifo pipe; cat < pipe & opsq run -o pipe in -- cat; wait; test -p pipe")
    assert (ran.status, ran.out) == (0, lines(3))


def test_endless_output_fails_and_a_higher_limit_continues_the_round(opsq: Opsq):
    """The limit is no part of what makes two lines the same."""
    opsq.file("in", lines(3))
    words = ["--max-attempts", "1", "-l", "1", "in", "--", "sh", "-c"]
    script = "cat >> begun; head -c 200000 /dev/zero"
    ran = opsq("run", "--max-result", "100K", *words, script)
    assert (ran.status, ran.out) == (1, b"")
    assert "it wrote more than 100K (--max-result)" in ran.err
    assert len(opsq.ok("run", "--max-result", "1M", *words, script).out) == 600_000


@pytest.mark.parametrize("words", [["in"], ["-"], ["--per-file", "in"]])
def test_carriage_returns_are_kept_with_a_remark_or_left_out(opsq: Opsq, words: list[str]):
    """Of a stream and of a file as a whole nothing is said."""
    content = b"a b\r\nc\rd\r\n\r\n"
    opsq.file("in", content)
    ran = opsq("run", *words, "--", "cat", stdin=content)
    assert (ran.out, "end with CRLF" in ran.err) == (content, words == ["in"])
    ran = opsq("run", "--crlf", "strip", *words, "--", "cat", stdin=content)
    assert (ran.out, "CRLF" in ran.err) == (b"a b\nc\rd\n\n", False)
    ran = opsq("run", "--crlf", "strip", "--each", *words, "--", "printf", "[%s]", stdin=content)
    assert ran.out == b"[a b][c\rd][]"


def test_header_of_the_results_is_written_once(opsq: Opsq):
    """As a program reads a table, and writes one."""
    opsq.file("in.csv", b'"a\nb";c\n1;2\n3;4\n5;6')
    ran = opsq.ok(
        "run", "--csv-header", "--csv-delimiter", ";", "-l", "1", "--header-once", "--end-lines", "in.csv", "--", "cat"
    )
    assert ran.out == b'"a\nb";c\n1;2\n3;4\n5;6\n'


def test_json_is_one_document_with_the_results(opsq: Opsq):
    """It parses when the round fails too."""
    opsq.file("in", b"a\n\xff\n")
    document = opsq.ok("run", "--lines", "1", "--json", "in", "--", "cat").json
    assert (document["state"], document["completed"], document["bytes"]) == ("completed", 2, 4)
    assert document["results"][0]["text"] == "a\n"
    assert base64.b64decode(document["results"][1]["base64"]) == b"\xff\n"
    document = opsq.ok("run", "--json", "-o", "out", "in", "--", "cat").json
    assert (document["output"], "results" in document) == ("out", False)
    ran = opsq(
        "run",
        "--lines",
        "1",
        "--max-attempts",
        "1",
        "--json",
        "in",
        "--",
        "sh",
        "-c",
        'read -r x; test "$x" = a && echo A',
    )
    assert ran.status == 1
    assert (ran.json["state"], ran.json["dead"], ran.json["error"]["exit"]) == ("failed", 1, 1)
    assert [result["text"] for result in ran.json["results"]] == ["A\n"]


def test_terminal_shows_the_results_and_nothing_drawn_between_them(opsq: Opsq):
    """Progress is drawn only where the results go elsewhere."""
    opsq.file("in", b"a\nb\n")
    assert opsq.on_terminal("run", "--lines", "1", "in", "--", "cat") == (0, b"a\r\nb\r\n", "")


def test_programs_are_fed_and_told_as_by_consume(opsq: Opsq):
    """A run per record, metadata and attachment."""
    opsq.file("in", b"a b\nc\n")
    opsq.file("attached", b"!")
    script = 'echo "$1 $OPSQ_META_KIND $(cat "$OPSQ_ATTACHMENT")"'
    line = ("run", "--each", "-m", "kind=x", "--attach", "attached", "in", "--", "sh", "-c", script, "sh", "{}")
    assert opsq.ok(*line).out == b"a b x !\nc x !\n"


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["in", "tr", "a", "b"], "needs -- before the program"),
        (["--", "cat"], "needs an INPUT"),
        (["in", "--"], "needs a program"),
        (["vanished", "--", "cat"], "vanished cannot be read: No such file"),
        ([".", "--", "cat"], "Is a directory"),
        (["in", "--lines", "1", "--bytes", "1", "--", "cat"], "cannot be combined"),
        (["in", "--skip-dead", "--", "cat"], "needs --on-dead keep"),
        (["in", "-m", "run=x", "--", "cat"], "uses the metadata key run itself"),
        (["in", "-o", "no/such/folder", "--", "cat"], "cannot be written"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_what_cannot_be_is_told_and_leaves_nothing(opsq: Opsq, words: list[str], told: str):
    """Exit 2, no results, no round."""
    opsq.file("in", b"x\n")
    ran = opsq("run", *words)
    assert (ran.status, ran.out) == (2, b""), ran
    assert told in ran.err
    assert not daemon_runs(opsq)
    assert left(opsq) == b""


@pytest.mark.parametrize(("command", "status"), [("no-such-program", 127), ("./in", 126)])
def test_command_that_cannot_be_run_ends_the_round_and_leaves_nothing(opsq: Opsq, command: str, status: int):
    """As a shell would say it; another line with the right name has nothing to do with it."""
    opsq.file("in", lines(3))
    ran = opsq("run", "in", "--", command)
    assert (ran.status, ran.out) == (status, b"")
    assert left(opsq) == b""


def test_program_that_vanishes_half_way_costs_nothing_that_was_done(opsq: Opsq):
    """The same line goes on once it is there again."""
    opsq.file("in", lines(4))
    program = opsq.file("program", b'#!/bin/sh\nread -r x; echo $x >> runs; echo $x; case $x in *1) rm "$0";; esac\n')
    (opsq.folder / program).chmod(0o755)
    line = ("run", "-j1", "--lines", "1", "in", "--", "./program")
    ran = opsq(*line)
    assert ran.status == 127
    assert lines(2).startswith(ran.out)
    opsq.file("program", b"#!/bin/sh\ntee -a runs\n")
    (opsq.folder / program).chmod(0o755)
    assert opsq.ok(*line).out == lines(4)
    assert _read(opsq, "runs") == lines(4)


# --- going on ---------------------------------------------------------------------------------------------------------


def interrupted(opsq: Opsq, number: int, *words: str) -> int:
    """Run a line whose chunks stop at the fourth until a file appears, and send it a signal there; the exit status."""
    script = f"{LOGGING}; case $first in *3) test -e go || sleep 100;; esac"
    with opsq.running("run", "-j1", "--lines", "1", "--grace", "0", *words, "--", "sh", "-c", script) as process:
        wait_until(lambda: b"line 3" in _read(opsq, "runs"), DEADLINE_S, "the fourth chunk runs")
        if number == signal.SIGKILL:  # what it had no time to report would be done again
            wait_until(
                lambda: opsq.ok("status", "--json").json["total"]["completed"] == 3,
                DEADLINE_S,
                "three are acknowledged",
            )
        process.send_signal(number)
        process.communicate(timeout=DEADLINE_S)
    return process.returncode


def again(opsq: Opsq, *words: str, stdin: bytes | None = None) -> bytes:
    """Run the line of `interrupted` to its end; gives what it wrote."""
    ran = line_again(opsq, *words, stdin=stdin)
    assert ran.status == 0, ran.err
    return ran.out


def line_again(opsq: Opsq, *words: str, stdin: bytes | None = None) -> Ran:
    """The same, whatever comes of it."""
    opsq.file("go", b"")
    script = f"{LOGGING}; case $first in *3) test -e go || sleep 100;; esac"
    return opsq("run", "-j1", "--lines", "1", "--grace", "0", *words, "--", "sh", "-c", script, stdin=stdin)


def _read(opsq: Opsq, name: str) -> bytes:
    path = opsq.folder / name
    return path.read_bytes() if path.exists() else b""


@pytest.mark.parametrize(
    ("number", "status"), [(signal.SIGTERM, 143), (signal.SIGINT, 130), (signal.SIGHUP, 129), (signal.SIGKILL, -9)]
)
def test_line_that_was_interrupted_goes_on_where_it_stopped(opsq: Opsq, number: int, status: int):
    """What was completed is not done again, its results come again; no daemon is left behind, not even by SIGKILL."""
    opsq.file("in", lines(6))
    assert interrupted(opsq, number, "in") == status
    wait_until(lambda: not daemon_runs(opsq), DEADLINE_S, "the daemon has ended")
    assert again(opsq, "in") == b"".join(b"out-line %d\n" % each for each in range(6))
    runs = _read(opsq, "runs").splitlines()
    assert [runs.count(b"line %d" % each) for each in range(6)] == [1, 1, 1, 2, 1, 1]
    assert left(opsq) == b""


def test_chunks_that_another_consumer_has_completed_are_not_taken_for_results_of_the_round(opsq: Opsq):
    """It ran a program of its own on what an interrupted line had left."""
    opsq.file("in", lines(6))
    interrupted(opsq, signal.SIGTERM, "in")
    opsq.ok("start")
    opsq.ok("consume", "--name", "fleet", "--until-empty", "--", "true")
    ran = line_again(opsq, "in")
    assert (ran.status, ran.out) == (5, b"")
    assert "were completed by fleet-" in ran.err
    assert "--fresh" in ran.err
    assert again(opsq, "--fresh", "in").count(b"\n") == 6


def test_line_is_another_one_when_a_file_has_changed_or_with_fresh(opsq: Opsq):
    """Nothing of the old round is used."""
    opsq.file("in", lines(5))
    interrupted(opsq, signal.SIGTERM, "in")
    opsq.file("in", lines(6))
    assert again(opsq, "in").count(b"\n") == 6
    assert _read(opsq, "runs").count(b"line 0\n") == 2
    (opsq.folder / "go").unlink()
    (opsq.folder / "runs").unlink()
    interrupted(opsq, signal.SIGTERM, "in")
    assert again(opsq, "--fresh", "in").count(b"\n") == 6
    assert _read(opsq, "runs").count(b"line 0\n") == 2


def test_interrupted_line_with_an_output_that_cannot_be_written_loses_nothing(opsq: Opsq):
    opsq.file("in", lines(6))
    interrupted(opsq, signal.SIGTERM, "in")
    assert line_again(opsq, "-o", "no/such/folder", "in").status == 2
    assert again(opsq, "in").count(b"\n") == 6
    assert _read(opsq, "runs").count(b"line 0\n") == 1


def test_file_that_changed_under_a_round_is_told_and_the_same_line_begins_anew(opsq: Opsq):
    """What was not read yet cannot be read any more; new attempts would not help."""
    opsq.file("in", lines(6))
    ran = opsq("run", "-j1", "--lines", "1", "in", "--", "sh", "-c", "cat; echo more >> in")
    assert (ran.status, ran.out) == (1, b"line 0\n")
    assert (
        "1 of 6 chunks died. During the run in changed, and the rest of the old content cannot be read any more."
        in ran.err
    )
    assert "The same command starts over with the files as they are" in ran.err
    assert "requeue" not in ran.err
    assert opsq.ok("run", "-j1", "--lines", "1", "in", "--", "cat").out == lines(6) + b"more\n"
    forget = ran.err.partition("After `opsq start`, `opsq ")[2].partition("`")[0].split()
    opsq.ok("start")
    opsq.ok(*forget)
    assert opsq.ok("list").out == b""


def test_files_that_went_away_under_a_round_are_named(opsq: Opsq):
    for name in ("a", "b", "c", "d", "e"):
        opsq.file(name, lines(1))
    ran = opsq("run", "-j1", "--per-file", "a", "b", "c", "d", "e", "--", "sh", "-c", "cat; rm -f b c d e; echo >> a")
    assert ran.status == 1
    assert "During the run a changed, b went away, c went away, and 2 more, and the rest" in ran.err


def test_file_that_changes_after_it_was_read_harms_nothing(opsq: Opsq):
    opsq.file("in", lines(1))
    assert opsq.ok("run", "in", "--", "sh", "-c", "cat; echo more >> in").out == lines(1)
    assert left(opsq) == b""


def test_finished_line_is_done_anew(opsq: Opsq):
    """Once its results are written, a round is history."""
    opsq.file("in", lines(2))
    for _ in range(2):
        opsq.ok("run", "in", "--", "sh", "-c", LOGGING)
    assert _read(opsq, "runs").count(b"line 0\n") == 2


def test_named_stream_goes_on_without_being_read_again(opsq: Opsq):
    """With --resume the key stands for the input."""
    opsq.file("in", lines(5))
    script = f"{LOGGING}; case $first in *3) test -e go || exit 1;; esac"
    line = ("run", "-j1", "--lines", "1", "--max-attempts", "1", "--resume", "nightly", "-", "--", "sh", "-c", script)
    ran = opsq(*line, stdin=lines(5))
    assert (ran.status, ran.out) == (1, b"out-line 0\nout-line 1\nout-line 2\n")
    opsq.file("go", b"")
    assert opsq.ok(*line, stdin=b"something else\n").out == b"".join(b"out-line %d\n" % each for each in range(5))
    assert _read(opsq, "runs").count(b"line 0\n") == 1
    assert left(opsq) == b""


def test_reader_that_goes_away_ends_it_quietly_and_loses_nothing(opsq: Opsq):
    """`| head -1`; the same line writes all of it later."""
    opsq.file("in", lines(200_000))
    ran = opsq.shell("{ opsq run --bytes 100K in -- cat; echo $? > status; } | head -1")
    assert (ran.out, ran.err) == (b"line 0\n", "")
    assert _read(opsq, "status") == b"141\n"
    assert not daemon_runs(opsq)
    assert opsq.ok("run", "--bytes", "100K", "in", "--", "cat").out == lines(200_000)


def test_stream_without_a_reader_is_forgotten(opsq: Opsq):
    """It could not go on in any case."""
    opsq.file("in", lines(900_000))
    ran = opsq.shell("cat in | opsq run - -- cat | head -1")
    assert (ran.out, ran.err) == (b"line 0\n", "")
    wait_until(lambda: not daemon_runs(opsq), DEADLINE_S, "the daemon has ended")
    assert left(opsq) == b""


# --- failures ---------------------------------------------------------------------------------------------------------


def test_dead_chunk_is_named_with_what_to_do_and_the_same_line_tries_it_again(opsq: Opsq):
    """Exit 1 after the results before it; exit 0 once the cause is gone."""
    opsq.file("in", lines(4))
    script = f"{LOGGING}; case $first in *2) test -e go || {{ echo no luck >&2; exit 3; }};; esac"
    line = ("run", "-j1", "--lines", "1", "--max-attempts", "2", "--backoff", "0,1,0", "in", "--", "sh", "-c", script)
    ran = opsq(*line)
    assert (ran.status, ran.out) == (1, b"out-line 0\nout-line 1\n")
    assert "1 of 4 chunks died" in ran.err
    assert "no luck" in ran.err
    submission = left(opsq).split(b"\t")[0].decode()
    assert f"opsq dead list {submission}" in ran.err
    assert f"opsq dead requeue {submission}" in ran.err
    assert opsq.ok("dead", "list", submission).lines
    opsq.file("go", b"")
    assert opsq.ok(*line).out == b"".join(b"out-line %d\n" % each for each in range(4))
    assert _read(opsq, "runs").splitlines().count(b"line 0") == 1


def test_program_that_says_something_by_the_status_1_is_told_from_one_that_fails(opsq: Opsq):
    opsq.file("in", b"a\nb\n")
    line = ["run", "in", "--lines", "1", "--max-attempts", "1", "--on-dead", "keep"]
    ran = opsq(*line, "--", "grep", "a")
    assert ran.status == 1
    assert "grep exits 1 for no match: if that is no failure, add --complete-on 0,1." in ran.err
    assert opsq.ok(*line, "--complete-on", "0,1", "--", "grep", "a").out == b"a\n"
    assert "--complete-on" not in opsq(*line, "--", "false").err


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["in", "--", "grep -c a"], "Separate the program and its arguments: grep -c a; or: sh -c 'grep -c a'"),
        (["cat", "--", "in"], "The program stands behind --: opsq run INPUT -- cat"),
        (["in", "cat"], "For example: opsq run access.log -- wc -l"),
    ],
)
def test_wrong_order_of_words_is_told_with_the_right_one(opsq: Opsq, words: list[str], told: str):
    opsq.file("in", b"a\n")
    ran = opsq("run", *words)
    assert ran.status in {2, 127}
    assert told in ran.err


def test_dead_chunk_may_be_kept_and_left_out(opsq: Opsq):
    """--on-dead keep does the rest, --skip-dead writes it too."""
    opsq.file("in", lines(4))
    script = f"{LOGGING}; case $first in *1) exit 3;; esac"
    line = ["run", "-j1", "--lines", "1", "--max-attempts", "1", "--on-dead", "keep"]
    ran = opsq(*line, "in", "--", "sh", "-c", script)
    assert (ran.status, ran.out) == (1, b"out-line 0\n")
    assert _read(opsq, "runs").splitlines() == [b"line %d" % each for each in range(4)]
    ran = opsq(*line, "--skip-dead", "--fresh", "in", "--", "sh", "-c", script)
    assert (ran.status, ran.out) == (1, b"out-line 0\nout-line 2\nout-line 3\n")
    assert "1 of 4 chunks died" in ran.err


def test_interrupt_after_a_dead_chunk_that_is_kept_ends_the_round_without_a_traceback(opsq: Opsq):
    """The first leg of a stream has a dead chunk, and the next one has not come."""
    words = ["run", "-", "-j1", "--bytes", "1M", "--max-attempts", "1", "--on-dead", "keep", "--", "grep", "^line 0$"]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    with subprocess.Popen([PROGRAM, *words], env=opsq.environ, cwd=opsq.folder, bufsize=0, **pipes) as process:
        rest = memoryview(lines(600_000))
        while rest:
            rest = rest[process.stdin.write(rest) :]
        assert process.stdout.readline() == b"line 0\n"
        wait_until(lambda: opsq("dead", "list").lines, DEADLINE_S, "a chunk has died")
        process.send_signal(signal.SIGINT)
        process.wait(DEADLINE_S)
        err = process.stderr.read()
    assert process.returncode == 130
    assert b"Traceback" not in err


def test_cancelled_round_exits_1(queue: Opsq):
    """Somebody else may end it."""
    queue.file("in", lines(3))
    with queue.running("run", "-j1", "--lines", "1", "in", "--", "sh", "-c", f"{LOGGING}; sleep 100") as process:
        wait_until(lambda: _read(queue, "runs"), DEADLINE_S, "a chunk runs")
        queue.ok("cancel", queue.ok("list").text.split("\t")[0], "--reason", "enough")
        _, err = process.communicate(timeout=DEADLINE_S)
    assert process.returncode == 1
    assert b"cancelled" in err


# --- the daemon -------------------------------------------------------------------------------------------------------


def test_last_of_two_rounds_stops_the_daemon_that_the_first_has_started(opsq: Opsq):
    """No daemon is stopped under somebody who uses it."""
    opsq.file("in", lines(2))
    waiting = "cat; until test -e go; do sleep 0.05; done"
    with opsq.running("run", "in", "--", "sh", "-c", f"{waiting}; echo first >> runs") as first:
        wait_until(lambda: daemon_runs(opsq), DEADLINE_S, "a daemon runs")
        assert opsq.ok("run", "in", "--", "cat").out == lines(2)
        assert daemon_runs(opsq)
        opsq.file("go", b"")
        out, err = first.communicate(timeout=DEADLINE_S)
    assert (first.returncode, out, err) == (0, lines(2), b"")
    assert not daemon_runs(opsq)


def test_same_line_at_the_same_time_is_refused(opsq: Opsq):
    """A cron job that takes longer than its period does not work against itself."""
    opsq.file("in", lines(2))
    line = ("run", "in", "--", "sh", "-c", "cat; echo >> runs; until test -e go; do sleep 0.05; done")
    with opsq.running(*line) as first:
        wait_until(lambda: _read(opsq, "runs"), DEADLINE_S, "it runs")
        ran = opsq(*line)
        assert (ran.status, ran.out) == (5, b"")
        assert "already active" in ran.err
        assert opsq("run", "--fresh", *line[1:]).status == 5  # so this is not what the message may advise
        assert "--fresh" not in ran.err
        opsq.file("go", b"")
        out, _ = first.communicate(timeout=DEADLINE_S)
    assert out == lines(2)


def test_same_line_by_another_way_to_the_daemon_is_refused(queue: Opsq):
    """Neither takes the results of the other away, though no lock file is looked at."""
    queue.file("in", lines(2))
    line = (
        "run",
        "--socket",
        str(queue.state_dir / "opsq.sock"),
        "in",
        "--",
        "sh",
        "-c",
        "cat; echo >> runs; until test -e go; do sleep 0.05; done",
    )
    with queue.running(*line) as first:
        wait_until(lambda: _read(queue, "runs"), DEADLINE_S, "it runs")
        for again in (line, ("run", *line[3:])):
            ran = queue(*again)
            assert (ran.status, ran.out, "already active" in ran.err) == (5, b"", True)
        queue.file("go", b"")
        out, _ = first.communicate(timeout=DEADLINE_S)
    assert (first.returncode, out) == (0, lines(2))


def test_daemon_of_a_round_that_is_killed_is_started_again(opsq: Opsq):
    """Nobody else would; what runs goes on, and is not done twice."""
    opsq.file("in", lines(4))
    script = "echo >> runs; until test -e go; do sleep 0.05; done; cat"
    with opsq.running("run", "-j2", "-l1", "in", "--", "sh", "-c", script) as process:
        wait_until(lambda: len(_read(opsq, "runs")) == 2, DEADLINE_S, "two run")
        killed = opsq.ok("status", "--json").json["pid"]
        os.kill(killed, signal.SIGKILL)
        wait_until(
            lambda: (ran := opsq("status", "--json")).status == 0 and ran.json["pid"] != killed,
            DEADLINE_S,
            "another daemon runs",
        )
        opsq.file("go", b"")
        out, err = process.communicate(timeout=DEADLINE_S)
    assert (process.returncode, out, err) == (0, lines(4), b"")
    assert len(_read(opsq, "runs")) == 4
    assert not daemon_runs(opsq)


def test_progress_counts_the_chunks_of_the_round_and_no_others(queue: Opsq):
    """What else waits in the queue is not done by this line."""
    queue.submit_lines(7)
    queue.file("in", lines(4))
    drawn = queue.on_terminal("run", "-j1", "-l1", "-o", "out", "in", "--", "sh", "-c", "sleep 0.5; cat").out.decode()
    assert "/4" in drawn
    assert "/11" not in drawn
    assert "run=" not in drawn


def test_what_a_dying_program_says_is_told_in_short_and_without_controls(opsq: Opsq):
    """A screen is neither cleared nor filled by a chunk that died, whoever tells of it."""
    opsq.file("in", lines(1))
    opsq.ok("start")
    script = r"printf '\033[2Jfirst\b\0\n' >&2; yes | head -c 20000 >&2; echo why >&2; exit 3"
    ran = opsq("run", "--max-attempts", "1", "--log-dir", "logs", "in", "--", "sh", "-c", script)
    (submission,) = opsq.ok("list", "--json").json["submissions"]
    submission_id = submission["submission_id"]
    for told in (ran, opsq("results", submission_id), opsq("wait", submission_id)):
        assert told.status == 1
        assert told.err.isprintable() or set(told.err) - set(filter(str.isprintable, told.err)) == {"\n"}
        assert (len(told.err) < 2000, "exit status 3" in told.err, "why" in told.err) == (True, True, True)
    for verb in (
        ("dead", "list"),
        ("dead", "show", f"{submission_id}/0"),
        ("history", "list"),
        ("show", submission_id),
    ):
        assert not set(opsq.ok(*verb).out) & {0, 8, 27}
        assert len(opsq.on_terminal(*verb).out) < 10_000


def test_folder_that_was_removed_is_a_place_like_any_other(opsq: Opsq):
    """A line whose input has a whole name needs no folder to stand in."""
    path = opsq.folder / opsq.file("in", lines(2))
    ran = opsq.shell(f"mkdir gone && cd gone && rmdir ../gone && opsq run {path} -- cat")
    assert ran == (0, lines(2), "")


def test_start_makes_the_daemon_of_a_round_stay(opsq: Opsq):
    """Whoever starts a daemon has one."""
    opsq.file("in", lines(2))
    with opsq.running("run", "in", "--", "sh", "-c", "cat; until test -e go; do sleep 0.05; done") as process:
        wait_until(lambda: daemon_runs(opsq), DEADLINE_S, "a daemon runs")
        assert opsq.ok("start", "--json").json["status"] == "already_running"
        opsq.file("go", b"")
        process.communicate(timeout=DEADLINE_S)
    assert process.returncode == 0
    assert daemon_runs(opsq)


def test_consumer_that_is_connected_keeps_the_daemon_until_it_leaves(opsq: Opsq):
    """The round ends; the daemon only with its last user."""
    opsq.file("in", lines(2))
    with opsq.running("run", "in", "--", "sh", "-c", "cat; until test -e go; do sleep 0.05; done") as process:
        wait_until(lambda: daemon_runs(opsq), DEADLINE_S, "a daemon runs")
        with opsq.running("consume", "-s", "SelectOnly(mine=1)", "--", "cat") as consumer:
            wait_until(lambda: len(opsq.ok("status", "--json").json["consumers"]) > 1, DEADLINE_S, "both are connected")
            opsq.file("go", b"")
            process.communicate(timeout=DEADLINE_S)
            assert daemon_runs(opsq)
            consumer.terminate()
            consumer.communicate(timeout=DEADLINE_S)
    wait_until(lambda: not daemon_runs(opsq), DEADLINE_S, "the daemon has ended")


def test_socket_that_nobody_serves_is_exit_4(opsq: Opsq, tmp_path: Path):
    """A daemon that was named is not replaced by one of our own."""
    opsq.file("in", lines(2))
    ran = opsq("run", "--socket", str(tmp_path / "nobody.sock"), "in", "--", "cat")
    assert (ran.status, ran.out) == (4, b"")

"""The ways in which opsq consume gives a program its chunk: placeholders, variables, a run per record, servers.

Single programs and servers of every temper are in tests/integration/runner/test_programs.py.
"""

import os
import signal
import subprocess
import sys

import pytest

import opsq
from waiting import wait_until

ECHO = "while read -r length name more; do printf '%s\\n' \"$length 0 $name\"; head -c $length; done"


def only_dead(queue, submission):
    """The one dead chunk of a submission."""
    (chunk,) = queue.ok("dead", "list", submission, "--json").json["chunks"]
    return chunk


def is_gone(pid):
    """Whether a process has ended."""
    state = subprocess.run(["ps", "-o", "stat=", "-p", str(pid)], capture_output=True, text=True).stdout
    return not state.strip() or state.startswith("Z")


def test_program_is_told_of_its_chunk(queue):
    """In words and in variables; metadata too."""
    submission = queue.submit_lines(2, "-m", "tenant=acme", "-m", "a.b=5")
    script = 'echo "$@ $OPSQ_SUBMISSION/$OPSQ_CHUNK $OPSQ_ATTEMPT $OPSQ_META_TENANT $OPSQ_META_A_B ${OPSQ_CONSUMER%-*}"'
    queue.ok(
        "consume",
        "--until-empty",
        "--name",
        "night",
        "--",
        "sh",
        "-c",
        script,
        "sh",
        "{id}",
        "{attempt}",
        "{no placeholder}",
    )
    line = "{0}/{1} 0 {{no placeholder}} {0}/{1} 0 acme 5 night\n"
    assert queue.ok("results", submission).out.decode() == "".join(line.format(submission, index) for index in range(2))


def test_attempt_is_counted_up(queue):
    submission = queue.submit_lines(1, "--backoff", "0.01,1,1")
    queue("consume", "--until-empty", "--", "sh", "-c", "echo $0 $OPSQ_ATTEMPT; test $0 = 2", "{attempt}")
    assert queue.ok("results", submission).out == b"2 2\n"


def test_program_gets_a_file_and_makes_one(queue):
    content = b"caf\xe9\0\r\nlast"
    submission = queue.ok("submit", "--quiet", queue.file("input", content)).text
    queue.ok("consume", "--until-empty", "--", "cp", "{in}", "{out}")
    assert queue.ok("results", submission).out == content


def test_program_that_makes_an_empty_file_has_an_empty_result(queue):
    submission = queue.submit_lines(2)
    queue.ok("consume", "--until-empty", "--", "touch", "{out}")
    assert queue.ok("results", submission).out == b""
    with opsq.connect(str(queue.state_dir / "opsq.sock")) as connected:
        assert list(connected.submission(int(submission)).results()) == [b"", b""]


def test_file_in_place_comes_by_its_own_name(queue):
    """One that was cut into chunks does not; nor one with a header before each chunk."""
    queue.file("film.mkv", b"frame\n" * 20_000)
    whole = queue.ok("submit", "--in-place", "--per-file", "film.mkv").text
    cut = queue.ok("submit", "--in-place", "--bytes", "60000", "film.mkv").text
    queue.ok("consume", "--until-empty", "--", "sh", "-c", 'echo "$0"; wc -c <"$0"', "{in}")
    assert queue.ok("results", whole).out.decode() == f"{queue.folder / 'film.mkv'}\n120000\n"
    assert b"film.mkv" not in queue.ok("results", cut).out


def test_program_without_its_file_has_failed(queue):
    submission = queue.submit_lines(1, "--max-attempts", "1")
    assert queue("consume", "--until-empty", "--", "sh", "-c", "echo nothing", "{out}").status == 1
    assert only_dead(queue, submission)["reason"].startswith("it succeeded, but did not write {out}")


def test_attachment_comes_as_a_file(queue):
    queue.file("model", b"weights\0")
    submission = queue.ok("submit", "--attach", "model", "--lines", "1", "-", stdin=b"a\nb\n").text
    queue.ok("consume", "--until-empty", "--", "sh", "-c", 'cmp "$0" "$OPSQ_ATTACHMENT" && cat "$0"', "{attachment}")
    assert queue.ok("results", submission).out == b"weights\0" * 2


def test_nothing_is_left_in_the_folder_of_temporary_files(queue):
    (queue.folder / "tmp").mkdir()
    queue.file("model", b"weights")
    queue.ok("submit", "--attach", "model", "--lines", "1", "-", stdin=b"a\nb\n")
    ran = queue("consume", "--until-empty", "--", "cp", "{in}", "{out}", environ={"TMPDIR": str(queue.folder / "tmp")})
    assert ran.status == 0
    assert os.listdir(queue.folder / "tmp") == []


def test_each_record_is_run_by_itself(queue):
    submission = queue.ok("submit", "--lines", "3", "-", stdin=b"a b\n\n$(x)\nlast 'one'").text
    queue.ok("consume", "--until-empty", "-j", "2", "--each", "--", "printf", "%s,%s;", "{index}", "<{}>")
    assert queue.ok("results", submission).out == b"0,<a b>;0,<>;0,<$(x)>;1,<last 'one'>;"


def test_record_that_fails_is_named_and_the_chunk_is_dead(queue):
    submission = queue.ok("submit", "--max-attempts", "1", "-", stdin=b"a\nb\nc\n").text
    ran = queue("consume", "--until-empty", "--each", "--", "sh", "-c", "echo no $0 >&2; test $0 != b")
    assert ran.status == 1
    chunk = only_dead(queue, submission)
    assert (chunk["exit_status"], chunk["reason"]) == (1, "record 2: exit status 1: no b")


def test_one_chunk_of_many_records_fills_all_slots(queue):
    """Each waits until all four run."""
    submission = queue.ok("submit", "-", stdin=b"a\nb\nc\nd\n").text
    script = "touch at-$0; while [ $(ls at-* | wc -l) -lt 4 ]; do sleep 0.01; done; echo $0"
    queue.ok("consume", "-j", "4", "--until-empty", "--each", "--", "sh", "-c", script)
    assert queue.ok("results", submission).out == b"a\nb\nc\nd\n"


def test_record_with_a_status_that_completes_does_not_end_the_chunk(queue):
    submission = queue.ok("submit", "-", stdin=b"0\n3\n0\n").text
    queue.ok("consume", "--until-empty", "--complete-on", "0,3", "--each", "--", "sh", "-c", "echo $0; exit $0")
    assert queue.ok("results", submission).out == b"0\n3\n0\n"


def test_header_of_a_table_is_no_record(queue):
    submission = queue.ok(
        "submit", "--csv-header", "--lines", "1", queue.file("table.csv", b"id,name\n1,a\n2,b\n")
    ).text
    queue.ok("consume", "--until-empty", "--each", "--", "echo")
    assert queue.ok("results", submission).out == b"1,a\n2,b\n"


def test_batches_of_nul_ended_records(queue):
    submission = queue.ok("submit", "-0", "--lines", "5", "-", stdin=b"a\nb\0c\0d\0").text
    queue.ok("consume", "--until-empty", "-0", "--args", "2", "--", "printf", "[%s]")
    assert queue.ok("results", submission).out == b"[a\nb][c][d]"


SHOW = 'printf "%s\\0" "$OPSQ_CHUNK" "$@"'
ODD = [b"a b", b"$(x) `y` 'z' \"q\" \\n", b"caf\xc3\xa9 \xff \t *", b"-n", b"", b"{id} {}"]


@pytest.mark.parametrize(
    "way",
    [["--each", "--", "sh", "-c", SHOW, "sh", "x", "<{}>"], ["--args", "4", "--", "sh", "-c", SHOW, "sh", "it's"]],
)
def test_dry_run_shows_exactly_what_is_run(queue, way):
    """As JSON and as a line of shell, which gives the same when it is executed.

    Nothing was run, and no attempt counted.
    """
    submission = queue.ok("submit", "--lines", "3", "-", stdin=b"".join(record + b"\n" for record in ODD)).text
    lines = queue.ok("consume", "--dry-run", "-s", "OldestFirst", *way).out.splitlines()
    documents = queue.ok("consume", "--dry-run", "-s", "OldestFirst", "--json", *way).documents
    assert len(lines) == len(documents)
    assert {(document["submission_id"], document["index"]) for document in documents} == {
        (submission, 0),
        (submission, 1),
    }
    assert queue.ok("show", submission, "--json").json["completed"] == 0
    by_line, by_argv = b"", b""
    for line, document in zip(lines, documents, strict=True):
        environ = {"PATH": "/usr/bin:/bin", "OPSQ_CHUNK": str(document["index"])}
        by_line += subprocess.run([b"sh", b"-c", line], env=environ, stdout=subprocess.PIPE, check=True).stdout
        by_argv += subprocess.run(
            list(map(os.fsencode, document["argv"])), env=environ, stdout=subprocess.PIPE, check=True
        ).stdout
    queue.ok("consume", "--until-empty", *way)
    assert by_line == by_argv == queue.ok("results", submission).out


def test_dry_run_leaves_open_what_belongs_to_a_run(queue):
    submission = queue.submit_lines(20)
    first = f"cp --suffix={submission}/0-0 '{{in}}' '{{out}}'"
    shown = queue.ok(
        "consume", "--dry-run", "-s", "OldestFirst", "--", "cp", "--suffix={id}-{attempt}", "{in}", "{out}"
    ).lines
    assert (shown[0], len(shown)) == (first, 10)
    assert len(queue.ok("consume", "--dry-run", "--max-chunks", "3", "--", "cat").lines) == 3
    assert (
        queue.ok("consume", "--dry-run", "--max-chunks", "1", "--server", "frames", "--", "cat", "a b").text
        == "cat 'a b'"
    )


def test_dry_run_says_what_would_not_run(queue):
    queue.ok("submit", "-", stdin=b"a\nb\0\n")
    ran = queue("consume", "--dry-run", "--each", "--", "echo")
    assert (ran.status, ran.lines) == (1, ["echo a"])
    assert "record 2: it contains a NUL byte" in ran.err


def test_clean_environment_has_path_and_the_chunk_and_nothing_else(queue):
    submission = queue.submit_lines(1)
    queue.ok("consume", "--until-empty", "--clean-env", "--", "env")
    names = {line.split("=")[0] for line in queue.ok("results", submission).lines}
    of_chunk = ("SUBMISSION", "THEN", "CHUNK", "ATTEMPT", "CONSUMER", "INPUT", "OFFSET")
    assert names == {"PATH", *(f"OPSQ_{name}" for name in of_chunk)}


@pytest.mark.parametrize(
    ("words", "named"),
    [
        (["--each", "--args", "2", "--", "echo"], ["--each", "--args"]),
        (["--each", "--server", "frames", "--", "cat"], ["--each", "--server"]),
        (["--each", "--", "cat", "{in}"], ["{in}"]),
        (["--server", "records", "--", "cat", "{id}"], ["{id}"]),
        (["--", "{in}"], ["{in}"]),
    ],
)
def test_ways_that_do_not_go_together_are_named(queue, words, named):
    submission = queue.submit_lines(1)
    ran = queue("consume", "--until-empty", *words)
    assert ran.status == 2
    assert all(name in ran.err for name in named)
    assert queue.ok("show", submission, "--json").json["completed"] == 0


@pytest.mark.parametrize(
    "feeding", [["--server", "frames", "--", "sh", "-c", ECHO], ["--server", "records", "--", "sed", "-u", ""]]
)
def test_servers_answer_for_all_chunks_in_order(queue, feeding):
    """As many processes as slots did it all; the last record has no line end, in the result too."""
    content = b"".join(b"%d\n" % number for number in range(3000)) + b"last"
    submission = queue.ok("submit", "--lines", "7", "-", stdin=content).text
    queue.ok("consume", "-j", "2", "--until-empty", *feeding)
    assert queue.ok("results", submission).out == content


def test_servers_are_as_many_as_slots(queue):
    queue.submit_lines(300)
    script = f"echo x >> started; {ECHO}"
    queue.ok("consume", "-j", "2", "--until-empty", "--server", "frames", "--", "sh", "-c", script)
    assert 1 <= len((queue.folder / "started").read_bytes().split()) <= 2


def test_server_gives_a_status_and_a_reason(queue):
    """They count as those of a program do."""
    submission = queue.submit_lines(3, "--max-attempts", "1", "--on-dead", "keep")
    script = "while read -r length name more; do head -c $length >/dev/null; echo 3 ${name#*/}; printf why; done"
    ran = queue(
        "consume", "-j", "1", "--until-empty", "--complete-on", "0,2", "--server", "frames", "--", "sh", "-c", script
    )
    assert ran.status == 1
    assert queue.ok("show", submission, "--json").json["completed"] == 2
    chunk = only_dead(queue, submission)
    assert (chunk["index"], chunk["exit_status"], chunk["reason"]) == (1, 1, "exit status 1: why")


def test_server_that_dies_fails_the_chunk_that_it_was_at_and_no_other(queue):
    submission = queue.submit_lines(40, "--max-attempts", "1", "--on-dead", "keep")
    script = (
        "while read -r length name more; do head -c $length >/dev/null; [ ${name#*/} != 17 ] || kill -9 $$; echo 0; "
        "done"
    )
    ran = queue("consume", "-j", "2", "--until-empty", "--server", "frames", "--", "sh", "-c", script)
    assert ran.status == 1
    assert queue.ok("show", submission, "--json").json["completed"] == 39
    chunk = only_dead(queue, submission)
    assert (chunk["index"], chunk["signal"], chunk["reason"]) == (17, signal.SIGKILL, "server: killed by SIGKILL")


def test_server_that_is_not_there_ends_the_consumer_and_costs_no_attempt(queue):
    queue.submit_lines(3)
    assert queue("consume", "-j", "2", "--until-empty", "--server", "frames", "--", "no-such-server").status == 127
    assert queue.ok("reserve", "--json").json["chunks"][0]["attempt"] == 0


@pytest.mark.parametrize("way", [["--each"], ["--server", "frames"], ["--args", "2"]])
def test_program_that_is_not_executable_is_exit_126_and_costs_no_attempt(queue, way):
    queue.submit_lines(3)
    queue.file("program", b"#!/bin/sh\n")
    assert queue("consume", "-j", "2", "--until-empty", *way, "--", "./program").status == 126
    assert queue.ok("reserve", "--json").json["chunks"][0]["attempt"] == 0


def test_record_over_its_time_is_ended_with_its_chunk(queue):
    """The limit is one for the chunk, whatever record it is at."""
    submission = queue.ok("submit", "--max-attempts", "1", "-", stdin=b"a\nb\nc\n").text
    words = [
        "--max-runtime",
        "0.5s",
        "--grace",
        "0.1s",
        "--each",
        "--",
        "sh",
        "-c",
        "touch $0; [ $0 != b ] || sleep 1000",
    ]
    assert queue("consume", "-j", "1", "--until-empty", *words).status == 1
    assert "ran longer than" in only_dead(queue, submission)["reason"]
    assert not (queue.folder / "c").exists()


def test_chunk_over_its_time_ends_its_server(queue):
    submission = queue.submit_lines(3, "--max-attempts", "1", "--on-dead", "keep")
    script = (
        "while read -r length name more; do head -c $length >/dev/null; [ ${name#*/} != 1 ] || sleep 1000; echo 0; done"
    )
    words = ["--max-runtime", "0.5s", "--grace", "0.1s", "--server", "frames", "--", "sh", "-c", script]
    assert queue("consume", "-j", "1", "--until-empty", *words).status == 1
    assert only_dead(queue, submission)["index"] == 1
    assert queue.ok("show", submission, "--json").json["completed"] == 2


def test_stopped_consumer_gives_back_what_its_servers_have_not_answered(queue):
    queue.submit_lines(3)
    script = "while read -r length name more; do head -c $length >/dev/null; echo $$ > begun; sleep 1000; done"
    with queue.running(
        "consume", "-j", "1", "--grace", "0s", "--server", "frames", "--", "sh", "-c", script
    ) as process:
        wait_until(lambda: (queue.folder / "begun").exists() and (queue.folder / "begun").read_bytes().endswith(b"\n"))
        process.send_signal(signal.SIGTERM)
        assert process.wait(60) == 0
    assert is_gone(int((queue.folder / "begun").read_text()))
    chunks = queue.ok("reserve", "-n", "3", "--json").json["chunks"]
    assert [chunk["attempt"] for chunk in chunks] == [0, 0, 0]


@pytest.mark.parametrize("way", [[], ["--each"], ["--server", "frames"]])
def test_killed_consumer_leaves_no_orphan(queue, way):
    """Three levels of shell, none of which hears of it by itself."""
    queue.submit_lines(2)
    script = "sh -c 'sh -c \"echo \\$\\$ >> pids; exec sleep 1000\"; :'; :"
    with queue.running("consume", "-j", "2", *way, "--", "sh", "-c", script) as process:
        wait_until(lambda: (queue.folder / "pids").exists() and (queue.folder / "pids").read_bytes().count(b"\n") == 2)
        process.kill()
    for pid in map(int, (queue.folder / "pids").read_text().split()):
        wait_until(lambda pid=pid: is_gone(pid))


def test_program_in_the_middle_of_records_has_no_descriptor_of_ours(queue):
    submission = queue.submit_lines(1)
    ran = queue.shell(
        "exec 9> held; opsq consume --until-empty --each -- sh -c 'ls -l /dev/fd/ | grep -c held; ls /dev/fd/ | wc -l'"
    )
    assert ran.status == 0
    held, count = queue.ok("results", submission).lines
    assert (held, int(count) <= 5) == ("0", True)


def test_python_server_counts_what_it_started_once(queue):
    """A program whose start costs more than its work: it is started once a slot."""
    server = """
import sys
open("starts", "a").write("x")
chunks, answers = sys.stdin.buffer, sys.stdout.buffer
for line in chunks:
    chunk = chunks.read(int(line.split()[0]))
    answers.write(b"%d\\n%b" % (len(chunk), chunk))
    answers.flush()
"""
    queue.file("serve.py", server.encode())
    content = b"".join(b"%d\n" % number for number in range(20_000))
    submission = queue.ok("submit", "--lines", "10", "-", stdin=content).text
    queue.ok("consume", "-j", "2", "--until-empty", "--server", "frames", "--", sys.executable, "-S", "serve.py")
    assert queue.ok("results", submission).out == content
    assert (queue.folder / "starts").read_text() in {"x", "xx"}

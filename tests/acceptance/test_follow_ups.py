"""Follow-ups from the shell: `opsq complete --then`, and programs that write to OPSQ_THEN."""

import json
import socket
import sys

import pytest

LINES = [
    {"chunks": ["a\n", "b\n"], "metadata": {"step": 2}, "title": "two chunks", "priority": 3},
    {"chunks": [{"base64": "/w=="}], "metadata": {"step": 3}, "max_attempts": 2, "on_dead": "keep"},
]


def as_lines(*found):
    return "".join(json.dumps(line) + "\n" for line in found).encode()


def step(queue, number):
    """The submissions of a step."""
    return queue.ok("list", "-m", f"step={number}", "--json").json["submissions"]


def test_complete_makes_follow_ups_and_prints_their_ids(queue):
    submission = queue.submit_lines(1)
    then = queue.file("then", as_lines(*LINES))
    ids = queue.ok("complete", queue.reserve(), "--then", then).lines
    assert queue.ok("show", submission, "--json").json["state"] == "completed"
    assert [found["submission_id"] for number in (2, 3) for found in step(queue, number)] == ids
    first, second = (queue.ok("show", one, "--json").json for one in ids)
    assert (first["chunks"], first["title"], first["priority"]) == (2, "two chunks", 3)
    assert (second["max_attempts"], second["on_dead"]) == (2, "keep")
    assert queue.ok("consume", "--until-empty", "--", "cat").status == 0
    assert [queue.ok("results", one).out for one in ids] == [b"a\nb\n", b"\xff"]


def test_repeated_completion_makes_nothing_more(queue):
    queue.submit_lines(1)
    handle, then = queue.reserve(), as_lines(*LINES)
    first = queue.ok("complete", handle, "--then", "-", "--json", stdin=then).json
    assert (first["count"], len(first["created"])) == (1, 2)
    assert queue.ok("complete", handle, "--then", "-", "--json", stdin=then).json == {"count": 1, "created": []}
    assert len(step(queue, 2)) == 1


def test_file_is_cut_as_submit_does(queue):
    queue.submit_lines(1)
    content = b"".join(b"line %d\n" % number for number in range(10))
    file = queue.file("links", content)
    then = as_lines({"file": str(file), "lines": 4}, {"file": str(file), "bytes": 20}, {"file": str(file)})
    ids = queue.ok("complete", queue.reserve(), "--then", "-", stdin=then).lines
    assert [queue.ok("show", one, "--json").json["chunks"] for one in ids] == [3, 5, 1]
    queue.ok("consume", "--until-empty", "--", "cat")
    assert [queue.ok("results", one).out for one in ids] == [content] * 3


@pytest.mark.parametrize(
    ("line", "complaint"),
    [
        (b"nothing\n", "describes no submission"),
        (b'{"chunks": [1]}\n', "describes no submission"),
        (b'{"chunks": [], "prority": 3}\n', "prority"),
        (b"{}\n", "no chunks"),
        (b'{"chunks": ["a"], "file": "b"}\n', "cannot be combined"),
        (b'{"chunks": ["a"], "lines": 2}\n', "there is none"),
        (b'{"chunks": ["a"], "delay_s": 1, "not_before_at": "2030-01-01T00:00:00Z"}\n', "cannot be combined"),
        (b'{"chunks": ["a"], "not_before_at": "2030-01-01T00:00:00"}\n', "describes no submission"),
        (b'{"chunks": [{"base64": "x"}]}\n', "base64"),
        (b'{"chunks": ["a"], "metadata": {"submission": 1}}\n', "submission"),
        (b'{"file": "vanished"}\n', "vanished"),
    ],
)
def test_line_that_describes_no_submission_is_exit_2_and_makes_nothing(queue, line, complaint):
    submission = queue.submit_lines(1)
    good = as_lines(LINES[0])
    ran = queue("complete", queue.reserve(), "--then", "-", stdin=good + b"\n" + line)
    assert (ran.status, "Traceback" in ran.err) == (2, False)
    assert complaint in ran.err
    assert queue.ok("show", submission, "--json").json["completed"] == 0
    assert step(queue, 2) == []


def test_then_of_several_chunks_or_of_no_file_is_exit_2_and_says_why(queue):
    handle = "1/0@1.0.1.1"
    for words, complaint in (
        ([handle, handle, "--then", "-"], "--then applies to one chunk, but 2 handles were given."),
        ([handle, handle, "-r", "-"], "--result is the result of one chunk, but 2 handles were given."),
        ([handle, "--then", "-", "-r", "-"], "--result and --then cannot both be stdin."),
        ([handle, "--then", "vanished"], "The follow-ups in vanished cannot be read: No such file or directory."),
        ([handle, "-r", "vanished"], "The result vanished cannot be read: No such file or directory."),
    ):
        ran = queue("complete", *words, stdin=b"")
        assert (ran.status, complaint in ran.err) == (2, True), ran.err


def test_program_appends_follow_ups(queue):
    """A fan-out of two steps: each chunk of the first makes the second, whoever consumes it."""
    submission = queue.submit_lines(3)
    queue.file("line", as_lines(LINES[0]))
    program = 'read n; echo done $n; [ -n "$OPSQ_META_STEP" ] || cat line >> "$OPSQ_THEN"'
    queue.ok("consume", "--until-empty", "-j2", "--", "sh", "-c", program)
    assert queue.ok("results", submission).out == b"done 0\ndone 1\ndone 2\n"
    assert [(one["chunks"], one["state"]) for one in step(queue, 2)] == [(2, "completed")] * 3
    assert not list(queue.folder.glob("opsq-*"))


def test_follow_ups_of_a_failed_attempt_are_forgotten(queue):
    submission = queue.submit_lines(1, "--max-attempts", "2", "--backoff", "0,1,0")
    queue.file("line", as_lines(LINES[0]))
    program = 'cat line >> "$OPSQ_THEN"; [ "$OPSQ_ATTEMPT" = 1 ]'
    ran = queue("consume", "--until-empty", "-s", f"SelectOnly(submission={submission})", "--", "sh", "-c", program)
    assert ran.status in {0, 1}
    assert len(step(queue, 2)) == 1


@pytest.mark.parametrize(
    ("write", "reason"),
    [
        ('echo nonsense > "$OPSQ_THEN"', "Line 1 of OPSQ_THEN describes no submission"),
        ('mkdir "$OPSQ_THEN"', "OPSQ_THEN is not a regular file"),
        ('mkfifo "$OPSQ_THEN"', "OPSQ_THEN is not a regular file"),
        ("""echo '{"chunks": ["a"], "metadata": {"submission": 1}}' > "$OPSQ_THEN" """, "submission"),
        ("""echo '{"chunks": ["a"], "after": [{"submission_id": "x"}]}' > "$OPSQ_THEN" """, "Line 1 of OPSQ_THEN"),
        ("""echo '{"chunks": ["a"], "after": [{"submission_id": "7"}]}' > "$OPSQ_THEN" """, "7"),
    ],
)
def test_what_makes_no_follow_up_fails_the_attempt_with_the_reason(queue, write, reason):
    submission = queue.submit_lines(1, "--max-attempts", "1")
    ran = queue("consume", "--until-empty", "--", "sh", "-c", write)
    assert "Traceback" not in ran.err
    [dead] = queue.ok("dead", submission, "--json").json["chunks"]
    assert reason in dead["reason"]


@pytest.mark.parametrize("feeding", [["--each"], ["--args", "2"]])
def test_runs_for_records_share_the_file_of_their_chunk(queue, feeding):
    submission = queue.ok("submit", "-", stdin=b"1\n2\n3\n4\n").text
    program = 'for n; do printf \'{"chunks": ["%s"], "metadata": {"step": 2}}\\n\' "$n" >> "$OPSQ_THEN"; done'
    strategy = f"SelectOnly(submission={submission})"
    queue.ok("consume", "--until-empty", "-j2", *feeding, "-s", strategy, "--", "sh", "-c", program, "sh")
    assert len(step(queue, 2)) == 4


SERVER = """
import json, sys
chunks, answers = sys.stdin.buffer, sys.stdout.buffer
for line in chunks:
    length, name, attempt, more = line.split(b" ", 3)
    more, content = json.loads(more), chunks.read(int(length))
    if "step" not in more["metadata"]:
        with open(more["then"], "a") as then:
            print(json.dumps({"chunks": [content.decode()], "metadata": {"step": 2}}), file=then)
    if content == b"1\\n" and attempt == b"0":
        sys.exit(1)
    answers.write(b"%d 0 %b\\n%b" % (len(content), name, content))
    answers.flush()
"""


def test_server_writes_follow_ups_to_the_file_of_the_question(queue):
    """Also when it dies with chunks in its pipe: what it had written for them is forgotten."""
    submission = queue.submit_lines(5, "--backoff", "0,1,0")
    queue("consume", "--until-empty", "--server", "frames", "--", sys.executable, "-c", SERVER)
    assert queue.ok("results", submission).out == b"0\n1\n2\n3\n4\n"
    assert len(step(queue, 2)) == 5


def test_follow_ups_carry_the_trace_of_their_chunk(queue):
    trace = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
    queue.file("line", as_lines(LINES[1]))
    assert queue("submit", "-", stdin=b"a", environ={"TRACEPARENT": trace}).status == 0
    program = 'echo "$TRACEPARENT" >> seen; [ -n "$OPSQ_META_STEP" ] || cat line >> "$OPSQ_THEN"'
    queue.ok("consume", "--until-empty", "--", "sh", "-c", program)
    assert (queue.folder / "seen").read_text().split() == [trace] * 2


def test_consumer_without_the_role_producer_makes_none_and_says_so(opsq):
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{probe.getsockname()[1]}"
    opsq.ok("start", "--listen", address)
    opsq.file("token", opsq.ok("token", "create", "worker", "--role", "consumer").out)
    submission = opsq.submit_lines(2)
    opsq.file("line", as_lines(LINES[0]))
    over_tcp = ("--address", address, "--token-file", "token")
    refusals = [
        opsq("complete", opsq.reserve(), "--then", "line", *over_tcp),
        opsq("consume", "--until-empty", *over_tcp, "--", "sh", "-c", 'cat line >> "$OPSQ_THEN"'),
    ]
    for refused in refusals:
        assert refused.status == 7
        assert "Complete needs the role operator or producer; the token worker has only consumer." in refused.err
    assert opsq.ok("show", submission, "--json").json["completed"] == 0
    assert opsq.ok("list").lines[1:] == []

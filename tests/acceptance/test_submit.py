"""opsq submit: cuts inputs and prints the id alone; every bad input is told, and leaves nothing."""

import gzip
import json
import os
import signal

import pytest

from waiting import wait_until

DEADLINE_S = 180


def test_prints_the_id_alone(queue):
    ran = queue.ok("submit", queue.file("in", b"a\nb\n"), "--lines", "1")
    assert ran.out == ran.text.encode() + b"\n"
    assert ran.text.isdigit()
    assert queue.ok("show", ran.text, "--json").json["chunks"] == 2


def test_json_tells_count_and_size(queue):
    document = queue.ok("submit", "-", "-l", "1", "--json", stdin=b"a\nbb").json
    assert document.pop("submission_id").isdigit()
    assert document == {"created": True, "chunks": 2, "bytes": 4}


@pytest.mark.parametrize(
    ("options", "stdin", "chunks"),
    [
        (["--lines", "2"], b"a\nb\nc", [b"a\nb\n", b"c"]),
        (["-0", "--lines", "1"], b"a\0b\n\0c", [b"a\0", b"b\n\0", b"c"]),
        (["--delimiter", r"\r\n", "-l", "1"], b"a\r\nb\xff\r\n", [b"a\r\n", b"b\xff\r\n"]),
        (["--bytes", "4"], b"a\nb\nccccc\n", [b"a\nb\n", b"ccccc\n"]),
        (["--csv-header", "--lines", "1"], b'h\n"a\nb"\nc\n', [b'h\n"a\nb"\n', b"h\nc\n"]),
        (["--csv", "-l", "1"], b'5" pipe\n"a\nb"\n', [b'5" pipe\n', b'"a\nb"\n']),
        (
            ["--csv-header", "--csv-delimiter", r"\t", "--csv-quote", "'", "--csv-escape", r"\\", "-l", "1"],
            b"h\ti\na\t'b\\'\nc'\nd\t\"\n",
            [b"h\ti\na\t'b\\'\nc'\n", b'h\ti\nd\t"\n'],
        ),
    ],
)
def test_stdin_is_cut_as_asked_byte_exact(queue, options, stdin, chunks):
    submission = queue.ok("submit", "-", *options, stdin=stdin).text
    assert [queue.ok("read", f"{submission}/{index}").out for index in range(len(chunks))] == chunks
    assert queue("read", f"{submission}/{len(chunks)}").status == 3


def test_carriage_returns_cannot_be_left_out_of_a_file_in_place(queue):
    path = queue.file("in", b"a\r\nb\r\n")
    ran = queue("submit", "--crlf", "strip", "--in-place", path)
    assert (ran.status, "--crlf strip" in ran.err) == (2, True)
    assert queue("submit", "--crlf", "strip", "-d", r"\r\n", path).status == 2
    assert queue.ok("submit", "--crlf", "strip", "--dry-run", "--json", path).json["bytes"] == 4


def test_csv_whose_quote_never_closes_is_refused_with_its_line(queue):
    path = queue.file("table.csv", b'a,b\n1,"open\n2,x\n')
    for verb in (["submit", path], ["submit", "--in-place", path], ["submit", "--dry-run", path]):
        ran = queue(*verb, "--csv-header")
        assert ran.status == 2
        assert "The quote that opens in line 2 of table.csv is never closed" in ran.err
        assert "--csv-escape" in ran.err
    assert queue("run", path, "--csv-header", "--", "cat").status == 2
    assert queue.ok("list", "--json").json["submissions"] == []


def test_per_file_makes_a_chunk_of_each_file_of_a_glob(queue):
    for name in "ab":
        queue.file(f"{name}.txt", name.encode())
    submission = queue.ok("submit", "--per-file", "*.txt").text
    assert [queue.ok("read", f"{submission}/{index}").out for index in (0, 1)] == [b"a", b"b"]


def test_empty_input_is_a_completed_submission(queue):
    submission = queue.ok("submit", queue.file("empty", b"")).text
    shown = queue.ok("show", submission, "--json").json
    assert (shown["state"], shown["chunks"]) == ("completed", 0)
    assert queue.ok("results", submission).out == b""


def test_stdin_is_not_read_unless_named(queue):
    """A submit inside a `while read` loop leaves the loop's stdin alone."""
    queue.file("list", b"one\ntwo\n")
    queue.file("in", b"x\n")
    ran = queue.shell("while read -r line; do opsq submit in >/dev/null && echo $line; done < list")
    assert ran.lines == ["one", "two"]


BAD = [
    (["vanished"], "vanished cannot be read: No such file"),
    (["."], "Is a directory"),
    (["*.nothing"], "Nothing matches *.nothing"),
    ([], "needs a FILE"),
    (["-"], "- cannot be read"),
    (["in", "--bytes", "1", "--lines", "1"], "--bytes and --lines cannot be combined"),
    (["in", "--delay", "1", "--at", "@1"], "--delay and --at cannot be combined"),
    (["in", "-m", "submission=1"], "built in"),
    (["in", "-m", "a=1", "-m", "a=2"], "the key a is given twice"),
    (["in", "-m", "a b=1"], "is not a key"),
    (["in", "-m", "a"], "is not KEY=VALUE"),
    (["in", "-m", "a=" + "x" * 1025], "1024 are the limit"),
    (["in", "--delay", "soon"], "--delay: 'soon' is not a duration"),
    (["in", "--at", "tomorrow"], "not an instant"),
    (["in", "--bytes", "0"], "at least one byte"),
    (["in", "--backoff", "1,0"], "factor"),
    (["in", "--output", "x"], "needs --wait"),
    (["in", "--wait", "--end-lines"], "need --output"),
    (["in", "--on-dead", "cry"], "--on-dead"),
    (["in", "--bytes", "65M"], "chunk limit"),
    (["-", "--in-place"], "cannot be read in place"),
    (["in", "--expires", "@5"], "in the past"),
    (["in", "--expires", "5", "--delay", "5"], "later than that"),
    (["in", "--max-attempts", "x"], "--max-attempts x: that is not a whole number"),
    (["in", "--max-attempts", "0"], "--max-attempts 0: give a number from 1 to 2147483648"),
]


def test_bad_input_is_told_and_leaves_nothing(queue):
    """Exit 2 and a message that names what is wrong; no submission, no content."""
    queue.file("in", b"x\n")
    for words, told in BAD:
        ran = queue("submit", *words)
        assert (ran.status, ran.out) == (2, b""), (words, ran)
        assert told in ran.err
    assert queue.ok("list").out == b""
    assert not [name for name in os.listdir(queue.state_dir / "content") if not name.startswith("store-")]


def test_unreachable_daemon_is_exit_4(opsq):
    ran = opsq("submit", opsq.file("in", b"x"))
    assert (ran.status, ran.out) == (4, b"")
    assert "opsq start" in ran.err


def test_unique_key_gives_the_earlier_id(queue):
    queue.file("in", b"x" * 5000)
    first = queue.ok("submit", "in", "--unique", "k", "--json").json
    second = queue.ok("submit", "in", "--unique", "k", "--json").json
    assert (first["created"], second["created"]) == (True, False)
    assert first["submission_id"] == second["submission_id"]
    assert len([name for name in os.listdir(queue.state_dir / "content") if not name.startswith("store-")]) == 1
    assert queue.ok("read", f"{first['submission_id']}/0").out == b"x" * 5000


def test_dry_run_tells_what_a_submission_would_be_and_needs_no_daemon(opsq):
    opsq.file("in", b"a\nbb\nccc\n")
    document = opsq.ok("submit", "in", "--lines", "2", "--dry-run", "--json").json
    assert document["chunks"] == 2
    assert document["bytes"] == 9
    assert [(c["offset"], c["bytes"]) for c in document["first"]] == [(0, 5), (5, 4)]
    assert opsq.ok("submit", "in", "--lines", "2", "--dry-run").lines[0] == "chunks count\t2"
    assert not opsq.state_dir.exists()


def test_a_shown_submission_can_be_changed_and_submitted_again(queue):
    queue.file("attached", b"\0blob")
    options = (
        "--priority",
        "7",
        "-m",
        "n=5",
        "-m",
        's="7"',
        "--attach",
        "attached",
        "--on-dead",
        "keep",
        "--max-attempts",
        "2",
    )
    first = queue.submit_lines(3, *options, "--unique", "k")
    document = queue.ok("show", first, "--json").json
    document["priority"] = 8
    second = queue.ok("submit", "--from-json", "-", stdin=json.dumps(document).encode()).text
    assert second != first
    shown = queue.ok("show", second, "--json").json
    differing = {name for name in document if document[name] != shown[name]}
    assert differing == {
        "submission_id",
        "submitted_at",
        "unique",
        "unique_until",
        "unique_held",
    }
    assert queue.ok("read", f"{second}/2").out == b"2\n"


def test_shown_submission_is_submitted_again_with_its_header_and_inputs(queue):
    queue.file("t.csv", b"h\n1\n22\n")
    queue.file("u.csv", b"h\n3\n")
    words = {
        "copied": ["--csv-header", "--lines", "1", "t.csv", "u.csv"],
        "in place": ["--csv-header", "--lines", "1", "--in-place", "t.csv", "u.csv"],
    }
    for name, given in words.items():
        first = queue.ok("submit", *given).text
        queue.file("shown.json", queue.ok("show", first, "--json").out)
        again = queue.ok("submit", "--from-json", "shown.json").text
        for index in range(3):
            old, new = (queue.ok("read", f"{number}/{index}", "--json").json for number in (first, again))
            assert new | {"submission_id": first} == old, name
            assert os.path.basename(new["input"]) == ["t.csv", "t.csv", "u.csv"][index]


def test_dry_run_tells_what_every_submission_would_be(queue):
    """The chunks of a dry run, for people and as JSON, are those that a submission of the same words then has."""
    queue.file("t.csv", b"h\n1\n22\n")
    queue.file("u.csv", b"h\n3\n")
    queue.file("crlf", b"1\r\n2\r\n")
    queue.file("z.gz", gzip.compress(b"1\n22\n"))
    queue.file("empty", b"")
    shown = queue.ok("submit", "--csv-header", "--lines", "1", "t.csv", "u.csv").text
    queue.file("shown.json", queue.ok("show", shown, "--json").out)
    lines = ["--lines", "1"]
    for words in (
        ["t.csv"],
        ["?.csv", *lines],
        ["-", *lines],
        ["--csv-header", *lines, "t.csv", "u.csv"],
        ["--csv", "t.csv"],
        ["--in-place", *lines, "t.csv", "u.csv"],
        ["--in-place", "--per-file", "t.csv", "empty"],
        ["--per-file", "t.csv", "empty", "z.gz"],
        ["--as-is", "z.gz"],
        ["z.gz", *lines],
        ["--crlf", "strip", *lines, "crlf"],
        ["empty"],
        ["-0", "t.csv", "-m", "a=b", "--priority", "2"],
        ["--from-json", "shown.json"],
        ["--from-json", "shown.json", *lines, "crlf", "--crlf", "strip"],
    ):
        stdin = b"1\n22\n" if "-" in words else None
        runs = [
            queue("submit", *options, *words, stdin=stdin)
            for options in (["--dry-run", "--json"], ["--dry-run"], ["--json"])
        ]
        assert {(ran.status, ran.err) for ran in runs} == {(0, runs[0].err)}, "remarks are the same"
        planned, submission = runs[0].json, runs[2].json
        text = [line.split("\t") for line in runs[1].lines]
        assert (planned["chunks"], planned["bytes"]) == (submission["chunks"], submission["bytes"]), words
        read = [
            queue.ok("read", f"{submission['submission_id']}/{index}", "--json").json
            for index in range(planned["chunks"])
        ]
        assert planned["first"] == [
            {"index": chunk["index"], "input": chunk["input"], "offset": chunk["offset"], "bytes": chunk["length"]}
            for chunk in read
        ], words
        rows = [line[1:] for line in text if line[0].startswith("chunk ")]
        assert [[row[0].replace("stdin", "-"), *map(int, row[1:])] for row in rows] == [
            [chunk["input"], chunk["offset"], chunk["length"]] for chunk in read
        ], words


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["in", "--wait"], "--dry-run and --wait cannot be combined."),
        (["in", "-o", "out"], "--output needs --wait."),
        (["--in-place", "/dev/null"], "/dev/null is not a regular file, so it cannot be read in place."),
        (["--in-place", "-"], "Stdin (-) cannot be read in place: it can be read only once."),
        (["nothing"], "nothing cannot be read: No such file or directory."),
        (["*.nothing"], "Nothing matches *.nothing."),
        (["in", "-m", "x"], "-m: 'x' is not KEY=VALUE."),
        (["in", "--attach", "nothing"], "nothing cannot be read: No such file or directory."),
        (["in", "--expires", "2020-01-01T00:00Z"], "--expires 2020-01-01T00:00Z: that is in the past."),
        (["-", "--from-json", "-"], "Stdin (-) can be read only once."),
        (["-", "--attach", "-"], "Stdin (-) can be read only once."),
        (["--from-json", "nothing"], "nothing cannot be read: No such file or directory."),
        (["--from-json", "in"], "--from-json in: JSON is malformed"),
    ],
)
def test_dry_run_refuses_what_a_submission_would(opsq, words, said):
    opsq.file("in", b"a\n")
    ran = opsq("submit", "--dry-run", "--json", *words, stdin=b"")
    assert (ran.status, ran.json["error"]["exit"]) == (2, 2)
    assert said in ran.json["error"]["message"]
    assert said in ran.err
    assert not opsq.state_dir.exists()


@pytest.mark.parametrize("words", [["--lines", "5"], ["--in-place"], ["--per-file"], ["--csv-header"], ["--as-is"]])
def test_chunks_that_are_taken_as_they_are_cannot_be_cut(opsq, words):
    opsq.file("shown.json", b'{"submission_id": "1"}')
    ran = opsq("submit", "--from-json", "shown.json", *words)
    assert ran.status == 2
    assert "--from-json takes the chunks as they are" in ran.err


def test_wait_and_output_do_the_whole_round(queue):
    queue.file("in", b"a\nb\nc\n")
    with queue.running("consume", "--", "tr", "a-z", "A-Z"):
        ran = queue.ok("submit", "in", "--lines", "1", "--wait", "--output", "out")
    assert ran.text.isdigit()
    assert (queue.folder / "out").read_bytes() == b"A\nB\nC\n"


def test_output_to_stdout_has_the_results_alone(queue):
    """The id would be part of the data otherwise."""
    queue.file("in", b"a\nb\n")
    with queue.running("consume", "--stop-after", "60s", "--", "cat"):
        ran = queue("submit", "in", "--lines", "1", "--wait", "--output", "-")
    assert (ran.status, ran.out) == (0, b"a\nb\n")
    assert ran.err.strip().isdecimal()
    ran = queue("submit", "in", "--wait", "--output", "-", "--json")
    assert (ran.status, "Name a file" in ran.err) == (2, True)


def test_wait_exits_1_when_the_submission_is_cancelled(queue):
    with queue.running("submit", "--wait", "--json", queue.file("in", b"x")) as process:
        submission = wait_until(lambda: queue.ok("list").text.partition("\t")[0], DEADLINE_S)
        queue.ok("cancel", submission)
        out, _ = process.communicate()
    document = json.loads(out)
    assert process.returncode == 1
    assert (document["submission_id"], document["state"], document["error"]["exit"]) == (submission, "cancelled", 1)


def test_too_long_an_argument_is_refused_whole(queue):
    ran = queue("submit", queue.file("in", b"x"), "--unique", "k" * 100_000)
    assert ran.status == 2
    assert queue.ok("list").out == b""


def test_in_place_chunk_of_a_changed_file_is_refused(queue):
    submission = queue.ok("submit", "--in-place", queue.file("in", b"a\n" * 9000)).text
    assert queue.ok("read", f"{submission}/0").out == b"a\n" * 9000
    queue.file("in", b"b\n" * 9001)
    ran = queue("read", f"{submission}/0")
    assert ran.status == 5
    assert "has changed" in ran.err


def test_delay_keeps_a_submission_scheduled(queue):
    submission = queue.submit_lines(1, "--delay", "1h")
    assert queue.ok("show", submission, "--json").json["state"] == "scheduled"
    assert queue("reserve").status == 3


def test_compressed_files_are_submitted_as_what_they_hold(queue):
    queue.file("log.gz", gzip.compress(b"a\nb\n"))
    submission = queue.ok("submit", "log.gz", "--lines", "1").text
    assert [queue.ok("read", f"{submission}/{index}").out for index in range(2)] == [b"a\n", b"b\n"]
    submission = queue.ok("submit", "log.gz", "--per-file", "--as-is").text
    assert gzip.decompress(queue.ok("read", f"{submission}/0").out) == b"a\nb\n"
    assert queue.ok("submit", "log.gz", "--lines", "1", "--dry-run", "--json").json["chunks"] == 2
    ran = queue("submit", "log.gz", "--in-place")
    assert (ran.status, "--as-is" in ran.err) == (2, True)
    assert queue.ok("submit", "log.gz", "--in-place", "--as-is", "--per-file").text
    queue.file("bad.gz", gzip.compress(b"a\nb\n" * 1000)[:-20])
    ran = queue("submit", "bad.gz")
    assert (ran.status, "bad.gz cannot be decompressed" in ran.err) == (2, True)


def test_odd_inputs_are_remarked_on_for_scripts_too(queue):
    queue.file("a", b"x")
    queue.file("b", b"y\0\n")
    ran = queue("submit", "a", "b")
    assert ran.status == 0
    assert "a does not end with a line end" in ran.err
    assert "b has NUL bytes" in ran.err
    assert queue("submit", "--quiet", "a", "b").err == ""


def test_input_that_is_cut_while_it_is_read_is_refused(queue):
    """Its last record would be torn, and the status 0."""
    path = queue.folder / "log"
    with path.open("wb") as file:
        file.truncate(1 << 30)
    with queue.running("submit", "--null", "--bytes", "1M", "log") as process:
        wait_until(lambda: any((queue.state_dir / "content").glob("*/*")), DEADLINE_S)
        process.send_signal(signal.SIGSTOP)
        os.truncate(path, 1 << 20)
        process.send_signal(signal.SIGCONT)
        _, err = process.communicate()
    assert process.returncode == 5
    assert b"log was cut from 1073741824 to 1048576 bytes while it was read" in err
    assert queue.ok("list").text == ""


def test_time_that_the_clocks_leave_out_is_exit_2_with_both_instants(queue):
    ran = queue("submit", "-", "--at", "2099-03-29T02:30", stdin=b"x\n", environ={"TZ": "CET-1CEST,M3.5.0,M10.5.0/3"})
    assert (ran.status, ran.out) == (2, b"")
    assert "2099-03-29T01:30:00+01:00 or 2099-03-29T03:30:00+02:00" in ran.err
    assert queue.ok("list").out == b""

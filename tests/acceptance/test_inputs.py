r"""Where a chunk came from: kept with its submission, told to programs and functions, and in all that is said of it."""

import csv
import json
import os
import subprocess
import sys

import pytest

TELL = 'printf "%s %s %s %s\\n" "$OPSQ_INPUT" "$OPSQ_OFFSET" "$0" "$1"'


def fail_on(word):
    """A program that fails on chunks with this word in them."""
    return ("sh", "-c", f"! grep -q {word}")


def consume(queue, *command):
    return queue("consume", "--until-empty", "-j", "1", "--", *command)


@pytest.fixture
def files(queue):
    """Names of files, one of them in a folder, one with a name that is no UTF-8."""
    (queue.folder / "logs").mkdir()
    strange = os.fsdecode(b"caf\xe9.txt")
    for number, name in enumerate(("logs/a.txt", "b.txt", strange)):
        queue.file(name, b"line %d\n" % number)
    return ["logs/a.txt", "b.txt", strange]


def test_each_file_is_named_to_its_program(queue, files):
    submission = queue.ok("submit", "--per-file", *files).text
    assert consume(queue, "sh", "-c", TELL, "{input}", "{offset}").status == 0
    wanted = b"".join(b"%b 0 %b 0\n" % (name, name) for name in map(os.fsencode, files))
    assert queue.ok("results", submission).out == wanted


def test_ranges_of_a_cut_file_are_told(queue):
    submission = queue.ok("submit", "--csv-header", "--lines", "1", queue.file("t.csv", b"h\n11\n2\n")).text
    assert consume(queue, "sh", "-c", TELL).status == 0
    assert queue.ok("results", submission).out == b"t.csv 2 sh \nt.csv 5 sh \n"
    document = queue.ok("read", f"{submission}/0", "--json").json
    assert (document["input"], document["offset"], document["length"]) == ("t.csv", 2, 3)


def test_files_in_place_are_named_by_their_path(queue):
    queue.file("t.txt", b"1\n2\n")
    submission = queue.ok("submit", "--in-place", "--lines", "1", "t.txt").text
    assert consume(queue, "sh", "-c", TELL).status == 0
    path = os.fsencode(queue.folder / "t.txt")
    assert queue.ok("results", submission).out == b"%b 0 sh \n%b 2 sh \n" % (path, path)


def test_stdin_is_a_dash(queue):
    submission = queue.submit_lines(2)
    assert consume(queue, "sh", "-c", TELL).status == 0
    assert queue.ok("results", submission).out == b"- 0 sh \n- 2 sh \n"
    assert ["inputs", "stdin"] in [line.split("\t") for line in queue.ok("show", submission).lines]


def test_failure_of_one_of_many_files_names_it(queue):
    """In what consume says, in dead list and dead show, in show, and in the history."""
    for number in range(100):
        queue.file(f"{number}.txt", b"number %d.\n" % number)
    names = [f"{number}.txt" for number in range(100)]
    submission = queue.ok("submit", "--per-file", "--max-attempts", "1", "--on-dead", "keep", *names).text
    ran = consume(queue, *fail_on("77"))
    assert ran.status == 1
    assert f"Chunk {submission}/77 (77.txt, bytes 0-10) failed (attempt 1 of 1, dead): exit status 1" in ran.err
    (line,) = queue.ok("dead", "list").lines
    assert line.split("\t")[6] == "77.txt, bytes 0-10"
    (chunk,) = queue.ok("dead", "list", "--json").json["chunks"]
    assert (chunk["input"], chunk["offset"], chunk["length"]) == ("77.txt", 0, 11)
    lines = [line.split("\t") for line in queue.ok("dead", "show", f"{submission}/77").lines]
    assert ["input", "77.txt, bytes 0-10"] in lines
    document = queue.ok("show", f"{submission}/77", "--json").json
    assert (document["input"], document["dead"]["input"]) == ("77.txt", "77.txt")
    assert {event["input"] for event in document["events"]} == {"77.txt"}
    shown = queue.ok("show", submission, "--json").json
    assert (shown["inputs_count"], shown["inputs"]) == (100, names)
    assert {event["input"] for event in shown["attempts"]} == {"77.txt"}
    queue.ok("history", "export", "-o", "all.jsonl", "--event", "failed")
    (event,) = map(json.loads, (queue.folder / "all.jsonl").read_text().splitlines())
    assert (event["input"], event["offset"]) == ("77.txt", 0)
    queue.ok("history", "export", "-o", "all.csv", "--event", "failed")
    with open(queue.folder / "all.csv", newline="") as file:
        (row,) = csv.DictReader(file)
    assert (row["input"], row["offset"], row["metadata"]) == ("77.txt", "0", "{}")
    queue.ok("stop")
    assert queue.ok("dead", "list").lines == [line]


def test_failure_in_a_run_names_its_file(queue, files):
    ran = queue("run", "--per-file", "--max-attempts", "1", *files, "--", *fail_on("2"))
    assert ran.status == 1
    assert ran.err.count("caf\\xe9.txt, bytes 0-6)") == 2, "when it fails, and in the end"


def test_end_of_a_program_tells_where_its_chunk_came_from_as_json(queue, files):
    queue.ok("submit", "--per-file", files[2])
    first = json.loads(queue("consume", "--json", "--until-empty", "--", "cat").lines[0])
    assert (first["input"], first["offset"], first["length"]) == ("caf\\xe9.txt", 0, 7)


def test_dry_run_counts_from_the_beginning_of_the_file(queue):
    document = queue.ok("submit", "--dry-run", "--json", "--csv-header", queue.file("t.csv", b"h\n1\n")).json
    assert document["first"] == [{"index": 0, "input": "t.csv", "offset": 2, "bytes": 2}]


def test_history_of_a_removed_submission_names_no_input(queue):
    submission = queue.ok("submit", queue.file("t.txt", b"1\n")).text
    consume(queue, "cat")
    queue.ok("rm", submission)
    events = queue.ok("history", "list", "--json").json["events"]
    assert [event["input"] for event in events] == [None]


SCRIPT = """
import opsq

def where(chunk):
    name, offset, size = chunk.input
    return f"{name} {offset} {size}\\n".encode()

if __name__ == "__main__":
    with opsq.connect() as q:
        for mode in ("threads", "processes"):
            with q.consumer(f"SelectOnly(kind={mode})") as consumer:
                consumer.run_each_chunk(where, mode=mode)
        s = q.submit([b"x"])
        for chunk in q.consume():
            print(chunk.input, s.input(0))
            chunk.complete()
"""


def test_functions_are_told_of_the_input(queue):
    submissions = [
        queue.ok("submit", "-m", f"kind={mode}", "--lines", "1", queue.file("t.txt", b"1\n22\n")).text
        for mode in ("threads", "processes")
    ]
    queue.file("where.py", SCRIPT.encode())
    ran = subprocess.run(
        [sys.executable, "where.py"], cwd=queue.folder, env=queue.environ, capture_output=True, text=True, check=False
    )
    assert (ran.returncode, ran.stdout) == (0, "None None\n"), ran.stderr
    for submission in submissions:
        assert queue.ok("results", submission).out == b"t.txt 0 2\nt.txt 2 3\n"

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


def test_missing_results_name_the_inputs_of_the_chunk_and_of_the_one_that_died(queue):
    """Of `results`, `wait`, `submit --wait` and `show`: chunk 0 was skipped, as chunk 1 has died."""
    submission = queue.ok("submit", "--lines", "1", "--max-attempts", "1", queue.file("a.txt", b"one\ntwo\n")).text
    handles = queue.ok("reserve", "-n", "2", "-s", "OldestFirst").lines
    queue.ok("fail", handles[1], "--reason", "bad: line")
    died = "has failed: Chunk 1 (a.txt, bytes 4-7) is dead: bad: line"
    ran = queue("results", submission)
    assert ran.status == 1
    assert ran.err.startswith(f"opsq: Chunk {submission}/0 (a.txt, bytes 0-3) has no result: its submission {died}\n")
    ran = queue("wait", submission)
    assert ran.err.startswith(f"opsq: Submission {submission} {died}\n")
    assert died in queue("wait", "--json", submission).json["error"]["message"]
    shown = [line.split("\t") for line in queue.ok("show", submission).lines]
    assert ["reason", "Chunk 1 (a.txt, bytes 4-7) is dead: bad: line"] in shown
    assert queue.ok("show", "--json", submission).json["reason"] == "Chunk 1 is dead: bad: line"
    queue.ok("rm", submission)


def test_skipped_chunk_of_a_completed_submission_names_its_input(queue, files):
    submission = queue.ok("submit", "--per-file", "--max-attempts", "1", "--on-dead", "keep", *files).text
    consume(queue, *fail_on("2"))
    ran = queue("results", submission)
    expected = f"opsq: Chunk {submission}/2 (caf\\xe9.txt, bytes 0-6) has no result: it died or was skipped;"
    assert ran.err.startswith(expected), ran.err


def test_reserved_chunks_tell_their_inputs_as_json(queue, files):
    queue.ok("submit", "--per-file", "-m", "n=1", *files)
    queue.ok("submit", "--lines", "1", "--in-place", "-m", "n=2", str(queue.folder / files[0]))
    found = queue.ok("reserve", "-n", "9", "-s", "OldestFirst", "--json").json["chunks"]
    assert [(each["input"], each["offset"], each["length"]) for each in found] == [
        ("logs/a.txt", 0, 7),
        ("b.txt", 0, 7),
        ("caf\\xe9.txt", 0, 7),
        (str(queue.folder / files[0]), 0, 7),
    ]


EXCEPTIONS = """
import asyncio, logging, sys
import opsq

logging.basicConfig(format="%(message)s")

def broken(chunk):
    raise ValueError("no")

async def read(id):
    async with opsq.connect_async() as q:
        async for result in q.submission(id).results():
            pass

if __name__ == "__main__":
    with opsq.connect() as q:
        s = q.submission(int(sys.argv[1]))
        with q.consumer("OldestFirst") as consumer:
            consumer.run_each_chunk(broken, mode="threads")
        try:
            list(s.results())
        except opsq.errors.WorkFailed as error:
            print(error.message)
            print(error.details["input"], error.details["offset"], error.details["length"])
        try:
            asyncio.run(read(s.id))
        except opsq.errors.WorkFailed as error:
            print(error.message)
        print(*[(chunk.index, *found) for chunk, found in s.first_dead(5)])
"""


def test_exceptions_and_the_log_of_python_name_the_input(queue):
    submission = queue.ok("submit", "--max-attempts", "1", queue.file("a.txt", b"one\ntwo\n")).text
    queue.file("exceptions.py", EXCEPTIONS.encode())
    ran = queue.shell(f'"{sys.executable}" exceptions.py {submission}')
    assert ran.status == 0, ran.err
    cut = "a.txt, bytes 0-7"
    lacking = f"Chunk {submission}/0 ({cut}) has no result: it died or was skipped; the submission is failed."
    assert ran.lines == [lacking, "a.txt 0 8", lacking, "(0, 'a.txt', 0, 8)"]
    assert f"Chunk {submission}/0 ({cut}) failed: ValueError: no" in ran.err

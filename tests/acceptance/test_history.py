"""opsq history: what has happened, listed, exported to files that others read while work goes on, and forgotten."""

import csv
import io
import json
import signal
from datetime import UTC, datetime

import pytest
from pyarrow import parquet

COLUMNS = [
    *("seq", "at", "event", "submission_id", "first_index", "chunks", "indexes", "attempt", "consumer", "started_at"),
    *("wait_s", "run_s", "run_max_s", "exit_status", "signal", "reason", "metadata"),
]


@pytest.fixture
def worked(queue):
    """A submission of ten chunks: one fails with exit 3 and is dead, one is completed with exit 4, the others with exit 0."""
    submission = queue.submit_lines(10, "--on-dead", "keep", "--max-attempts", "1", "-m", "tenant=a", "-m", "size=7")
    script = "read n; case $n in 3) exit 3;; 4) exit 4;; esac"
    queue("consume", "--until-empty", "--complete-on", "0,4", "--name", "me", "--", "sh", "-c", script)
    return submission


def events(queue, *options):
    return queue.ok("history", "list", "--json", "--oldest-first", *options).json["events"]


def rows_of(content):
    return [json.loads(line) for line in content.splitlines()]


def test_attempts_are_listed_with_how_they_ended_and_how_long_they_ran(queue, worked):
    (failed,) = events(queue, worked, "--event", "failed")
    assert (failed["indexes"], failed["attempt"], failed["exit_status"], failed["signal"]) == ("3", 0, 3, None)
    assert failed["consumer"].startswith("me-")
    assert failed["metadata"] == {"tenant": "a", "size": 7}
    began, ended = datetime.fromisoformat(failed["started_at"]), datetime.fromisoformat(failed["at"])
    assert abs((ended - began).total_seconds() - failed["run_s"]) < 0.002  # instants are told to the millisecond
    (line,) = queue.ok("history", worked, "--event", "failed").lines
    fields = line.split("\t")
    assert fields[1:4] == ["failed", f"{worked}/3", "0"]
    assert fields[7] == "exit 3"


def test_status_that_was_kept_by_complete_on_can_be_selected_on(queue, worked):
    (completed,) = events(queue, "--exit-status", "4")
    assert (completed["event"], completed["indexes"]) == ("completed", "4")


def test_every_chunk_is_told_once_and_the_newest_come_first(queue, worked):
    assert sum(event["chunks"] for event in events(queue, "--event", "completed")) == 9
    newest = queue.ok("history", "list", "--json").json["events"]
    assert [event["seq"] for event in newest] == sorted((event["seq"] for event in newest), reverse=True)


def test_pages_turn_in_both_directions(queue, worked):
    for direction in ([], ["--oldest-first"]):
        whole = [event["seq"] for event in queue.ok("history", "list", "--json", *direction).json["events"]]
        turned, after = [], []
        while True:
            page = queue.ok("history", "list", "--json", "-n", "2", *direction, *after).json
            turned += [event["seq"] for event in page["events"]]
            if page["next"] is None:
                break
            after = ["--after", page["next"]]
        assert turned == whole


@pytest.mark.parametrize(
    "options",
    [
        ["--event", "x"],
        ["--signal", "SIGX"],
        ["--exit-status", "256"],
        ["--since", "never"],
        ["4711/x"],
        ["--limit", "0"],
    ],
)
def test_conditions_that_cannot_be_are_exit_2(queue, options):
    assert queue("history", "list", *options).status == 2


def test_formats_say_the_same(queue, worked):
    lines = rows_of(queue.ok("history", "export").out)
    assert list(lines[0]) == COLUMNS
    table = list(csv.DictReader(io.StringIO(queue.ok("history", "export", "--format", "csv").text)))
    assert [row["seq"] for row in table] == [str(row["seq"]) for row in lines]
    assert [json.loads(row["metadata"]) for row in table] == [row["metadata"] for row in lines]
    queue.ok("history", "export", "-o", "h.parquet")
    stored = parquet.read_table(queue.folder / "h.parquet")
    assert stored.column_names == COLUMNS
    assert {name: str(stored.schema.field(name).type) for name in ("at", "started_at", "run_s", "submission_id")} == {
        "at": "timestamp[us, tz=UTC]",
        "started_at": "timestamp[us, tz=UTC]",
        "run_s": "double",
        "submission_id": "int64",
    }
    pairs = stored.schema.field("metadata").type
    assert (str(pairs.key_type), str(pairs.item_type)) == ("string", "string")
    for row, line in zip(stored.to_pylist(), lines, strict=True):
        assert (row["seq"], str(row["submission_id"]), row["chunks"], row["first_index"]) == (
            *(line["seq"], line["submission_id"], line["chunks"], line["first_index"]),
        )
        assert row["at"] == datetime.fromisoformat(line["at"]).astimezone(UTC)
        assert dict(row["metadata"]) == {"tenant": "a", "size": "7"}


def test_parquet_goes_through_a_pipe_too(queue, worked):
    piped = queue.ok("history", "export", "--format", "parquet", "--event", "failed").out
    assert parquet.read_table(io.BytesIO(piped)).column("first_index").to_pylist() == [3]


def test_parquet_without_pyarrow_says_what_to_install_before_anything_is_written(queue, worked):
    (queue.folder / "pyarrow.py").write_text("raise ImportError")
    (queue.folder / "out").mkdir()
    for target in ("-", "h.parquet", "out"):
        ran = queue("history", "export", "--format", "parquet", "-o", target, environ={"PYTHONPATH": str(queue.folder)})
        assert (ran.status, ran.out, "pip install 'opsq[spark]'" in ran.err) == (2, b"", True)
    assert not (queue.folder / "h.parquet").exists()
    assert list((queue.folder / "out").iterdir()) == []


def test_rotated_files_name_their_rows_and_the_next_export_goes_on_where_the_last_ended(queue, worked):
    (queue.folder / "out").mkdir()
    first = queue.ok("history", "export", "-o", "out", "--rotate", "4", "--json").json
    names = sorted(path.name for path in (queue.folder / "out").iterdir())
    assert [f"out/{name}" for name in names] == first["files"]
    rows = [row for name in names for row in rows_of((queue.folder / "out" / name).read_bytes())]
    assert [row["seq"] for row in rows] == list(range(1, first["rows"] + 1))
    for name in names:
        part = [row["seq"] for row in rows_of((queue.folder / "out" / name).read_bytes())]
        assert len(part) <= 4
        assert name == f"history-{part[0]:019}-{part[-1]:019}.jsonl"
    assert queue.ok("history", "export", "-o", "out", "--after-last", "--json").json["files"] == []
    queue.submit_lines(1)
    queue.ok("complete", queue.reserve())
    again = queue.ok("history", "export", "-o", "out", "--after-last", "--json").json
    assert (again["rows"], again["last_seq"]) == (1, first["last_seq"] + 1)


def test_export_that_was_killed_leaves_nothing_that_looks_like_a_file_and_does_not_stand_in_the_way(queue, worked):
    (queue.folder / "out").mkdir()
    (queue.folder / "out" / ".history.part").write_bytes(b"half")
    queue.ok("history", "export", "-o", "out")
    assert len(list((queue.folder / "out").iterdir())) == 1


def test_export_to_a_file_replaces_it_when_it_is_whole(queue, worked):
    queue.file("h.csv", b"before")
    assert queue("history", "export", "-o", "h.csv", "--since", "never").status == 2
    assert (queue.folder / "h.csv").read_bytes() == b"before"
    queue.ok("history", "export", "-o", "h.csv")
    assert (queue.folder / "h.csv").read_text().startswith("seq,at,")


@pytest.mark.parametrize(
    "options", [["--rotate", "5"], ["--after-last"], ["-o", "none/x"], ["--after", "1", "--after-last"]]
)
def test_targets_that_cannot_be_are_exit_2(queue, options):
    assert queue("history", "export", *options).status == 2


def test_reader_that_goes_away_ends_the_export_silently(queue, worked):
    ran = queue.shell("opsq history export | head -1")
    assert (ran.status, ran.err, len(ran.lines)) == (0, "", 1)


def test_stopped_queue_still_tells_its_history(queue, worked):
    running = queue.ok("history", "export").out
    queue.ok("stop")
    assert queue.ok("history", "export").out == running
    assert events(queue, "--event", "failed")[0]["indexes"] == "3"
    assert queue("history", "prune", "--keep", "1").status == 4


def test_prune_forgets_the_oldest_and_says_how_many(queue, worked):
    count = len(events(queue))
    assert queue("history", "prune").status == 2
    assert queue.ok("history", "prune", "--older-than", "1h", "--json").json == {"count": 0}
    assert queue.ok("history", "prune", "--keep", "2", "--json").json == {"count": count - 2}
    assert len(events(queue)) == 2
    assert queue.ok("show", "--json", worked).json["completed"] == 9


def test_shell_loop_has_its_run_time_from_how_long_it_held_the_chunk(queue):
    queue.submit_lines(1)
    handle = queue.reserve()
    queue.ok("extend", handle)
    queue.ok("complete", handle)
    (event,) = events(queue)
    assert event["run_s"] > 0
    assert event["wait_s"] >= 0


def test_killed_program_is_named_by_its_signal(queue):
    submission = queue.submit_lines(1, "--max-attempts", "1")
    assert queue("consume", "--until-empty", "--", "sh", "-c", "kill -9 $$").status == 1
    (event,) = events(queue, submission, "--event", "failed", "--signal", "KILL")
    assert event["signal"] == signal.SIGKILL

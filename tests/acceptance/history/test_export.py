"""opsq history export: events as files that others read while work continues."""

import csv
import io
import json
from datetime import UTC, datetime

import pytest
from pyarrow import parquet

COLUMNS = [
    *("seq", "at", "event", "submission_id", "first_index", "chunks", "indexes", "attempt", "consumer", "started_at"),
    *("wait_s", "run_s", "run_max_s", "exit_status", "signal", "reason", "metadata", "input", "offset", "title"),
]


def events(queue, *options):
    return queue.ok("history", "list", "--json", "--oldest-first", *options).json["events"]


def rows_of(content):
    return [json.loads(line) for line in content.splitlines()]


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


@pytest.mark.parametrize("after", ["0", "1"])
def test_a_place_to_go_on_from_is_given_only_once(queue, after):
    (queue.folder / "out").mkdir()
    ran = queue("history", "export", "-o", "out", "--after", after, "--after-last")
    assert ran.status == 2
    assert "--after and --after-last cannot be combined." in ran.err


def test_reader_that_goes_away_ends_the_export_silently(queue, worked):
    ran = queue.shell("opsq history export | head -1")
    assert (ran.status, ran.err, len(ran.lines)) == (0, "", 1)

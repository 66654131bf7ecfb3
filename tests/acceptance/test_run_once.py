"""opsq run --idempotency-key: the same work is done once, however often the line is repeated."""

from __future__ import annotations

import os
import signal
from typing import TYPE_CHECKING

import pytest

from acceptance.conftest import DEADLINE_S
from waiting import wait_until

if TYPE_CHECKING:
    from acceptance.conftest import Opsq, Ran

TEXT = b"a\nb\nc\n"
PROGRAM = ("in", "--", "sh", "-c", "tee -a runs")


@pytest.fixture
def folder(opsq: Opsq) -> Opsq:
    """A folder with an input, and no daemon."""
    opsq.file("in", TEXT)
    return opsq


def once(opsq: Opsq, *words: str, stdin: bytes | None = None) -> Ran:
    """Run a line with a key, by default that of `PROGRAM`."""
    return opsq("run", "--idempotency-key", "day 1", "-j1", "-l1", *(words or PROGRAM), stdin=stdin)


def runs(opsq: Opsq) -> bytes:
    """What programs were given."""
    path = opsq.folder / "runs"
    return path.read_bytes() if path.exists() else b""


def test_line_that_is_done_is_not_done_again_and_its_output_is_left_alone(folder: Opsq):
    first = once(folder, "-o", "out", *PROGRAM)
    assert first == (0, b"", "")
    (folder.folder / "out").write_bytes(b"edited\n")
    written = os.stat(folder.folder / "out")
    ran = once(folder, "-o", "out", *PROGRAM)
    assert (ran.status, ran.out) == (0, b"")
    assert "This run was done at 20" in ran.err
    assert "out is left as it is" in ran.err
    assert once(folder, "-q", "-o", "out", *PROGRAM) == (0, b"", "")
    document = once(folder, "--json", "-o", "out", *PROGRAM).json
    assert (document["state"], document["completed"], "finished_at" in document) == ("completed", 0, True)
    assert os.stat(folder.folder / "out") == written
    assert runs(folder) == TEXT
    assert folder("status").status == 4


def test_results_are_written_again_where_they_are_missing(folder: Opsq):
    assert once(folder, "-o", "out", *PROGRAM).status == 0
    folder.file("other", b"of yesterday\n")
    (folder.folder / "out").unlink()
    for name in ("out", "other"):
        assert "writing its results again" in once(folder, "-o", name, *PROGRAM).err
        assert (folder.folder / name).read_bytes() == TEXT
    assert once(folder).out == TEXT
    document = once(folder, "--json", *PROGRAM).json
    assert ([each["text"] for each in document["results"]], "finished_at" in document) == (["a\n", "b\n", "c\n"], True)
    assert runs(folder) == TEXT


def test_results_that_are_gone_are_told_with_what_to_do(folder: Opsq):
    submissions = once(folder, "--json", *PROGRAM).json["submissions"]
    folder.ok("start")
    folder.ok("rm", *submissions)
    ran = once(folder)
    assert (ran.status, ran.out, "--fresh" in ran.err) == (3, b"", True), ran
    assert runs(folder) == TEXT
    assert once(folder, "--fresh", *PROGRAM).out == TEXT
    assert runs(folder) == TEXT * 2
    assert once(folder).out == TEXT


def test_results_that_were_not_all_written_are_written_by_the_next_line(folder: Opsq):
    """The output of the day before does not pass for them."""
    folder.file("out", b"of yesterday\n")
    with folder.running("run", "--idempotency-key", "day 1", "-l1", "-o", "no/such/folder", *PROGRAM) as process:
        process.communicate(timeout=DEADLINE_S)
    assert process.returncode == 2
    assert once(folder, "-o", "out", *PROGRAM) == (0, b"", "")
    assert (folder.folder / "out").read_bytes() == TEXT


def test_killed_line_is_resumed_and_then_done(folder: Opsq):
    words = ("in", "--", "sh", "-c", "tee -a runs; grep -q b runs && test ! -e go && sleep 600; true")
    with folder.running("run", "--idempotency-key", "day 1", "-j1", "-l1", *words) as process:
        wait_until(lambda: b"b" in runs(folder), DEADLINE_S, "the second chunk runs")
        wait_until(
            lambda: folder.ok("status", "--json").json["total"]["completed"] == 1, DEADLINE_S, "one is acknowledged"
        )
        process.send_signal(signal.SIGKILL)
        process.communicate(timeout=DEADLINE_S)
    folder.file("go", b"")
    for told in ("", "writing its results again"):
        ran = once(folder, *words)
        assert (ran.status, ran.out, told in ran.err) == (0, TEXT, True)
        assert (runs(folder).count(b"a"), runs(folder).count(b"c")) == (1, 1)


def test_key_that_is_at_work_is_refused_whatever_the_line(folder: Opsq):
    words = ("in", "--", "sh", "-c", "tee -a runs; until test -e go; do sleep 0.05; done")
    with folder.running("run", "--idempotency-key", "day 1", "-j1", "-l1", *words) as process:
        wait_until(lambda: runs(folder), DEADLINE_S, "it runs")
        for again in (words, PROGRAM, ("--fresh", *words)):
            ran = once(folder, *again)
            assert (ran.status, ran.out, "already active" in ran.err) == (5, b"", True), ran
        folder.file("go", b"")
        out, _ = process.communicate(timeout=DEADLINE_S)
    assert (process.returncode, out) == (0, TEXT)


def test_key_of_another_line_is_refused_until_that_is_discarded(folder: Opsq):
    folder.file("other", b"x\n")
    once(folder)
    other = ("other", "--", "sh", "-c", "tee -a runs")
    for words, part in (
        (other, "input"),
        (("in", "--", "cat"), "program"),
        (("-m", "kind=x", *PROGRAM), "options"),
        (("--per-file", *PROGRAM), "splitting"),
    ):
        ran = folder("run", "--idempotency-key", "day 1", *(("-l1",) if part != "splitting" else ()), *words)
        assert (ran.status, ran.out, part in ran.err, "day 1" in ran.err) == (5, b"", True, True), ran
    assert runs(folder) == TEXT
    assert once(folder, "--fresh", *other).out == b"x\n"
    assert once(folder).status == 5
    assert folder.ok("run", "--idempotency-key", "day 2", *PROGRAM).out == TEXT


def test_key_of_a_submission_is_refused_and_the_other_way_round(folder: Opsq):
    folder.ok("start")
    submission = folder.ok("submit", "--idempotency-key", "day 1", "in").text.strip()
    ran = once(folder)
    assert (ran.status, submission in ran.err, runs(folder)) == (5, True, b""), ran
    folder.ok("cancel", submission)
    folder.ok("rm", submission)
    assert once(folder).out == TEXT
    assert folder("submit", "--idempotency-key", "day 1", "in").status == 5


def test_key_is_free_when_it_was_kept_long_enough(folder: Opsq):
    for options in ([], ["--keep", "1h"]):
        assert once(folder, *options, *PROGRAM).out == TEXT
        assert runs(folder) == TEXT
    assert once(folder, "--keep", "0s", "in", "--", "cat", "runs").out == TEXT * 3
    ran = folder("run", "--idempotency-key", "day 2", "--keep", "8d", *PROGRAM)
    assert (ran.status, "finished_days" in ran.err) == (2, True), ran
    assert folder("run", "--keep", "1d", *PROGRAM).status == 2
    assert once(folder, "--resume", "x", *PROGRAM).status == 2


def test_stream_is_read_once(folder: Opsq):
    words = ("-", "--", "sh", "-c", "tee -a runs")
    for stdin in (TEXT, b"something else\n"):
        assert once(folder, *words, stdin=stdin).out == TEXT
    assert runs(folder) == TEXT


def test_nothing_is_done_once_too(folder: Opsq):
    words = ("-", "--", "sh", "-c", "tee -a runs")
    for stdin in (b"", TEXT):
        assert once(folder, *words, stdin=stdin)[:2] == (0, b"")
    assert runs(folder) == b""

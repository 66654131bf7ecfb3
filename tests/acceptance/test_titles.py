"""Titles: what a submission is to people, wherever they meet it; and who submitted it."""

import csv
import json
import os
import pwd
import socket

import pytest

TITLE = "Nightly import of orders"
USER = pwd.getpwuid(os.geteuid()).pw_name


def test_title_is_shown_wherever_a_submission_is(queue):
    submission = queue.submit_lines(2, "--title", TITLE, "--on-dead", "keep")
    plain = queue.submit_lines(1)
    assert [line.split("\t")[7] for line in queue.ok("list").lines] == ["-", TITLE]
    assert [each["title"] for each in queue.ok("list", "--json").json["submissions"]] == [None, TITLE]
    lines = [line.split("\t") for line in queue.ok("show", submission).lines]
    assert ["title", TITLE] in lines
    assert ["submitted by", f"{USER}@{socket.gethostname()}"] in lines
    assert "title" not in {line.split("\t")[0] for line in queue.ok("show", plain).lines}
    shown = queue.ok("show", "--json", submission).json
    assert [shown[name] for name in ("title", "submitted_by", "submitted_from")] == [TITLE, USER, socket.gethostname()]
    assert ["title", TITLE] in [line.split("\t") for line in queue.ok("show", f"{submission}/1").lines]
    assert queue.ok("show", "--json", f"{submission}/1").json["title"] == TITLE
    queue.reserve()
    assert queue.ok("show", "--running", "--json", submission).json["running"][0]["title"] == TITLE
    assert queue.ok("top", "--json").json["running"][0]["title"] == TITLE
    assert TITLE[:7] in queue.ok("top").text
    queue.ok("cancel", submission)
    ran = queue("wait", submission, "--json")
    assert ran.json["submissions"][0]["title"] == TITLE
    assert f"{submission} ({TITLE}) is cancelled" in ran.json["error"]["message"]


def test_list_on_a_terminal_of_80_columns_has_whole_titles(queue):
    long = "Nightly import of the orders of all tenants, with their invoices and returns"
    queue.submit_lines(1, "-m", "tenant=acme", "--title", long)
    drawn = queue.on_terminal("list").out.decode()
    assert f"title: {long}" in " ".join(drawn.replace("\x1b[2m", "").replace("\x1b[0m", "").split())
    assert "tenant=acme" in drawn


@pytest.mark.parametrize("title", ["x" * 300, "two\nlines", "\x1b[2J"])
@pytest.mark.parametrize("words", [("submit", "in"), ("run", "in")])
def test_title_that_is_not_a_line_of_text_is_exit_2(queue, words, title):
    queue.file("in", b"a\n")
    ran = queue(*words, "--title", title, *(("--", "cat") if words[0] == "run" else ()))
    assert ran.status == 2
    assert "--title" in ran.err
    assert queue.ok("list").lines == []


def test_key_finds_a_submission_whatever_its_title(queue):
    queue.file("in", b"a\n")
    ids = {queue.ok("submit", "in", "--idempotency-key", "once", "--title", title).text for title in ("A", "B")}
    [shown] = queue.ok("list", "--json").json["submissions"]
    assert ({shown["submission_id"]}, shown["title"]) == (ids, "A")


def test_run_goes_on_with_the_same_work_under_another_title(queue):
    queue.file("in", b"a\nb\n")
    work = ["in", "-l", "1", "-j", "1", "--max-attempts", "1", "--", "sh", "-c", "grep -v b || test -e again"]
    assert queue("run", "--title", "A", *work).status == 1
    before = queue.ok("list", "--json").json["submissions"]
    assert [each["title"] for each in before] == ["A"]
    assert queue("run", "--title", "B", *work).status == 1
    after = queue.ok("list", "--json").json["submissions"]
    assert [(each["submission_id"], each["title"]) for each in after] == [(before[0]["submission_id"], "A")]


def test_copy_of_a_submission_has_its_title_unless_another_is_given(queue):
    document = queue.ok("show", "--json", queue.submit_lines(1, "--title", TITLE)).out
    same = queue.ok("submit", "--from-json", "-", stdin=document).text
    other = queue.ok("submit", "--from-json", "-", "--title", "Once more", stdin=document).text
    titles = {each["submission_id"]: each["title"] for each in queue.ok("list", "--json").json["submissions"]}
    assert (titles[same], titles[other]) == (TITLE, "Once more")
    older = {name: field for name, field in json.loads(document).items() if name != "title"}
    plain = queue.ok("submit", "--from-json", "-", stdin=json.dumps(older).encode()).text
    assert queue.ok("show", "--json", plain).json["title"] is None


def test_wait_names_what_it_waits_for(queue):
    submission = queue.submit_lines(1, "--title", TITLE)
    drawn = queue.interrupted_on_terminal("wait", submission)
    assert f"{submission} ({TITLE})" in drawn.err


def test_history_has_the_title_while_the_submission_is_there(queue):
    submission = queue.submit_lines(1, "--title", TITLE)
    queue.submit_lines(1)
    for _ in range(2):
        queue.ok("complete", queue.reserve())
    assert [each["title"] for each in queue.ok("history", "list", "--json").json["events"]] == [None, TITLE]
    exported = [json.loads(line) for line in queue.ok("history", "export").lines]
    assert [each["title"] for each in exported] == [TITLE, None]
    rows = list(csv.DictReader(queue.ok("history", "export", "--format", "csv").lines))
    assert [each["title"] for each in rows] == [TITLE, ""]
    queue.ok("rm", submission)
    assert [each["title"] for each in queue.ok("history", "list", "--json").json["events"]] == [None, None]


def test_backup_has_the_titles(queue):
    submission = queue.submit_lines(1, "--title", TITLE)
    (queue.folder / "copy").mkdir()
    queue.ok("backup", str(queue.folder / "copy" / "opsq.sqlite"))
    queue.ok("stop")
    queue.ok("start", "--state-dir", str(queue.folder / "copy"))
    assert queue.ok("show", "--state-dir", str(queue.folder / "copy"), "--json", submission).json["title"] == TITLE
    queue.ok("stop", "--state-dir", str(queue.folder / "copy"))

"""opsq events: what has happened as lines, its cursor over restarts and kills, closed pipes and Ctrl-C."""

import json
import os
import signal
import subprocess

import pytest


def follow(queue, *words, **options):
    """A follower in the background, its stdout a pipe."""
    return subprocess.Popen(
        [*queue.program, "events", "--follow", *words], env=queue.environ, stdout=subprocess.PIPE, **options
    )


def test_ends_deaths_and_pauses_are_lines_with_growing_cursors(queue):
    number = queue.submit_lines(2, "-m", "tenant=a", "--max-attempts", "1", "--title", "Import")
    queue("consume", "--until-empty", "--", "false")
    queue.ok("pause", "tenant=a", "--quiet")
    dead, failed, paused = queue.ok("events", "--json").documents
    assert [dead["kind"], failed["kind"], paused["kind"]] == ["dead", "failed", "paused"]
    assert (dead["submission_id"], dead["count"], dead["subject"]) == (number, 1, f"submission {number}")
    assert (failed["metadata"], failed["title"]) == ({"tenant": "a"}, "Import")
    assert failed["text"].startswith(f"Submission {number} (Import) has failed: Chunk ")
    assert (paused["metadata"], paused["subject"]) == ({"tenant": "a"}, "pause tenant=a")
    cursors = [each["cursor"] for each in (dead, failed, paused)]
    assert [cursor.partition("@")[0] for cursor in cursors] == ["1", "2", "3"]
    lines = [
        line.split("\t") for line in queue.ok("events", "--since", "1", "--kind", "paused", "--kind", "failed").lines
    ]
    assert [(line[0], line[2], line[3]) for line in lines] == [
        (cursors[1], "failed", f"submission {number}"),
        (cursors[2], "paused", "pause tenant=a"),
    ]
    assert [line.split("\t")[0] for line in queue.ok("events", "-n", "1").lines] == cursors[:1]
    assert len(queue.ok("events", "--since", cursors[0]).lines) == 2
    assert "tenant=a was paused" in queue.on_terminal("events", columns=160).text


def test_stopped_queue_tells_what_happened(queue):
    queue.ok("pause", "tenant=a", "--quiet")
    queue.ok("stop")
    assert [line.split("\t")[2] for line in queue.ok("events").lines] == ["paused"]


def test_cursor_file_goes_on_behind_what_was_printed(queue):
    kept = str(queue.folder / "seen")
    assert queue.ok("events", "--cursor-file", kept).lines == []
    queue.ok("pause", "tenant=a", "--quiet")
    assert len(queue.ok("events", "--cursor-file", kept).lines) == 1
    assert queue.ok("events", "--cursor-file", kept).lines == []
    queue.ok("restart")
    queue.ok("resume", "tenant=a", "--quiet")
    assert [line.split("\t")[2] for line in queue.ok("events", "--cursor-file", kept).lines] == ["resumed"]
    number, _, instant = (queue.folder / "seen").read_text().strip().partition("@")
    assert (number, instant.isdigit()) == ("2", True)
    (queue.folder / "seen").write_text("1\n")  # as an older opsq has left it
    assert [line.split("\t")[2] for line in queue.ok("events", "--cursor-file", kept).lines] == ["resumed"]
    (queue.folder / "seen").write_text("hey!\n")
    assert queue("events", "--cursor-file", kept).status == 2
    assert queue("events", "--cursor-file", str(queue.folder / "none" / "seen")).status != 0


def test_cursor_0_beside_a_cursor_file_is_refused_as_any_other(queue):
    for cursor in ("0", "1"):
        ran = queue("events", "--since", cursor, "--cursor-file", "seen")
        assert (ran.status, ran.out) == (2, b"")
        assert "--since and --cursor-file cannot be combined." in ran.err


@pytest.mark.parametrize("word", ["-1", "hey", "9" * 30, "1@", "1@hey"])
def test_cursor_that_is_none_is_refused(queue, word):
    assert queue("events", f"--since={word}").status == 2


def test_cursor_ahead_of_the_queue_is_answered_by_lost(queue):
    queue.ok("pause", "tenant=a", "--quiet")
    lost, paused = queue.ok("events", "--since", "77", "--json").documents
    assert (lost["kind"], lost["count"], paused["kind"]) == ("lost", None, "paused")


def test_cursor_file_of_a_queue_that_was_put_back_is_answered_by_lost_though_as_much_has_happened_since(queue):
    kept = str(queue.folder / "seen")
    queue.ok("backup", "copy.sqlite")
    queue.ok("pause", "tenant=a", "--quiet")
    assert len(queue.ok("events", "--cursor-file", kept).lines) == 1
    queue.ok("stop")
    (queue.folder / "copy.sqlite").replace(queue.state_dir / "opsq.sqlite")
    queue.ok("start")
    for tenant in "bc":
        queue.ok("pause", f"tenant={tenant}", "--quiet")
    found = queue.ok("events", "--cursor-file", kept, "--json").documents
    assert [event["kind"] for event in found] == ["lost", "paused", "paused"]
    assert queue.ok("events", "--cursor-file", kept).lines == []


def test_follower_goes_on_over_a_killed_daemon(queue):
    queue.ok("pause", "tenant=a", "--quiet")
    with follow(queue, "--json", "-n", "3", "--since", "1") as follower:
        queue.ok("resume", "tenant=a", "--quiet")
        first = json.loads(follower.stdout.readline())
        os.kill(queue.ok("status", "--json").json["pid"], signal.SIGKILL)
        queue.ok("start")
        queue.ok("pause", "tenant=b", "--quiet")
        queue.ok("pause", "tenant=c", "--quiet")
        rest = [json.loads(line) for line in follower.stdout]
        assert [first["kind"], *(each["subject"] for each in rest)] == ["resumed", "pause tenant=b", "pause tenant=c"]
        assert follower.wait() == 0


def test_follower_ends_when_nobody_reads_any_more(queue):
    with follow(queue) as follower:
        follower.stdout.close()
        assert follower.wait(60) in {0, 141}


def test_ctrl_c_ends_a_follower_without_a_trace(queue):
    queue.ok("pause", "tenant=a", "--quiet")
    with follow(queue, stderr=subprocess.PIPE) as follower:
        follower.stdout.readline()
        follower.send_signal(signal.SIGINT)
        assert follower.wait(60) in {130, -signal.SIGINT}
        assert b"Traceback" not in follower.stderr.read()


def test_without_a_queue_the_verb_says_so(opsq):
    assert opsq("events").status == 4
    assert opsq("events", "--follow").status == 4

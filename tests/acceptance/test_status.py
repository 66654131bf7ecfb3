"""opsq status: what the daemon does, and which socket was asked."""

import json
import signal

import pyte
import pytest


def test_socket_and_what_chose_it_are_named(queue):
    document = queue.ok("status", "--json").json
    assert document["socket"] == str(queue.state_dir / "opsq.sock")
    assert "OPSQ_STATE_DIR" in document["socket_source"]
    elsewhere = queue("status", "--socket", "/tmp/opsq-nowhere.sock")
    assert elsewhere.status == 4
    assert elsewhere.err.count("/tmp/opsq-nowhere.sock") == 1
    assert "was chosen by --socket" in elsewhere.err


def test_counts_are_those_of_the_queue(queue):
    queue.submit_lines(3)
    queue.ok("complete", queue.reserve())
    queue.reserve()
    total = queue.ok("status", "--json").json["total"]
    assert (total["submissions"], total["completed"], total["reserved"], total["waiting"]) == (1, 1, 1, 1)
    plain = dict(line.split("\t", 1) for line in queue.ok("status").lines)
    assert (plain["state"], plain["completed"], plain["reserved"]) == ("running", "1", "1")


def test_by_counts_per_value(queue):
    queue.submit_lines(2, "-m", "tenant=a")
    queue.submit_lines(1, "-m", "tenant=5")
    by = {counts["value"]: counts["waiting"] for counts in queue.ok("status", "--by", "tenant", "--json").json["by"]}
    assert (by["a"], by[5]) == (2, 1)
    assert "a\t1\t2\t0\t0\t0\t0\t0" in queue.ok("status", "--by", "tenant").lines


def test_sizes_are_shown(queue):
    document = queue.ok("status", "--json").json
    assert document["file_bytes"] > 0
    assert document["wal_bytes"] >= 0
    assert document["free_bytes"] >= 0


def test_without_home_it_works_or_says_what_to_set(opsq):
    """Root has a folder of its own; others have one by the password database."""
    ran = opsq("status", environ={"OPSQ_STATE_DIR": "", "OPSQ_SOCKET": "/tmp/opsq-nowhere.sock"})
    assert ran.status == 4
    assert "was chosen by OPSQ_SOCKET" in ran.err


def test_watch_goes_on_until_interrupted(queue):
    with queue.running("status", "--watch", "--json", "--interval", "0.1") as process:
        lines = [process.stdout.readline() for _ in range(2)]
        process.send_signal(signal.SIGINT)
        process.communicate()
    assert process.returncode == 130
    assert all(line.startswith(b'{"state":"running"') for line in lines)


def test_watch_tells_the_rate_once_it_is_known(queue):
    queue.submit_lines(3)
    with queue.running("status", "--watch", "--json", "--interval", "0.1") as process:
        assert "rate_per_s" not in json.loads(process.stdout.readline())
        queue.ok("complete", queue.reserve())
        document = next(found for line in process.stdout if "rate_per_s" in (found := json.loads(line)))
        process.send_signal(signal.SIGINT)
        process.communicate()
    assert document["left_s"] == pytest.approx(2 / document["rate_per_s"])


def test_table_on_a_terminal_fits_80_columns(queue):
    queue.submit_lines(2, "-m", "tenant=a")
    ran = queue.on_terminal("status", "--by", "tenant")
    assert ran.status == 0
    screen = pyte.Screen(200, 50)
    pyte.ByteStream(screen).feed(ran.out)
    assert max(len(line.rstrip()) for line in screen.display) <= 80
    assert any("running" in line for line in screen.display)


def test_bad_key_is_exit_2(queue):
    assert queue("status", "--by", "a b").status == 2


def test_by_submission_is_exit_2_and_names_what_counts_them(queue):
    ran = queue("status", "--by", "submission")
    assert ran.status == 2
    assert "opsq list" in ran.err


def test_key_that_no_submission_has_is_told_on_a_terminal(queue):
    assert b"No submission has the key nokey" in queue.on_terminal("status", "--by", "nokey").out


EVIL = "\x1b]0;owned\x07\x1b[2Jred\x9b31m\u202e"


def test_control_characters_of_others_are_escaped_wherever_they_are_shown(queue):
    """In lines, in tables on a terminal, as metadata and reasons: nothing of them moves the cursor."""
    queue.submit_lines(1, "-m", f"tenant={EVIL}")
    handle = queue.reserve()
    queue.ok("fail", handle, "--no-retry", "--reason", EVIL)
    number = handle.partition("/")[0]
    verbs = (
        ("status", "--by", "tenant"),
        ("list",),
        ("show", number),
        ("dead", "list"),
        ("history", "list"),
        ("explain", number),
        ("wait", number),
    )
    for words in verbs:
        plain = queue(*words)
        shown = plain.text + plain.err
        assert all(each.isprintable() or each in "\n\t" for each in shown), words
        drawn = queue.on_terminal(*words).out.decode()
        assert not {"\x07", "\x9b", "\u202e"} & set(drawn), words
        assert "\x1b]" not in drawn, words
        assert "\x1b[2J" not in drawn, words
    assert "owned" in queue("status", "--by", "tenant").text


def test_what_holds_waiting_work_back_is_named(queue):
    queue.submit_lines(1, "-m", "tenant=acme")
    queue.submit_lines(1, "--delay", "1h")
    queue.ok("pause", "tenant=acme")
    text = queue.ok("status").text
    assert "Waiting work has been paused by" in text
    assert "1 submission not due yet" in text
    found = queue.ok("status", "--json").json["held_back"]
    assert [entry["code"] for entry in found] == ["paused", "resume", "some_scheduled"]

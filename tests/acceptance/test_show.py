"""opsq show: one submission, for people and for programs."""

import socket

import pytest

from waiting import wait_until

DEADLINE_S = 180


def test_counts_and_rules_are_shown(queue):
    submission = queue.submit_lines(
        3, "--priority", "-2", "-m", "tenant=a", "--backoff", "1,3,1m", "--reservation", "2m"
    )
    queue.ok("complete", queue.reserve())
    queue.reserve()
    shape = queue.ok("show", "--json", submission).json
    counts = {name: shape[name] for name in ("chunks", "completed", "reserved", "waiting", "dead")}
    assert counts == {"chunks": 3, "completed": 1, "reserved": 1, "waiting": 1, "dead": 0}
    assert (shape["priority"], shape["metadata"], shape["reservation_s"]) == (-2, {"tenant": "a"}, 120)
    assert shape["backoff"] == {"base_s": 1, "factor": 3, "max_s": 60}
    assert shape["submitted_at"].endswith("Z")
    plain = dict(line.split("\t") for line in queue.ok("show", submission).lines)
    assert (plain["submission id"], plain["state"], plain["metadata"]) == (submission, "open", "tenant=a")


def test_every_failure_is_json_when_json_was_asked_for(queue):
    ran = queue("show", "--json", "999")
    assert ran.status == 3
    assert ran.json["error"].keys() == {"code", "exit", "message", "hint"}
    assert (ran.json["error"]["code"], ran.json["error"]["exit"]) == ("not_found", 3)


def test_text_that_looks_like_a_number_stays_text(queue):
    submission = queue.submit_lines(1, "-m", 'a="7"', "-m", "b=7", "-m", "c=007")
    assert queue.ok("show", "--json", submission).json["metadata"] == {"a": "7", "b": 7, "c": "007"}
    assert 'a="7" b=7 c=007' in queue.ok("show", submission).text


def test_attempts_that_failed_are_told_below_and_of_one_chunk_all(queue):
    submission = queue.submit_lines(2, "--max-attempts", "2", "--backoff", "0", "--on-dead", "keep")
    script = "read n; [ $n = 1 ] || exit 0; echo sorry >&2; exit 3"
    queue("consume", "--until-empty", "--name", "me", "--", "sh", "-c", script)
    shape = queue.ok("show", "--json", submission).json
    assert [(event["indexes"], event["attempt"], event["exit_status"]) for event in shape["attempts"]] == [
        ("1", 0, 3),
        ("1", 1, 3),
    ]
    assert shape["has_more_attempts"] is False
    lines = [line.split("\t") for line in queue.ok("show", submission).lines]
    (first, second) = [words.split() for name, words in lines if name == "attempt"]
    assert first[:3] == [f"{submission}/1", "failed", "1"]
    assert (second[2], second[3].startswith("me-"), second[6:8], second[-1]) == ("2", True, ["exit", "3"], "sorry")
    assert first[4] <= first[5] <= second[4] <= second[5]
    chunk = queue.ok("show", "--json", f"{submission}/1").json
    assert (chunk["state"], [event["event"] for event in chunk["events"]]) == ("dead", ["failed", "failed", "dead"])
    done = queue.ok("show", "--json", f"{submission}/0").json
    assert (done["state"], [event["event"] for event in done["events"]], done["dead"]) == (
        "completed",
        ["completed"],
        None,
    )
    assert queue("show", f"{submission}/2").status == 3
    assert queue("show", f"{submission}/x").status == 2


def test_attempts_of_many_are_cut_and_the_rest_is_pointed_to(queue):
    submission = queue.submit_lines(30, "--on-dead", "keep")
    for handle in queue.ok("reserve", "-n", "30").lines:
        queue.ok("fail", "--no-retry", handle)
    shape = queue.ok("show", "--json", submission).json
    assert (len(shape["attempts"]), shape["has_more_attempts"]) == (20, True)
    assert "opsq history list" in queue.on_terminal("show", submission, columns=200).text
    again = queue.ok("submit", "--from-json", "-", stdin=queue.ok("show", "--json", submission).out).text
    assert queue.ok("show", "--json", again).json["chunks"] == 30


def test_rate_and_time_left_of_open_work_come_from_what_has_ended(queue):
    submission = queue.submit_lines(10)
    assert "rate_per_s" not in queue.ok("show", "--json", submission).json
    for _ in range(3):
        queue.ok("complete", queue.reserve())
    shape = queue.ok("show", "--json", submission).json
    assert shape["left_s"] == pytest.approx(7 / shape["rate_per_s"])
    plain = dict(line.split("\t") for line in queue.ok("show", submission).lines)
    assert "/" in plain["rate"]
    assert plain["time left"]
    queue.ok("cancel", submission)
    assert not {"rate_per_s", "left_s"} & queue.ok("show", "--json", submission).json.keys()


def test_chunks_that_run_are_named_with_where_and_since_when(queue):
    submission = queue.submit_lines(5, "-m", "tenant=a")
    assert queue.ok("show", "--running", submission).out == b""
    assert b"opsq explain" in queue.on_terminal("show", "--running", submission).out
    lease = queue.reserve()
    with queue.running("consume", "-j2", "--name", "me", "--", "sh", "-c", "echo > begun; exec sleep 600") as consumer:
        wait_until(lambda: len(queue.ok("show", "--running", submission).lines) == 3, DEADLINE_S, "two programs run")
        document = queue.ok("show", "--running", "--json", submission).json
        lines = [line.split("\t") for line in queue.ok("show", "--running", submission).lines]
        drawn = queue.on_terminal("show", "--running", submission).text
    first, *others = document["running"]
    assert (f"{submission}/{first['index']}", first["pid"]) == (lease.partition("@")[0], None)
    assert {(one["host"], one["pid"], one["metadata"]["tenant"]) for one in others} == {
        (socket.gethostname(), consumer.pid, "a")
    }
    assert document["reserved"] >= 3
    assert [one["run_s"] for one in document["running"]] == sorted(
        (one["run_s"] for one in document["running"]), reverse=True
    )
    assert [line[0] for line in lines] == [f"{submission}/{one['index']}" for one in document["running"]]
    assert lines[1][2].startswith("me-")
    assert lines[1][3:5] == [socket.gethostname(), str(consumer.pid)]
    assert f"{socket.gethostname()}-{consumer.pid}" in drawn.replace("\r\n", "")
    assert queue("show", "--running", f"{submission}/0").status == 2
    assert queue("show", "--running", "999").status == 3


def test_what_holds_a_submission_back_is_shown(queue):
    submission = queue.submit_lines(1, "-m", "tenant=acme")
    queue.ok("pause", "tenant=acme")
    assert "`opsq resume tenant=acme` ends the pause." in queue.ok("show", submission).text
    shown = queue.ok("show", submission, "--json").json["held_back"]
    assert [found["code"] for found in shown] == ["paused", "resume"]
    assert shown[0]["details"]["pairs"] == "tenant=acme"
    assert shown[0]["details"]["paused_at"].endswith("Z")

"""opsq history list: what has happened to chunks, page by page."""

import signal
from datetime import datetime

import pytest


def events(queue, *options):
    return queue.ok("history", "list", "--json", "--oldest-first", *options).json["events"]


def test_attempts_are_listed_with_how_they_ended_and_how_long_they_ran(queue, worked):
    (failed,) = events(queue, worked, "--event", "failed")
    assert (failed["indexes"], failed["attempt"], failed["exit_status"], failed["signal"]) == ("3", 0, 3, None)
    assert failed["consumer"].startswith("me-")
    assert failed["metadata"] == {"tenant": "a", "size": 7}
    began, ended = datetime.fromisoformat(failed["started_at"]), datetime.fromisoformat(failed["at"])
    assert abs((ended - began).total_seconds() - failed["run_s"]) < 0.002  # instants are told to the millisecond
    (line,) = queue.ok("history", worked, "--event", "failed").lines
    fields = line.split("\t")
    assert fields[1:4] == ["failed", f"{worked}/3", "1"]
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


def test_stopped_queue_still_tells_its_history(queue, worked):
    running = queue.ok("history", "export").out
    queue.ok("stop")
    assert queue.ok("history", "export").out == running
    assert events(queue, "--event", "failed")[0]["indexes"] == "3"
    assert queue("history", "prune", "--keep", "1").status == 4


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


def test_history_is_whole_in_a_pipe_and_short_on_a_terminal(queue):
    submissions = [queue.submit_lines(1) for _ in range(103)]
    queue.ok("cancel", "--all")
    assert {line.split("\t")[2] for line in queue.ok("history").lines} == set(submissions)
    document = queue.ok("history", "--json").json
    assert (len(document["events"]), document["next"]) == (103, None)
    drawn = queue.on_terminal("history", columns=160).text
    assert sum(submission in drawn for submission in submissions) == 100
    assert f"--after {document['events'][99]['seq']}" in drawn

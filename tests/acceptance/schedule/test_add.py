"""opsq schedule add: submissions that come by the clock."""

import pytest

from waiting import wait_until


def made(queue, name):
    return queue.ok("list", "-m", f"schedule={name}", "--json").json["submissions"][::-1]


def test_schedule_makes_submissions_that_a_consumer_of_its_own_works_on(queue):
    queue.ok("schedule", "add", "tick", "every 1s", "-m", "tenant=acme", "--overlap", "allow")
    assert queue("pause", "schedule=tick").status == 0  # so that they are seen before they are worked on
    wait_until(lambda: len(made(queue, "tick")) >= 2)
    queue.ok("schedule", "pause", "tick")
    queue.ok("resume", "schedule=tick")
    queue.ok("consume", "-s", "SelectOnly(schedule=tick)", "--until-empty", "--", "cat")
    first = made(queue, "tick")[0]
    assert (first["state"], first["chunks"], first["metadata"]["tenant"]) == ("completed", 1, "acme")
    result = queue.ok("results", first["submission_id"]).json
    assert result == {"schedule": "tick", "at": first["metadata"]["planned"]}


def test_file_becomes_the_chunk_byte_by_byte(queue):
    file = queue.folder / "chunk"
    file.write_bytes(b"no last line end, \x00 and \xff")
    queue.ok("schedule", "add", "once", "@yearly", str(file), "--title", "New year")
    [submission_id] = queue.ok("schedule", "trigger", "once").lines
    queue.ok("consume", "--until-empty", "--", "cat")
    assert queue.ok("results", submission_id).out == file.read_bytes()
    assert queue.ok("show", submission_id, "--json").json["title"] == "New year"


def test_stdin_becomes_the_chunk(queue):
    queue.ok("schedule", "add", "once", "@yearly", "-", stdin=b"from a pipe")
    [submission_id] = queue.ok("schedule", "trigger", "once").lines
    queue.ok("consume", "--until-empty", "--", "cat")
    assert queue.ok("results", submission_id).out == b"from a pipe"


def test_it_is_there_after_a_restart_and_was_made_up_for(queue):
    queue.ok("schedule", "add", "tick", "every 1s")
    queue.ok("restart")
    wait_until(lambda: made(queue, "tick"))
    shown = queue.ok("schedule", "show", "tick", "--json").json
    assert (shown["fired"], shown["open"]) == (1, 1)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["n", "61 * * * *"], "is not a schedule"),
        (["n", "0 0 30 2 *"], "is not a schedule"),
        (["n", "@reboot"], "is not a schedule"),
        (["n", "every 0s"], "the shortest is every 1s"),
        (["n", "@daily", "--tz", "Europe/Nowhere"], "no time zone"),
        (["a b", "@daily"], "name"),
        (["n", "@daily", "--catch-up", "some"], "--catch-up some"),
        (["n", "@daily", "--expires", "2030-01-01T00:00Z"], "many submissions"),
        (["n", "@daily", "-m", "schedule=x"], "built in"),
        (["n", "@daily", "--from", "2027-01-02", "--until", "2027-01-01"], "end before it begins"),
    ],
)
def test_what_cannot_be_a_schedule_is_refused_and_nothing_is_stored(queue, words, said):
    refused = queue("schedule", "add", *words)
    assert (refused.status, refused.out) == (2, b"")
    assert said in refused.err
    assert queue.ok("schedule", "list", "--json").json["schedules"] == []


def test_chunk_that_is_too_large_for_a_schedule_says_what_to_do(queue):
    file = queue.folder / "large"
    file.write_bytes(bytes(60_001))
    refused = queue("schedule", "add", "n", "@daily", str(file))
    assert refused.status == 2
    assert "name of a file" in refused.err


def test_name_that_is_taken_is_refused(queue):
    queue.ok("schedule", "add", "n", "@daily")
    refused = queue("schedule", "add", "n", "@hourly")
    assert refused.status == 5
    assert "opsq schedule edit n" in refused.err
    assert queue.ok("schedule", "show", "n", "--json").json["when"] == "@daily"

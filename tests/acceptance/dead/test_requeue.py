"""opsq dead requeue: gives dead chunks new attempts, one by one or in bulk."""

import pytest


def names(ran):
    return [line.split("\t")[0] for line in ran.lines]


def test_requeue_revives_the_submission(queue, dead):
    assert queue.ok("dead", "requeue", dead, "--json").json["count"] >= 1
    assert queue.ok("show", "--json", dead).json["state"] == "open"
    assert len(queue.ok("reserve", "-n", "9").lines) == 3


def test_requeue_of_one_chunk_by_its_name(queue, dead):
    queue.ok("dead", "requeue", f"{dead}/0")
    assert queue.ok("dead").out == b""


@pytest.mark.parametrize("verb", ["requeue", "drop"])
def test_bad_names_are_told(queue, dead, verb):
    assert queue("dead", verb, f"{dead}/x").status == 2
    assert queue("dead", verb, "999").status == 3
    assert queue("dead", verb, f"{dead}/2").status == 5


@pytest.mark.parametrize("verb", ["requeue", "drop"])
def test_whoever_does_not_say_what_is_meant_is_asked_and_nothing_changes(queue, dead, verb):
    assert queue("dead", verb).status == 2
    assert queue("dead", verb, "--all", dead).status == 2
    assert queue("dead", verb, f"{dead}/0", "--reason", "boom").status == 2
    assert names(queue.ok("dead")) == [f"{dead}/0"]


@pytest.mark.parametrize(
    ("options", "wanted"),
    [
        (["-m", "tenant=a"], ["a/0", "a/1", "a/2"]),
        (["--exit-status", "75", "--signal", "SIGKILL"], ["a/0", "b/0"]),
        (["--signal", "kill"], ["a/0"]),
        (["-m", "tenant=a", "--exit-status", "3"], ["a/1", "a/2"]),
        (["--reason", "SORRY"], ["b/0"]),
        (["--newer-than", "1h"], ["a/0", "a/1", "a/2", "b/0"]),
        (["--older-than", "1h"], []),
    ],
)
def test_dead_chunks_are_chosen_by_what_is_known_of_them_in_bulk(queue, many, options, wanted):
    wanted = [name.replace("a/", f"{many[0]}/").replace("b/", f"{many[1]}/") for name in wanted]
    assert sorted(names(queue.ok("dead", "list", *options))) == sorted(wanted)
    assert sorted(names(queue.ok("dead", "requeue", "--dry-run", *options))) == sorted(wanted)
    assert queue.ok("dead", "requeue", *options, "--json").json == {"count": len(wanted)}
    assert len(names(queue.ok("dead"))) == 4 - len(wanted)


def test_all_of_them_are_requeued_when_that_is_said(queue, many):
    assert queue.ok("dead", "requeue", "--all", "--json").json == {"count": 4}
    assert queue.ok("dead").out == b""

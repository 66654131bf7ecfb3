"""opsq dead: lists dead chunks, shows all that is known of one, gives them new attempts or gives them up, one by one or in bulk."""

import pytest


@pytest.fixture
def dead(queue):
    """A submission of three chunks; the first is dead, so the submission failed and the others were skipped."""
    submission = queue.submit_lines(3)
    queue.ok("fail", "--no-retry", "--reason", "boom", queue.reserve())
    return submission


@pytest.fixture
def many(queue):
    """Two submissions that go on without their dead chunks: of a three, killed or with exit 3; of b one with exit 75."""
    found = []
    for tenant, script in (("a", "read n; [ $n = 0 ] && kill -9 $$; exit 3"), ("b", "echo sorry >&2; exit 75")):
        count = 3 if tenant == "a" else 1
        found.append(queue.submit_lines(count, "--on-dead", "keep", "--max-attempts", "1", "-m", f"tenant={tenant}"))
        queue("consume", "--until-empty", "--", "sh", "-c", script)
    return found


def names(ran):
    return [line.split("\t")[0] for line in ran.lines]


def test_list_names_the_chunk_and_why_it_died(queue, dead):
    (line,) = queue.ok("dead", "list", dead).lines
    assert (line.split("\t")[0], line.split("\t")[-1]) == (f"{dead}/0", "boom")
    (chunk,) = queue.ok("dead", "list", "--json").json["chunks"]
    assert (chunk["submission_id"], chunk["index"], chunk["attempts"], chunk["reason"]) == (dead, 0, 1, "boom")


def test_plain_form_lists(queue, dead):
    assert queue.ok("dead", dead).out == queue.ok("dead").out == queue.ok("dead", "list").out


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


def test_dropped_chunks_count_as_skipped_and_their_results_are_missing(queue, many):
    assert queue.ok("dead", "drop", "-m", "tenant=a", "--json").json == {"count": 3}
    shape = queue.ok("show", "--json", many[0]).json
    assert (shape["state"], shape["dead"], shape["skipped"]) == ("completed", 0, 3)
    assert names(queue.ok("dead")) == [f"{many[1]}/0"]
    assert queue.ok("dead", "requeue", many[0], "--json").json == {"count": 0}
    assert queue("results", many[0]).status == 1
    assert queue.ok("results", "--skip-dead", many[0]).out == b""
    assert queue.ok("show", "--json", f"{many[0]}/1").json["state"] == "skipped"


def test_show_tells_each_attempt_and_the_end_of_stderr(queue):
    submission = queue.submit_lines(1, "--max-attempts", "2", "--backoff", "0")
    script = 'echo "attempt $OPSQ_ATTEMPT of $OPSQ_CONSUMER failed" >&2; exit 9'
    assert queue("consume", "--until-empty", "--name", "me", "--", "sh", "-c", script).status == 1
    document = queue.ok("dead", "show", f"{submission}/0", "--json").json
    assert (document["state"], document["submission_state"], document["dead"]["attempts"]) == ("dead", "failed", 2)
    assert "attempt 1 of me" in document["dead"]["reason"]
    failed = [event for event in document["events"] if event["event"] == "failed"]
    assert [(event["attempt"], event["exit_status"], event["first_index"]) for event in failed] == [
        (0, 9, 0),
        (1, 9, 0),
    ]
    for event in failed:
        assert event["consumer"].startswith("me-")
        assert event["started_at"] <= event["at"]
        assert event["run_s"] > 0
    lines = [line.split("\t") for line in queue.ok("dead", "show", f"{submission}/0").lines]
    assert ["ended", "exit 9"] in lines
    assert next(words for name, words in lines if name == "attempt").split()[:3] == [f"{submission}/0", "failed", "0"]


def test_show_of_what_is_not_a_dead_chunk_is_told(queue, dead):
    assert queue("dead", "show", dead).status == 2
    assert queue("dead", "show", f"{dead}/1").status == 3
    assert queue("dead", "show", f"{dead}/9").status == 3


def test_letters_of_a_stopped_queue_are_still_listed(queue, dead):
    queue.ok("stop")
    assert names(queue.ok("dead")) == [f"{dead}/0"]
    assert queue.ok("dead", "show", f"{dead}/0", "--json").json["state"] == "dead"
    assert queue("dead", "requeue", dead).status == 4

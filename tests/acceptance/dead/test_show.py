"""opsq dead show: the attempts of a dead chunk and its last reason."""


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
    assert next(words for name, words in lines if name == "attempt").split()[:3] == [f"{submission}/0", "failed", "1"]


def test_show_of_what_is_not_a_dead_chunk_is_told(queue, dead):
    assert queue("dead", "show", dead).status == 2
    assert queue("dead", "show", f"{dead}/1").status == 3
    assert queue("dead", "show", f"{dead}/9").status == 3

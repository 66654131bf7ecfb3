"""opsq cancel: what runs loses its reservation; what has ended stays as it is."""

import subprocess

from waiting import wait_until


def test_cancelled_submission_is_handed_out_no_more(queue):
    submission = queue.submit_lines(2)
    handle = queue.reserve()
    assert queue.ok("cancel", "--reason", "wrong file", "--json", submission).json == {"count": 1}
    assert queue("reserve").status == 3
    assert queue("complete", handle).status == 5
    shape = queue.ok("show", "--json", submission).json
    assert (shape["state"], shape["reason"]) == ("cancelled", "wrong file")


def test_ended_submission_stays_as_it_is(queue):
    submission = queue.submit_lines(0)
    assert queue.ok("cancel", "--json", submission).json == {"count": 0}
    assert queue.ok("show", "--json", submission).json["state"] == "completed"


def test_unknown_id_is_exit_3(queue):
    assert queue("cancel", "999").status == 3


def test_programs_that_run_are_ended_and_the_consumer_goes_on(queue):
    first = queue.submit_lines(2)
    script = f"echo $$ >> {queue.folder}/pids; [ $OPSQ_SUBMISSION = {first} ] && exec sleep 600; cat"
    with queue.running("consume", "--until-empty", "-j", "2", "--", "sh", "-c", script) as consumer:
        pids = queue.folder / "pids"
        wait_until(lambda: pids.exists() and len(pids.read_text().split()) == 2, 60, "both programs run")
        second = queue.submit_lines(3)
        queue.ok("cancel", first)
        assert consumer.wait(60) == 0
    assert queue.ok("show", "--json", second).json["state"] == "completed"
    assert queue.ok("show", "--json", first).json["skipped"] == 2
    running = subprocess.run(
        ["ps", "-o", "pid=", "-p", ",".join(pids.read_text().split()[:2])], capture_output=True, text=True
    )
    assert running.stdout == ""


def state(queue, submission):
    return queue.ok("show", "--json", submission).json["state"]


def test_all_that_a_list_names_are_cancelled(queue):
    submissions = [queue.submit_lines(1) for _ in range(131)]
    ran = queue.shell("opsq list --state open | cut -f1 | xargs opsq cancel --json")
    assert (ran.status, ran.json) == (0, {"count": len(submissions)}), ran
    assert queue.ok("list", "--state", "open").lines == []


def test_conditions_select_what_is_unfinished(queue):
    mine, other = queue.submit_lines(1, "-m", "tenant=a"), queue.submit_lines(1, "-m", "tenant=b")
    queue.submit_lines(0, "-m", "tenant=a")
    assert [line.split("\t")[0] for line in queue.ok("cancel", "-m", "tenant=a", "--dry-run").lines] == [mine]
    assert state(queue, mine) == "open"
    assert queue.ok("cancel", "-m", "tenant=a", "--json", "--reason", "typo").json == {"count": 1}
    assert (state(queue, mine), state(queue, other)) == ("cancelled", "open")
    assert queue.ok("cancel", "--all", "--json").json == {"count": 1}


def test_conditions_that_select_nothing_are_told_with_exit_0(queue):
    queue.submit_lines(1)
    for words in (["-m", "tenant=flod"], ["--older-than", "1h"]):
        ran = queue("cancel", *words)
        assert (ran.status, "under these conditions" in ran.err) == (0, True), ran
    assert len(queue.ok("list", "--state", "open").lines) == 1


def test_what_is_meant_must_be_said_once(queue):
    submission = queue.submit_lines(1)
    for words in ([], [submission, "--all"], [submission, "-m", "k=v"], ["--all", "--state", "open"], ["--dry-run"]):
        assert queue("cancel", *words).status == 2, words
    assert queue("cancel", "--state", "completed").status == 2
    assert state(queue, submission) == "open"


def test_unknown_id_does_not_keep_the_others(queue):
    first, last = queue.submit_lines(1), queue.submit_lines(1)
    ran = queue("cancel", "--json", first, "998", "999", last)
    assert (ran.status, ran.json["count"], ran.json["error"]["exit"]) == (3, 2, 3)
    assert "998" in ran.err
    assert "999" in ran.err
    assert (state(queue, first), state(queue, last)) == ("cancelled", "cancelled")

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

"""opsq consume in its plain form: the chunk is stdin, stdout is the result, the exit status is the verdict."""

import json
import signal

import pytest

from waiting import wait_until


def test_program_turns_chunks_into_results(queue):
    submission = queue.ok("submit", "-", "-l", "1", stdin=b"a\nb\nc\n").text
    assert queue.ok("consume", "--until-empty", "-j", "2", "--", "tr", "a-z", "A-Z").out == b""
    assert queue.ok("results", submission).out == b"A\nB\nC\n"


def test_nothing_to_do_is_exit_0(queue):
    document = queue.ok("consume", "--until-empty", "--json", "--", "cat").json
    assert document == {"completed": 0, "failed": 0, "dead": 0, "released": 0}


def test_dead_chunk_is_exit_1_with_the_tail_of_stderr_as_reason(queue):
    submission = queue.submit_lines(1, "--max-attempts", "1")
    ran = queue("consume", "--until-empty", "--json", "--", "sh", "-c", "echo no such date >&2; exit 7")
    assert ran.status == 1
    end = ran.documents[-1]
    assert (end["failed"], end["dead"], end["error"]["code"]) == (1, 1, "work_failed")
    (chunk,) = queue.ok("dead", submission, "--json").json["chunks"]
    assert chunk["exit_status"] == 7
    assert "no such date" in chunk["reason"]


def test_missing_command_is_exit_127_and_costs_no_attempt(queue):
    queue.submit_lines(1)
    assert queue("consume", "--until-empty", "--", "no-such-program").status == 127
    assert queue.ok("reserve", "--json").json["chunks"][0]["attempt"] == 0


def test_program_gets_the_chunk_never_our_stdin(queue):
    submission = queue.submit_lines(1)
    queue.ok("consume", "--until-empty", "--", "cat", stdin=b"what the caller had")
    assert queue.ok("results", submission).out == b"0\n"


def test_program_has_our_environment_and_no_user_is_needed(queue):
    submission = queue.submit_lines(1)
    queue.ok("consume", "--until-empty", "--", "sh", "-c", 'echo "$OPSQ_STATE_DIR"')
    assert queue.ok("results", submission).text == str(queue.state_dir)


@pytest.mark.parametrize(("until", "status"), [((), 0), (("--until-empty",), 130), (("--until-idle",), 130)])
def test_interrupt_drains_and_is_exit_0_unless_an_end_was_asked_for(queue, until, status):
    """The first signal lets what runs go on, and says so; nothing new is started."""
    submission = queue.submit_lines(2)
    script = "echo > started; while [ ! -e go ]; do sleep 0.01; done"
    with queue.running("consume", "-j", "1", *until, "--", "sh", "-c", script) as process:
        wait_until((queue.folder / "started").exists, 180, "the program runs")
        process.send_signal(signal.SIGINT)
        told = process.stderr.readline()
        queue.file("go", b"")
        process.communicate()
    assert told.startswith(b"opsq: Waiting up to 10 s for 1 running program. Press Ctrl-C again")
    assert process.returncode == status
    assert queue.ok("show", submission, "--json").json["completed"] == 1


def test_contradicting_options_and_a_missing_command_are_exit_2(queue):
    assert queue("consume", "--until-empty", "--until-idle", "--", "cat").status == 2
    assert queue("consume").status == 2
    assert queue("consume", "wc", "-l").status == 2


def test_until_empty_says_on_a_terminal_that_paused_work_is_left(queue):
    queue.submit_lines(1, "-m", "tenant=a")
    queue.ok("pause", "tenant=a")
    assert b"Paused work was left: tenant=a" in queue.on_terminal("consume", "--until-empty", "--", "cat").out


def test_single_is_exit_0_with_nothing_done_while_another_has_the_name_and_takes_over_from_a_killed_one(queue):
    """What cron starts again while the last run goes on does no harm.

    And no file is left behind that would keep it from running.
    """
    queue.submit_lines(2)
    with queue.running(
        "consume", "-j", "1", "--single", "nightly", "--", "sh", "-c", "echo > started; exec sleep 60"
    ) as process:
        wait_until((queue.folder / "started").exists, what="the first runs")
        ran = queue.ok("consume", "-j", "1", "--single", "nightly", "--until-idle", "--json", "--", "cat")
        assert ran.json == {"completed": 0, "failed": 0, "dead": 0, "released": 0, "taken": True}
        assert b"nightly" in queue.on_terminal("consume", "--single", "nightly", "--", "cat").out
        assert (
            queue.ok("consume", "--single", "hourly", "--until-idle", "--json", "--", "cat").documents[-1]["completed"]
            == 1
        )
        process.kill()
        process.wait()
        wait_until(lambda: queue.ok("status", "--json").json["consumers"] == [], what="the daemon has noticed")
    assert (
        queue.ok("consume", "--single", "nightly", "--until-idle", "--json", "--", "cat").documents[-1]["completed"]
        == 1
    )


def test_program_that_runs_longer_than_its_reservation_is_run_once(queue):
    """The heartbeat that the daemon asks for is every 5 s; the reservation is shorter."""
    submission = queue.submit_lines(1, "--reservation", "1500ms")
    queue.ok("consume", "--until-empty", "--", "sh", "-c", "echo started >> starts; sleep 4; cat")
    assert (queue.folder / "starts").read_text() == "started\n"
    assert queue.ok("results", submission).out == b"0\n"
    assert queue.ok("history", "list", submission, "--json").json["events"][0]["event"] == "completed"


def test_chunk_that_dies_by_loss_counts_as_dead(queue):
    submission = queue.submit_lines(1, "--reservation", "100ms", "--max-lost", "1")
    program = "echo > started; while [ ! -e go ]; do sleep 0.01; done"
    with queue.running("consume", "--until-empty", "--json", "--", "sh", "-c", program) as process:
        wait_until((queue.folder / "started").exists, 180, "the program runs")
        process.send_signal(signal.SIGSTOP)
        wait_until(lambda: queue.ok("show", submission, "--json").json["dead"], 180, "the chunk is dead")
        process.send_signal(signal.SIGCONT)
        out, _ = process.communicate()
    assert process.returncode == 1
    end = json.loads(out.splitlines()[-1])
    assert (end["failed"], end["dead"], end["error"]["code"]) == (0, 1, "work_failed")


def test_reservation_that_no_heartbeat_could_keep_is_refused(queue):
    for length in ("0", "99ms"):
        ran = queue("submit", "-", "--reservation", length, stdin=b"x")
        assert ran.status == 2
        assert "0.1s or more" in ran.err


def test_consumer_for_whom_nothing_waits_says_so_and_doctor_and_log_name_it(queue):
    queue.submit_lines(1, "-m", "kind=b")
    with queue.running("consume", "-s", "SelectOnly(kind=a)", "--name", "reader", "--", "cat") as process:
        wait_until(
            lambda: any(c["is_unmatched"] for c in queue.ok("status", "--json").json["consumers"]), 180, "it is known"
        )
        assert "reader" in queue("doctor").text
        said = b"Chunks are waiting, but none for the strategy SelectOnly(kind=a)"
        assert said in process.stderr.readline()
        assert "SelectOnly(kind=a)" in queue.ok("status").text
        process.send_signal(signal.SIGINT)
        process.communicate()
    assert "SelectOnly(kind=a) matches nothing that waits" in (queue.state_dir / "opsq.log").read_text()


def test_consumer_whose_work_is_paused_says_so_once_and_at_its_end(queue):
    queue.submit_lines(2, "-m", "tenant=acme")
    queue.ok("pause", "tenant=acme")
    ended = queue("consume", "--until-empty", "--", "cat")
    assert ended.status == 0
    assert "Waiting work has been paused by" in ended.err
    assert "`opsq resume tenant=acme` ends the pause." in ended.err
    assert queue("consume", "--until-empty", "--quiet", "--", "cat").err == ""
    assert queue("consume", "--until-empty", "-s", "SelectOnly(tenant=b)", "--", "cat").err == ""
    with queue.running("consume", "--max-chunks", "2", "--", "cat") as process:
        lines = [process.stderr.readline() for _ in range(2)]
        assert b"tenant=acme" in lines[0]
        assert b"opsq resume tenant=acme" in lines[1]
        queue.ok("resume", "tenant=acme")
        _, rest = process.communicate(timeout=180)
    assert b"paused" not in rest

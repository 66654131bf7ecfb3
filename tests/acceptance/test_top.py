"""opsq top: one screen that follows the queue, and leaves the terminal as it was."""

import os
import signal

import pytest


@pytest.fixture
def busy(queue):
    """A queue with something of everything; the id of a submission and a chunk of it that runs."""
    submission = queue.submit_lines(3, "-m", "tenant=acme", "--on-dead", "keep")
    queue.submit_lines(2, "-m", "tenant=other")
    queue.ok("fail", "--no-retry", queue.reserve(), "--reason", "bad input")
    handle = queue.reserve()
    queue.ok("pause", "tenant=other")
    return submission, handle.partition("@")[0]


def test_one_frame_is_printed_off_a_terminal(queue, busy):
    _, chunk = busy
    text = queue.ok("top").text
    assert max(map(len, text.splitlines())) <= 80
    for word in (
        "running  pid",
        "3 waiting",
        "1 reserved",
        chunk,
        "tenant=acme",
        "tenant=other",
        "bad input",
    ):
        assert word in text
    document = queue.ok("top", "--json").json
    assert document["status"]["total"]["reserved"] == 1
    assert [f"{each['submission_id']}/{each['index']}" for each in document["running"]] == [chunk]
    assert {each["event"] for each in document["failures"]} == {"failed", "dead"}
    assert document["status"]["held_back"][0]["details"]["pairs"] == "tenant=other"
    assert queue.ok("top", "--json", "-m", "tenant=other").json["running"] == []


def test_without_a_daemon_it_is_exit_4(opsq):
    assert opsq("top").status == 4
    assert opsq("top", "-m", "none").status == 2


def test_screen_follows_the_queue_and_keys_change_what_is_in_sight(queue, busy, terminal):
    _, chunk = busy
    shown = terminal("top", "--interval", "0.1")
    shown.wait("3 waiting", chunk, "failures 2", "bad input", "q quit")
    another = queue.submit_lines(7)
    shown.wait("10 waiting")
    shown.type("s")
    shown.wait("only running")
    assert "failures" not in shown.text
    shown.type("sss")
    shown.wait("only dead", "failures 1")
    shown.type("s/nothing\r")
    shown.wait('only "nothing"', "running 0")
    shown.type("/" + "\x7f" * 7 + "acme\r")
    shown.wait('only "acme"', "running 1")
    shown.type("/\x7f\x7f\x7f\x7f\rmtenant=other\r")
    shown.wait("only tenant=other", "running 0", "failures 0")
    shown.type("mtenant\r")
    shown.wait("is not KEY=VALUE")
    shown.type("m\r ")
    shown.wait("PAUSED")
    queue.ok("cancel", another)
    shown.type(" ")
    shown.wait("chunks: 3 waiting", "running 1")
    shown.type("\x1b[A\x1bOBq")
    assert shown.ended() == 0
    assert shown.is_restored


def test_screen_of_another_size_is_filled_anew(queue, busy, terminal):
    shown = terminal("top", "--interval", "1h")
    shown.wait("q quit")
    shown.resize(120, 40)
    shown.wait_until(lambda: shown.lines[-1].startswith("q quit") and len(shown.lines) == 40, "it is drawn at 40 lines")
    shown.resize(60, 12)
    shown.wait_until(lambda: "q quit" in shown.text and len(shown.lines) == 12, "it is drawn at 12 lines")
    shown.type("q")
    assert shown.ended() == 0


@pytest.mark.parametrize(
    ("number", "status"), [(signal.SIGINT, 130), (signal.SIGTERM, -signal.SIGTERM), (signal.SIGHUP, -signal.SIGHUP)]
)
def test_signal_ends_it_and_the_terminal_is_as_it_was(queue, terminal, number, status):
    shown = terminal("top")
    shown.wait("q quit")
    os.kill(shown.pid, number)
    assert shown.ended() == status
    assert shown.is_restored


def test_ctrl_c_and_ctrl_z_are_keys_of_the_terminal(queue, terminal):
    """In a shell with job control: stopped, it has given the screen back; with fg it takes it again."""
    shown = terminal("-mc", f"{queue.program[0]} top; echo stopped; read line; fg; echo end $?", program="/bin/sh")
    shown.wait("q quit")
    shown.type("\x1a")
    shown.wait("stopped")
    assert shown.is_restored
    shown.type("\n")
    shown.wait("q quit", "running  pid")
    shown.type("\x03")
    shown.wait("end 130")
    assert shown.is_restored


def test_signal_ends_it_also_while_it_waits_in_the_background_for_the_terminal(queue, terminal):
    """`timeout` puts what it runs there."""
    shown = terminal("-c", f"timeout 3 {queue.program[0]} top; echo end $?", program="/bin/sh")
    shown.wait("end 124")
    assert "bug" not in shown.text


def test_daemon_that_is_restarted_is_told_and_followed_again(queue, busy, terminal):
    _, chunk = busy
    shown = terminal("top", "--interval", "0.1")
    shown.wait(chunk)
    queue.ok("stop")
    shown.wait("No daemon answers", chunk)
    queue.ok("start")
    shown.wait_until(lambda: "No daemon answers" not in shown.text, "it follows the new daemon")
    shown.wait("≥")
    shown.type("q")
    assert shown.ended() == 0
    assert shown.is_restored


def test_terminal_that_goes_away_ends_it(queue, terminal):
    shown = terminal("top", "--interval", "0.1")
    shown.wait("q quit")
    shown.hang_up()
    assert shown.ended() == -signal.SIGHUP


def test_closed_pipe_ends_it_quietly(queue):
    ran = queue.shell("opsq top --json | true; opsq top | head -0")
    assert (ran.status, ran.err) == (0, "")

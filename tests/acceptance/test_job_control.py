"""A consumer in a shell on a terminal: Ctrl-Z, `fg`, programs that ask the terminal, programs that are stopped."""

import contextlib
import os
import pty
import signal
import subprocess
import threading
from pathlib import Path

import pytest

from acceptance.starter import PROGRAM
from waiting import wait_until

DEADLINE_S = 180


class Screen:
    """A shell with job control on a terminal: what it draws, what is typed."""

    def __init__(self, queue, script):
        environ = queue.environ | {"PATH": f"{Path(PROGRAM).parent}:/usr/bin:/bin", "TERM": "xterm", "LANG": "C.UTF-8"}
        self.drawn = b""
        self.pid, self._master = pty.fork()
        if self.pid == 0:
            os.chdir(queue.folder)
            os.execve("/bin/sh", ["sh", "-mc", script], environ)
        self._reader = threading.Thread(target=self._read)
        self._reader.start()

    def _read(self):
        with contextlib.suppress(OSError):  # the end of a terminal is an error
            while piece := os.read(self._master, 1 << 16):
                self.drawn += piece

    def type(self, keys):
        os.write(self._master, keys)

    def wait(self, text):
        wait_until(lambda: text in self.drawn, DEADLINE_S, f"{text!r} is drawn")

    def close(self):
        print(self.drawn.decode(errors="replace"))  # shown with the failure
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.pid, signal.SIGKILL)
        os.waitpid(self.pid, 0)
        self._reader.join(DEADLINE_S)
        os.close(self._master)


@pytest.fixture
def screen(queue):
    with contextlib.ExitStack() as stack:

        def begin(script):
            made = Screen(queue, script)
            stack.callback(made.close)
            return made

        yield begin


def states_of(pid):
    """The letter of each process of a program's group: T is stopped, Z has ended."""
    listed = subprocess.run(["ps", "-A", "-o", "pgid=,stat="], capture_output=True, text=True).stdout
    return {stat[0] for group, stat in map(str.split, listed.splitlines()) if group == str(pid)}


def is_stopped(pid):
    """Whether a program is stopped. A shell that was just beginning a command only waits for it: the command is."""
    return "T" in states_of(pid)


def read_pid(queue):
    path = queue.folder / "pid"
    wait_until(lambda: path.exists() and path.read_text().endswith("\n"), DEADLINE_S, "the program runs")
    return int(path.read_text())


AFTER = "; echo > stopped; until [ -e on ]; do sleep 0.05; done; fg > fg; echo end $?"
WORK = "echo $$ > pid; until [ -e go ]; do sleep 0.05; done; cat"


@pytest.mark.parametrize("verb", ["consume --until-empty -j1 --", "run --lines 1 -j1 in -o out --"])
def test_ctrl_z_stops_programs_too_and_fg_continues_all_where_they_were(queue, screen, verb):
    if verb.startswith("consume"):
        submission = queue.submit_lines(3, "--max-lost", "1")
    else:
        queue.file("in", b"0\n1\n2\n")
    shell = screen(f"opsq {verb} sh -c '{WORK}'{AFTER}")
    pid = read_pid(queue)
    shell.type(b"\x1a")
    wait_until((queue.folder / "stopped").exists, DEADLINE_S, "the shell has the terminal")
    wait_until(lambda: is_stopped(pid), DEADLINE_S, "the program is stopped")
    # What was not begun is for others.
    wait_until(lambda: queue.ok("status", "--json").json["total"]["reserved"] == 1, DEADLINE_S, "one is reserved")
    (queue.folder / "on").touch()
    wait_until(lambda: not is_stopped(pid), DEADLINE_S, "the program goes on")
    (queue.folder / "go").touch()
    shell.wait(b"end 0")
    if verb.startswith("consume"):
        assert queue.ok("results", submission).out == b"0\n1\n2\n"
        assert {event["event"] for event in queue.ok("history", "list", "--json").json["events"]} == {"completed"}
    else:
        assert (queue.folder / "out").read_bytes() == b"0\n1\n2\n"


def test_time_for_which_all_was_stopped_does_not_count_as_run_time(queue, screen):
    submission = queue.submit_lines(1, "--max-attempts", "1")
    shell = screen(f"opsq consume --until-empty --max-runtime 30s -- sh -c '{WORK}'{AFTER}")
    pid = read_pid(queue)
    shell.type(b"\x1a")
    wait_until(lambda: is_stopped(pid), DEADLINE_S, "the program is stopped")
    (queue.folder / "on").touch()
    (queue.folder / "go").touch()
    shell.wait(b"end 0")
    assert queue.ok("results", submission).out == b"0\n"


def test_reservation_that_ends_while_all_is_stopped_is_anothers_and_the_program_is_ended(queue, screen):
    submission = queue.submit_lines(1, "--reservation", "500ms")
    shell = screen(f"opsq consume --until-empty -- sh -c '{WORK}'{AFTER}")
    pid = read_pid(queue)
    shell.type(b"\x1a")
    wait_until((queue.folder / "stopped").exists, DEADLINE_S, "the shell has the terminal")
    queue.ok("consume", "--until-empty", "--", "echo", "other")
    (queue.folder / "on").touch()
    shell.wait(b"end 0")
    assert states_of(pid) <= {"Z"}
    assert queue.ok("results", submission).out == b"other\n"


def test_program_without_a_terminal_fails_at_once_instead_of_waiting_for_ever(queue, screen):
    queue.submit_lines(1, "--max-attempts", "1")
    shell = screen("opsq consume --until-empty -- sh -c 'read x < /dev/tty || exit 9'; echo end $?")
    shell.wait(b"end 1")
    assert b"/dev/tty" in shell.drawn


@pytest.mark.parametrize("way", ["", "--each"])
def test_program_that_shares_the_terminal_asks_there(queue, screen, way):
    submission = queue.submit_lines(2)
    ask = 'echo "who are you" > /dev/tty; read x < /dev/tty; echo $x'
    shell = screen(f"opsq consume {way} -s OldestFirst --until-empty --tty -- sh -c '{ask}'; echo end $?")
    shell.wait(b"who are you")
    shell.type(b"ann\n")
    wait_until(lambda: shell.drawn.count(b"who are you") == 2, DEADLINE_S, "the next one asks")
    shell.type(b"bob\n")
    shell.wait(b"end 0")
    assert queue.ok("results", submission).out == b"ann\nbob\n"


def test_ctrl_z_while_a_program_has_the_terminal_stops_the_consumer_with_it(queue, screen):
    submission = queue.submit_lines(1)
    ask = 'echo $$ > pid; echo "who are you" > /dev/tty; read x < /dev/tty; echo $x'
    shell = screen(f"opsq consume --until-empty --tty -- sh -c '{ask}'{AFTER}")
    shell.wait(b"who are you")
    shell.type(b"\x1a")
    wait_until((queue.folder / "stopped").exists, DEADLINE_S, "the shell has the terminal")
    wait_until(lambda: is_stopped(read_pid(queue)), DEADLINE_S, "the program is stopped")
    (queue.folder / "on").touch()
    wait_until(lambda: not is_stopped(read_pid(queue)), DEADLINE_S, "the program goes on")
    shell.type(b"ann\n")
    shell.wait(b"end 0")
    assert queue.ok("results", submission).out == b"ann\n"


def test_ctrl_c_while_a_program_has_the_terminal_ends_the_consumer_and_counts_no_attempt(queue, screen):
    submission = queue.submit_lines(1, "--max-attempts", "1")
    shell = screen("opsq consume --tty -- sh -c 'echo asked > /dev/tty; read x < /dev/tty'; echo end $?")
    shell.wait(b"asked")
    shell.type(b"\x03")
    shell.wait(b"end 0")
    shown = queue.ok("show", submission, "--json").json
    assert (shown["dead"], shown["reserved"], shown["waiting"]) == (0, 0, 1)


def test_terminal_is_given_back_with_its_modes_when_a_program_is_killed_at_a_prompt(queue, screen):
    queue.submit_lines(1)
    ask = "stty -echo < /dev/tty; echo hidden > /dev/tty; kill -KILL $$"
    shell = screen(f"opsq consume --max-chunks 1 --tty -- sh -c '{ask}'; stty -a; echo end $?")
    shell.wait(b"end 0")
    assert b" echo " in shell.drawn


def test_sharing_a_terminal_that_is_not_there_or_with_several_programs_is_refused(queue):
    with queue.running("consume", "--tty", "--until-empty", "--", "cat") as process:
        _, err = process.communicate(timeout=DEADLINE_S)
    assert (process.returncode, b"--tty: there is no terminal" in err) == (2, True)
    ran = queue("consume", "--tty", "-j", "2", "--", "cat")
    assert (ran.status, "one program at a time" in ran.err) == (2, True)


@pytest.mark.parametrize("way", ["", "--each", "--server records"])
def test_program_that_is_stopped_is_reported_once_and_goes_on_when_it_is_continued(queue, way):
    submission = queue.submit_lines(1)
    script = "echo $$ > pid; kill -STOP $$; exec cat"
    script = "echo $$ > pid; kill -STOP $$; echo done" if way == "--each" else script
    with queue.running("consume", *way.split(), "--until-empty", "--", "sh", "-c", script) as process:
        pid = read_pid(queue)
        said = process.stderr.readline().decode()
        assert "was stopped by SIGSTOP" in said
        assert f"`kill -CONT -- -{pid}`" in said
        assert way or f"of chunk {submission}/0" in said
        os.killpg(pid, signal.SIGCONT)
        _, err = process.communicate(timeout=DEADLINE_S)
    assert (process.returncode, err) == (0, b"")
    assert queue.ok("results", submission).out == (b"done\n" if way == "--each" else b"0\n")

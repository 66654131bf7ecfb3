"""What a program gets from the consumer that starts it: the table of opsq-consume(1), row by row."""

import json
import os
import signal
import subprocess
import sys

import pytest

from acceptance.starter import PROGRAM
from needs import need

LAUNCHER = """
import os, resource, signal, sys
os.umask(0o027)
os.nice(3)
resource.setrlimit(resource.RLIMIT_NOFILE, (700, 800))
for number in (signal.SIGHUP, signal.SIGUSR1, signal.SIGCHLD):
    signal.signal(number, signal.SIG_IGN)
signal.pthread_sigmask(signal.SIG_SETMASK, {signal.SIGUSR2})
os.set_inheritable(os.dup2(os.open("/dev/null", os.O_RDONLY), 9), True)
os.execv(sys.argv[1], sys.argv[1:])
"""
PROBE = """
import json, os, resource, stat, sys
ignored, blocked = (int(mask, 16) for mask in sys.argv[1].split())
def kind_of(number):
    try:
        found = os.fstat(number)
    except OSError:
        return ""
    if stat.S_ISFIFO(found.st_mode):
        return "pipe"
    return "null" if os.path.samestat(found, os.stat(os.devnull)) else "other"
try:
    os.close(os.open("/dev/tty", os.O_RDWR))
    has_tty = True
except OSError:
    has_tty = False
print(json.dumps({
    "environ": dict(os.environ),
    "streams": [kind_of(number) for number in range(3)],
    "descriptors": [number for number in range(3, 600) if kind_of(number)],
    "ignored": ignored,
    "blocked": blocked,
    "folder": os.getcwd(),
    "umask": os.umask(0),
    "files": resource.getrlimit(resource.RLIMIT_NOFILE),
    "nice": os.nice(0),
    "is_leader": os.getsid(0) == os.getpgid(0) == os.getpid(),
    "has_tty": has_tty,
}))
"""
SHELL = 'exec "$0" -ISc "$1" "$(ps -o ignored=,blocked= -p $$)"'
"""Python changes what it inherits of signals, so a shell is asked."""


@pytest.fixture
def inherited(queue):
    """What a program sees; `options` are those of consume."""
    need("ps")

    def ask(*options, content=b"x"):
        submission = queue.ok("submit", "-", stdin=content).text
        words = ["consume", *options, "--until-empty", "--", "sh", "-c", SHELL, sys.executable, PROBE]
        done = subprocess.run(
            [sys.executable, "-c", LAUNCHER, PROGRAM, *words],
            env=queue.environ | {"COLOUR": "blue"},
            cwd=queue.folder,
            stdin=subprocess.DEVNULL,
            capture_output=True,
        )
        assert done.returncode == 0, done.stderr
        return json.loads(queue.ok("results", submission).out)

    return ask


def test_environment_is_ours_and_the_variables_of_the_chunk(inherited):
    environ = inherited()["environ"]
    assert environ["COLOUR"] == "blue"
    assert environ["OPSQ_CHUNK"] == "0"
    assert "COLOUR" not in inherited("--clean-env")["environ"]


def test_streams_are_pipes_and_an_empty_stdin_is_dev_null(inherited):
    assert inherited()["streams"] == ["pipe"] * 3
    assert inherited("--args", "1")["streams"] == ["null", "pipe", "pipe"]


def test_no_other_descriptor_is_open(inherited):
    assert inherited()["descriptors"] == []


def test_ignored_signals_stay_so_but_those_that_python_ignores_and_the_end_of_children(inherited):
    seen = inherited()["ignored"]
    ignored = {number for number in signal.valid_signals() if seen >> (number - 1) & 1}
    assert {signal.SIGHUP, signal.SIGUSR1} <= ignored
    assert not {signal.SIGPIPE, signal.SIGXFSZ, signal.SIGCHLD, signal.SIGTSTP, signal.SIGINT} & ignored


def test_no_signal_is_blocked(inherited):
    assert inherited()["blocked"] == 0


def test_folder_umask_limits_and_nice_value_are_ours(inherited, queue):
    seen = inherited()
    assert os.path.samefile(seen["folder"], queue.folder)
    assert (seen["umask"], seen["files"], seen["nice"]) == (0o027, [700, 800], os.nice(0) + 3)


def test_session_and_group_are_its_own_and_there_is_no_terminal(inherited):
    seen = inherited()
    assert (seen["is_leader"], seen["has_tty"]) == (True, False)


def test_missing_command_or_interpreter_is_told_before_anything_is_reserved_or_submitted(queue):
    submission = queue.submit_lines(1)
    queue.file("script", b"#!/no/such/interpreter -x\n")
    queue.file("windows", b"#!/bin/sh\r\necho\r\n")
    queue.file("plain", b"#!/bin/sh\n")
    for name in ("script", "windows"):
        (queue.folder / name).chmod(0o755)
    for command, status, words in (
        ("nosuchprogram", 127, "There is no command 'nosuchprogram'"),
        ("./plain", 126, "its mode does not allow it"),
        ("./script", 126, "its interpreter '/no/such/interpreter' does not exist"),
        ("./windows", 126, "Its lines end as those of Windows do"),
    ):
        for line in (["consume"], ["run", "plain"]):
            ran = queue(*line, "--", command)
            assert ran.status == status
            assert words in ran.err
    assert queue.ok("show", submission, "--json").json["waiting"] == 1
    assert len(queue.ok("list", "--json").json["submissions"]) == 1
    assert queue.ok("history", "list", "--json").json["events"] == []

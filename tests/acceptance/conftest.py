"""The installed program as a script or cron meets it.

An empty environment, no terminal, closed stdin, a state folder of its own.

It must not import opsq to do what a user can do with the program; only what no user may depend on is looked at in other
ways.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import pty
import signal
import struct
import subprocess
import termios
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from acceptance.starter import PROGRAM, STDIN_LIMIT_BYTES, Starter
from acceptance.terminal import Terminal
from waiting import wait_until

DEADLINE_S = 180.0


class Ran(NamedTuple):
    """What a command line gave."""

    status: int
    out: bytes
    err: str

    @property
    def text(self) -> str:
        """Stdout as text, without the last line end."""
        return self.out.decode().rstrip("\n")

    @property
    def lines(self) -> list[str]:
        """Stdout by lines."""
        return self.out.decode().splitlines()

    @property
    def documents(self) -> list[Any]:
        """Stdout as a JSON document per line."""
        return [json.loads(line) for line in self.out.splitlines()]

    @property
    def json(self) -> Any:
        """Stdout as one JSON document."""
        return json.loads(self.out)


class Opsq:
    """Runs `opsq` in a state folder.

    Attributes:
        folder: where tests may put files.
        program: the words that start it.
        environ: all the variables there are.
    """

    def __init__(self, folder: Path, starter: Starter) -> None:
        self._starter = starter
        self.program = [PROGRAM]
        self.folder = folder
        self.state_dir = folder / "s"
        self.environ = {"PATH": "/usr/bin:/bin", "OPSQ_STATE_DIR": str(self.state_dir)}

    def __call__(self, *words: str, stdin: bytes | None = None, environ: Mapping[str, str] | None = None) -> Ran:
        """Run a command line; stdin is closed unless bytes are given.

        It must not print tracebacks, escapes or carriage returns.
        """
        variables = self.environ | dict(environ or {})
        if set(variables) == {"PATH", "OPSQ_STATE_DIR"} and len(stdin or b"") <= STDIN_LIMIT_BYTES:
            status, out, said = self._starter.run(words, stdin, variables, self.folder, DEADLINE_S)
        else:
            closed = ["/bin/sh", "-c", 'exec "$@" <&-', "sh"] if stdin is None else []
            command = [*closed, PROGRAM, *words]
            pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
            done = subprocess.run(
                command, input=stdin, env=variables, cwd=self.folder, timeout=DEADLINE_S, check=False, **pipes
            )
            status, out, said = done.returncode, done.stdout, done.stderr
        err = said.decode()
        assert "Traceback" not in err, err
        assert not {"\x1b", "\r"} & set(err), err
        return Ran(status, out, err)

    def ok(self, *words: str, stdin: bytes | None = None) -> Ran:
        """Run a command line that must end with 0 and be silent on stderr."""
        ran = self(*words, stdin=stdin)
        assert (ran.status, ran.err) == (0, ""), ran
        return ran

    @contextlib.contextmanager
    def running(self, *words: str) -> Iterator[subprocess.Popen[bytes]]:
        """A command line that goes on while the test does; it is gone afterwards."""
        command = [PROGRAM, *words]
        pipes = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
        with subprocess.Popen(command, env=self.environ, cwd=self.folder, start_new_session=True, **pipes) as process:
            try:
                yield process
            finally:
                process.kill()

    def shell(self, script: str) -> Ran:
        """Run a shell script that finds `opsq` on its PATH."""
        environ = self.environ | {"PATH": f"{Path(PROGRAM).parent}:/usr/bin:/bin"}
        done = subprocess.run(
            ["/bin/sh", "-c", script],
            env=environ,
            cwd=self.folder,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=DEADLINE_S,
        )
        return Ran(done.returncode, done.stdout, done.stderr.decode())

    def file(self, name: str, content: bytes) -> str:
        """Write a file; returns its name, which is enough where the program runs."""
        (self.folder / name).write_bytes(content)
        return name

    def submit_lines(self, count: int, *options: str) -> str:
        r"""Submit the chunks `0\n`, `1\n`, …; returns the id."""
        return self.ok("submit", "-", "--lines", "1", *options, stdin=b"".join(b"%d\n" % i for i in range(count))).text

    def reserve(self, *options: str) -> str:
        """Reserve one chunk, the oldest; returns its handle."""
        return self.ok("reserve", "--strategy", "OldestFirst", *options).text

    def on_terminal(self, *words: str, columns: int = 80) -> Ran:
        """Run a command line on a terminal of so many columns.

        Stdout and stderr come together, as they would be drawn.
        """
        master, slave = pty.openpty()
        fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", 50, columns, 0, 0))
        environ = self.environ | {"TERM": "xterm-256color", "LANG": "C.UTF-8"}
        with subprocess.Popen(
            [PROGRAM, *words],
            env=environ,
            cwd=self.folder,
            stdin=slave,
            stdout=slave,
            stderr=slave,
            start_new_session=True,
        ) as process:
            os.close(slave)
            drawn = b""
            with contextlib.suppress(OSError):  # the end of a terminal is an error
                while piece := os.read(master, 1 << 16):
                    drawn += piece
            os.close(master)
        return Ran(process.returncode, drawn, "")

    def interrupted_on_terminal(self, *words: str) -> Ran:
        """Run a command line with stderr on a wide terminal.

        And send Ctrl-C as soon as a bar of progress is drawn there.
        """
        master, slave = pty.openpty()
        fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", 50, 200, 0, 0))
        environ = self.environ | {"TERM": "xterm-256color", "LANG": "C.UTF-8"}
        pipes = {"stdin": slave, "stdout": subprocess.PIPE, "stderr": slave}
        with subprocess.Popen(
            [PROGRAM, *words], env=environ, cwd=self.folder, start_new_session=True, **pipes
        ) as process:
            os.close(slave)
            drawn = b""
            with contextlib.suppress(OSError):  # the end of a terminal is an error
                while piece := os.read(master, 1 << 16):
                    if b"0/1" in drawn + piece and b"0/1" not in drawn:
                        process.send_signal(signal.SIGINT)
                    drawn += piece
            os.close(master)
            out = process.communicate(timeout=DEADLINE_S)[0]
        return Ran(process.returncode, out, drawn.decode().replace("\r\n", "\n"))

    def wait_until_seen(self) -> None:
        """Wait until the daemon has a connection besides that of the one who asks."""
        wait_until(lambda: self.ok("status", "--json").json["connections"] > 1, DEADLINE_S, "a second connection")

    def kill_daemon(self) -> None:
        """End the daemon of the state folder, if there is one, the hard way."""
        lock = self.state_dir / "opsq.lock"
        text = lock.read_text() if lock.exists() else ""
        if not text.strip().isdigit():
            return
        try:
            os.kill(int(text), signal.SIGKILL)
        except ProcessLookupError:
            return
        wait_until(lambda: not _is_alive(int(text)), what="the daemon is gone")


@pytest.fixture(scope="session")
def starter() -> Iterator[Starter]:
    """Starts the program for all tests."""
    starter = Starter()
    yield starter
    starter.close()


@pytest.fixture
def opsq(runtime_dir: Path, starter: Starter) -> Iterator[Opsq]:
    """The program, with no daemon yet."""
    program = Opsq(runtime_dir, starter)
    yield program
    program.kill_daemon()


@pytest.fixture
def queue(opsq: Opsq) -> Opsq:
    """The program, with a daemon that runs."""
    opsq.ok("start")
    return opsq


@pytest.fixture
def terminal(queue: Opsq) -> Iterator[Callable[..., Terminal]]:
    """Makes terminals, each with a command line of the program."""
    with contextlib.ExitStack() as stack:

        def begin(*words: str, **size: Any) -> Terminal:
            made = Terminal(queue, *words, **size)
            stack.callback(made.close)
            return made

        yield begin


def _is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except ProcessLookupError:
        return False
    except FileNotFoundError:  # there is no /proc, or it has just gone
        return not Path("/proc/self").exists()

"""Owns a process that has the program loaded and forks it for each command line, which costs a tenth of a start.

It must not know what a command line does. What it forks has the arguments, variables, folder and descriptors that a new
process would have, and nothing else open; programs on a terminal, in a shell or that go on are started for real.
"""

from __future__ import annotations

import json
import os
import pkgutil
import selectors
import signal
import socket
import subprocess
import sys
from collections.abc import Mapping, Sequence
from importlib import import_module
from pathlib import Path
from typing import NoReturn

PROGRAM = str(Path(sys.executable).with_name("opsq"))
STDIN_LIMIT_BYTES = 1 << 15
"""What surely fits into a pipe before anybody reads."""


class Starter:
    """Starts processes; one at a time."""

    def __init__(self) -> None:
        ours, theirs = socket.socketpair()
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
        words = [sys.executable, "-P", __file__, str(theirs.fileno())]
        # The variables of the tests, so that Python chooses the same encodings.
        self._process = subprocess.Popen(words, env={"PATH": "/usr/bin:/bin"}, pass_fds=[theirs.fileno()], **pipes)
        theirs.close()
        self._socket = ours

    def run(
        self, words: Sequence[str], stdin: bytes | None, environ: Mapping[str, str], folder: Path, timeout_s: float
    ) -> tuple[int, bytes, bytes]:
        """Run a command line; stdin is closed if it is None.

        Returns:
            Exit status (negative: the signal that ended it), stdout and stderr.

        Raises:
            TimeoutError: it took too long, and was killed.
        """
        readers, writers = zip(*(os.pipe() for _ in range(3)), strict=True)
        ours, theirs = socket.socketpair()
        with ours:
            with theirs:
                socket.send_fds(self._socket, [b"!"], [theirs.fileno(), readers[0], writers[1], writers[2]])
            for number in (readers[0], writers[1], writers[2]):
                os.close(number)
            os.write(writers[0], stdin or b"")
            os.close(writers[0])
            request = [list(words), dict(environ), str(folder), stdin is not None]
            ours.sendall(json.dumps(request).encode("utf-8", "surrogateescape") + b"\n")
            told = ours.makefile()
            pid = int(told.readline())
            try:
                out, err = _read_all(readers[1:], timeout_s)
                ours.settimeout(timeout_s)
                return int(told.readline()), out, err
            except TimeoutError:
                os.kill(pid, signal.SIGKILL)
                raise
            finally:
                told.close()
                for number in readers[1:]:
                    os.close(number)

    def close(self) -> None:
        """End the process that forks."""
        self._socket.close()
        self._process.communicate(timeout=60)


def _read_all(numbers: Sequence[int], timeout_s: float) -> list[bytes]:
    found = dict.fromkeys(numbers, b"")
    with selectors.DefaultSelector() as selector:
        for number in numbers:
            selector.register(number, selectors.EVENT_READ)
        while selector.get_map():
            if not (ready := selector.select(timeout_s)):
                raise TimeoutError
            for key, _ in ready:
                if piece := os.read(key.fd, 1 << 16):
                    found[key.fd] += piece
                else:
                    selector.unregister(key.fd)
    return list(found.values())


# --- in the process that forks ----------------------------------------------------------------------------------------


def _serve(control: socket.socket) -> None:
    while True:
        byte, received, _, _ = socket.recv_fds(control, 1, 4)
        if not byte:
            return
        if os.fork() == 0:
            control.close()
            _attend(socket.socket(fileno=received[0]), received[1:])
        for number in received:
            os.close(number)


def _attend(caller: socket.socket, descriptors: Sequence[int]) -> NoReturn:
    """Start one command line, and tell its number and its status."""
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    with caller.makefile() as requests:
        words, environ, folder, has_stdin = json.loads(requests.readline())
    pid = os.fork()
    if pid == 0:
        caller.close()
        _become(words, environ, folder, descriptors, has_stdin=has_stdin)
    for number in (0, 1, 2, *descriptors):
        os.close(number)
    caller.sendall(b"%d\n" % pid)
    status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    caller.sendall(b"%d\n" % status)
    os._exit(0)


def _become(
    words: list[str], environ: dict[str, str], folder: str, descriptors: Sequence[int], *, has_stdin: bool
) -> NoReturn:
    from opsq.__main__ import main

    for place, number in enumerate(descriptors):
        os.dup2(number, place)
        os.close(number)
    if not has_stdin:
        os.close(0)
        sys.stdin = None  # type: ignore[assignment]  # as Python does
    os.environ.clear()
    os.environ.update(environ)
    os.chdir(folder)
    sys.argv = [PROGRAM, *words]
    try:
        main()
    except SystemExit as end:
        os._exit(end.code if isinstance(end.code, int) else 1)
    except BaseException:  # noqa: BLE001  # as Python reports it
        sys.excepthook(*sys.exc_info())  # type: ignore[arg-type]
        os._exit(1)


def _load() -> None:
    """Load what command lines load, but what needs Spark."""
    for package in ("opsq.cli", "opsq.client"):
        folder = import_module(package).__path__
        for module in pkgutil.walk_packages(folder, f"{package}."):
            if ".spark" not in module.name:
                import_module(module.name)


if __name__ == "__main__":
    _load()
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # nobody waits for those who attend
    _serve(socket.socket(fileno=int(sys.argv[1])))

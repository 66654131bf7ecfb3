"""Daemons for tests: started as a user would, watched, and gone when the test ends; and a client that can misbehave.

It must not hide what it sends: tests of the protocol say every byte themselves.
"""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
from collections.abc import Iterator
from pathlib import Path

from opsq.daemon import lifecycle
from opsq.settings import Settings, load
from opsq.units import split_address
from opsq.wire.frames import encode, reply_reader
from opsq.wire.messages import VERSION, DaemonState, ErrorReply, Hello, Reply, Request, Status, Welcome
from waiting import wait_until

DEADLINE_S = 120.0


class Client:
    """A raw connection: sends what it is told, and reads replies one by one."""

    def __init__(self, address: str) -> None:
        family = socket.AF_UNIX if address.startswith("/") else socket.AF_INET
        self.socket = socket.socket(family, socket.SOCK_STREAM)
        self.socket.settimeout(DEADLINE_S)
        try:
            self.socket.connect(address if family == socket.AF_UNIX else split_address(address))
        except OSError:
            self.socket.close()
            raise
        self._reader = reply_reader()
        self._replies: list[Reply] = []

    def send(self, *requests: Request) -> None:
        """Send requests in one frame."""
        self.socket.sendall(encode(requests))

    def receive(self) -> Reply | None:
        """The next reply; None at the end of the connection."""
        while not self._replies:
            try:
                received = self.socket.recv(1 << 16)
            except ConnectionError:
                return None
            if not received:
                return None
            self._replies += self._reader.feed(received)
        return self._replies.pop(0)

    def ask(self, request: Request) -> Reply:
        """Send one request and return the reply to it, dropping pushes and other replies."""
        self.send(request)
        while (reply := self.receive()) is not None:
            if getattr(reply, "id", -1) in {0, getattr(request, "id", -1)}:
                return reply
        raise AssertionError(f"the connection ended before a reply to {request}")

    def greet(self, name: str = "", token: str = "", version: int = VERSION) -> Reply:
        """Say hello."""
        return self.ask(Hello(1, version, name, token))

    def is_closed(self) -> bool:
        """Read until the daemon closes the connection; its replies are lost."""
        while self.receive() is not None:
            pass
        return True

    def close(self) -> None:
        """Close the connection."""
        self.socket.close()

    def __enter__(self) -> Client:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()


def settings_of(folder: Path, **flags: object) -> Settings:
    """Settings for a daemon in `folder`."""
    return load({"state_dir": str(folder), **flags})


def with_client_token(folder: Path, token: str) -> Path:
    """A state folder that is made with this token for clients."""
    folder.mkdir(0o700)
    path = folder / "client_token"
    path.touch(0o600)
    path.write_text(f"{token}\n")
    return folder


@contextlib.contextmanager
def running(folder: Path, **flags: object) -> Iterator[Settings]:
    """A daemon in the background that is gone afterwards, whatever the test did."""
    settings = settings_of(folder, **flags)
    assert lifecycle.start(settings).status == "started"
    try:
        yield settings
    finally:
        end(settings)


def end(settings: Settings) -> None:
    """Kill the daemon of a state folder, if there is one, and wait until it is gone."""
    if lifecycle.is_locked(settings.lock_path):
        kill(settings)


def kill(settings: Settings, number: int = signal.SIGKILL) -> None:
    """Send a signal that ends the process that holds the lock, and wait until the lock is free."""
    with contextlib.suppress(ProcessLookupError):
        os.kill(holder(settings), number)
    wait_until(lambda: not lifecycle.is_locked(settings.lock_path), DEADLINE_S, "the lock is free")


def holder(settings: Settings) -> int:
    """The process that holds the lock, as it wrote into the lock file."""
    return int(Path(settings.lock_path).read_text())


@contextlib.contextmanager
def connected(settings: Settings, name: str = "") -> Iterator[Client]:
    """A greeted connection over the Unix socket."""
    with Client(settings.socket) as client:
        assert isinstance(client.greet(name), Welcome)
        yield client


def state_of(settings: Settings) -> DaemonState:
    """What the daemon says of itself."""
    with connected(settings) as client:
        state = client.ask(Status(9))
    assert isinstance(state, DaemonState), state
    return state


def error_of(reply: Reply | None) -> ErrorReply:
    """The reply, which must be an error."""
    assert isinstance(reply, ErrorReply), reply
    return reply


def log_with(settings: Settings, *texts: str) -> str:
    """The daemon's log, when it says one of these: it is written by a thread of its own."""

    def found() -> str:
        log = Path(settings.log_path).read_text()
        return log if any(text in log for text in texts) else ""

    return wait_until(found, DEADLINE_S, f"{' or '.join(texts)} in the log")


def whole_log(settings: Settings) -> str:
    """Stop the daemon and read its log: what is not there then was never said."""
    lifecycle.stop(settings, drain_s=0)
    return Path(settings.log_path).read_text()


def processor_s(pid: int) -> float:
    """Seconds of processor time that a process has used."""
    with contextlib.suppress(FileNotFoundError):
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
    text = subprocess.run(["ps", "-o", "time=", "-p", str(pid)], capture_output=True, text=True, check=True).stdout
    minutes, _, seconds = text.strip().rpartition(":")  # M:SS.hh on macOS
    return 60 * float(minutes) + float(seconds)

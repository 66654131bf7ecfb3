"""Runs the program of a kind of event: the event as JSON on stdin, and its fields in the environment.

Only programs that opsq.toml names are run; nothing of an event is ever an argument.
"""

from __future__ import annotations

import os
import signal
import subprocess
import tempfile
import threading
from collections.abc import Mapping

import msgspec

from opsq.documents.events import EventDocument
from opsq.notify.target import Delivery, Failure
from opsq.runner.process.process_group import signal_group

SHOWN_BYTES = 500
"""Of what a program has printed."""


class Programs:
    """The programs of `[on]`, as one target: so what one subject tells comes in its order, whatever the kinds.

    Args:
        commands: the program and its arguments by kind of event.
        limit_s: a program is killed after so long.
        environ: in which they run, besides the fields of the event.
    """

    name = "on"

    def __init__(self, commands: Mapping[str, tuple[str, ...]], limit_s: float, environ: Mapping[str, str]) -> None:
        self._commands = commands
        self._limit_s = limit_s
        self._environ = environ
        self._running: set[subprocess.Popen[bytes]] = set()
        self._lock = threading.Lock()
        self._is_abandoned = False

    def takes(self, kind: str) -> bool:
        """Whether there is a program for this kind."""
        return kind in self._commands

    def deliver(self, delivery: Delivery) -> Failure | None:
        """Run the program; it has taken the event if it exits with 0."""
        command = self._commands.get(delivery.event.kind)
        if command is None:
            return Failure(f"[on] has no program for {delivery.event.kind} any more", is_final=True)
        text = self._run(command, delivery)
        return Failure(f"{os.path.basename(command[0])}: {text}") if text else None

    def _run(self, command: tuple[str, ...], delivery: Delivery) -> str:
        """Run a program; how it has failed, empty if it has not."""
        environ = {**self._environ, **variables(delivery.event)}
        with tempfile.TemporaryFile() as output:
            try:
                process = subprocess.Popen(
                    command,
                    stdin=subprocess.PIPE,
                    stdout=output,
                    stderr=subprocess.STDOUT,
                    env=environ,
                    start_new_session=True,
                )
            except (OSError, ValueError) as error:
                return f"it cannot be started: {getattr(error, 'strerror', None) or error}"
            with self._lock:
                self._running.add(process)
                is_late = self._is_abandoned
            if is_late:
                signal_group(process.pid, signal.SIGKILL)
            try:
                process.communicate(msgspec.json.encode(delivery.event) + b"\n", self._limit_s)
            except subprocess.TimeoutExpired:
                if not signal_group(process.pid, signal.SIGKILL):
                    return f"it runs for more than {self._limit_s:g} s as another user, and cannot be killed"
                process.communicate()
                return f"it was killed after {self._limit_s:g} s"
            finally:
                with self._lock:
                    self._running.discard(process)
            return _ended(process.returncode) + _tail(output.fileno()) if process.returncode else ""

    def abandon(self) -> None:
        """Kill what runs."""
        with self._lock:
            self._is_abandoned = True
            running = list(self._running)
        for process in running:
            signal_group(process.pid, signal.SIGKILL)


def variables(event: EventDocument) -> dict[str, str]:
    """The fields of an event as variables: `OPSQ_EVENT_KIND` and so on; those that it does not have are empty."""
    fields = {name: getattr(event, name) for name in event.__struct_fields__ if name != "metadata"}
    return {
        f"OPSQ_EVENT_{name.upper()}": "" if value is None else str(value).replace("\0", "")
        for name, value in fields.items()
    }


def _ended(status: int) -> str:
    return f"exit status {status}" if status > 0 else f"signal {-status}"


def _tail(descriptor: int) -> str:
    """The end of what was printed."""
    size = os.fstat(descriptor).st_size
    text = os.pread(descriptor, SHOWN_BYTES, max(size - SHOWN_BYTES, 0)).decode(errors="replace").strip()
    return f": {text}" if text else ""

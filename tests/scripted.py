"""A daemon of a few lines for tests of clients: answers requests by a script, and can be cut off.

It must not know what a queue is; each test says what is answered.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Sequence

from opsq.client.core.transport import frames
from opsq.errors import OpsqError, Unreachable
from opsq.wire.messages import Alive, Grant, Heartbeat, Reply, Request, Reserved, SubmissionContent, Welcome

Script = Callable[[Request], Sequence[Reply]]


def welcome(heartbeat_s: float = 60.0, frame_limit_bytes: int = 1 << 24) -> Welcome:
    """A daemon's first answer."""
    return Welcome(
        1, 1, "0", "test-1", heartbeat_s, frame_limit_bytes, 1 << 26, True, True, "file:///nowhere", "", True
    )


def silence(request: Request) -> Sequence[Reply]:
    """Answers heartbeats, and nothing else."""
    return [Alive(request.id)] if isinstance(request, Heartbeat) else []


def grant(submission_id: int = 7, block: int = 0, mask: int = 0b1111, attempt: int = 0) -> Grant:
    """Some reserved chunks."""
    return Grant(submission_id, block, mask, attempt, 99)


def reserved(request_id: int, *grants: Grant, is_empty: bool = False) -> Reserved:
    """An answer to a reserve, under a reservation with the same number."""
    described = [
        SubmissionContent(number, 1 << 20, b"", {}, False) for number in {found.submission_id for found in grants}
    ]
    return Reserved(request_id, request_id, 600.0, list(grants), described, is_empty)


class ScriptedWire:
    """One connection; `sent` has what arrived here."""

    def __init__(self, script: Script, heartbeat_s: float = 60.0, frame_limit_bytes: int = 1 << 24) -> None:
        self.welcome = welcome(heartbeat_s, frame_limit_bytes)
        self.sent: list[Request] = []
        self._script = script
        self._inbox: deque[Reply] = deque()
        self._changed = threading.Condition()
        self._is_cut = False

    def send(self, requests: Sequence[Request]) -> None:
        list(frames(requests, self.welcome.frame_limit_bytes))  # refuses as a connection does
        with self._changed:
            if self._is_cut:
                raise Unreachable("cut")
            self.sent += requests
        for request in requests:
            self.push(*self._script(request))

    def receive(self, timeout_s: float | None) -> list[Reply]:
        with self._changed:
            self._changed.wait_for(lambda: self._inbox or self._is_cut, timeout_s)
            replies = list(self._inbox)
            self._inbox.clear()
            if self._is_cut and not replies:
                raise Unreachable("cut")
            return replies

    def push(self, *replies: Reply) -> None:
        """Say something."""
        with self._changed:
            self._inbox.extend(replies)
            self._changed.notify_all()

    def fileno(self) -> int:
        return -1

    def close(self) -> None:
        with self._changed:
            self._is_cut = True
            self._changed.notify_all()

    def of(self, kind: type[Request]) -> list[Request]:
        """What arrived of one kind."""
        return [request for request in self.sent if isinstance(request, kind)]


class ScriptedDaemon:
    """Makes connections; while `refusal` is set nobody gets in."""

    def __init__(self, script: Script = silence, heartbeat_s: float = 60.0) -> None:
        self.script = script
        self.heartbeat_s = heartbeat_s
        self.frame_limit_bytes = 1 << 24
        self.wires: list[ScriptedWire] = []
        self.refusal: OpsqError | None = None
        self.dials_count = 0

    def open_wire(self) -> ScriptedWire:
        self.dials_count += 1
        if self.refusal is not None:
            raise self.refusal
        wire = ScriptedWire(self._answer, self.heartbeat_s, self.frame_limit_bytes)
        self.wires.append(wire)
        return wire

    def _answer(self, request: Request) -> Sequence[Reply]:
        return self.script(request)

    @property
    def wire(self) -> ScriptedWire:
        """The newest connection."""
        return self.wires[-1]

    @property
    def sent(self) -> list[Request]:
        """What arrived over all connections."""
        return [request for wire in self.wires for request in wire.sent]

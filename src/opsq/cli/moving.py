"""Connects a mover to the daemon and to the one to which submissions move, and goes on when one of them was away.

It must not know how submissions move: `opsq.client.core.mover` does.
"""

from __future__ import annotations

import contextlib
import os
import socket
import threading
import time
from collections.abc import Iterator, Sequence
from typing import TypeVar

from opsq.cli.caller import Caller
from opsq.client.core.address import ShardedAddress, address_of, find_daemon, show_address, token_in
from opsq.client.core.mover import Mover, check_pair
from opsq.client.core.transport import MISSES, expect
from opsq.client.sync.connection import Connection
from opsq.errors import InputUnreadable, Unreachable, UsageError
from opsq.units import counted
from opsq.wire.messages import Changed, Drain, ErrorReply, Heartbeat, Moves, Reply, Request, ShowMoves

R = TypeVar("R")

AWAY_S = 60.0
"""How long one of the daemons may be away, from the last step that was taken."""
_PAUSE_S = 0.2
_BEAT_ID = (1 << 63) - 1


class Moving:
    """A move from the daemon of the caller to another one.

    Args:
        caller: whose daemon is the source.
        to: the address of the target, as it was typed.
        token_file: has the token for the target; None: the one that the settings name.
        with_final: move also what has ended.
        wait_s: how long to wait for what is reserved.

    Attributes:
        count: submissions moved until now.
        left: those that cannot move, each with why.

    Raises:
        UsageError: the address cannot be one.
    """

    def __init__(self, caller: Caller, to: str, token_file: str | None, *, with_final: bool, wait_s: float) -> None:
        self._caller = caller
        self._with_final = with_final
        self._wait_s = wait_s
        target, self._token = find_daemon(to, token=None if token_file is None else _read(token_file))
        if isinstance(target, ShardedAddress) or isinstance(address_of(caller.settings), ShardedAddress):
            raise UsageError(
                "Submissions move from one daemon to one other, and several were named.",
                hint="Name the one to be emptied with --address, and the other one with --to.",
            )
        self._target = os.path.abspath(target) if isinstance(target, str) else target
        self.count = 0
        self.left: dict[int, str] = {}

    def run(self) -> None:
        """Move all there is; what an earlier run has left is finished first.

        Raises:
            Unreachable: one of the daemons was away for too long.
            UsageError: nothing can move between the two.
            NoRoom, StorageFull: there is no more room at the target.
        """
        until = time.monotonic() + AWAY_S
        is_known = False
        while True:
            try:
                with self._connected() as (source, target):
                    check_pair(source.welcome, target.welcome)
                    is_known = True
                    source.call(Drain(source.next_id()), Changed)
                    for count in self._steps(source, target):
                        self.count += count
                        until = time.monotonic() + AWAY_S
                    return
            except Unreachable:
                if not is_known or time.monotonic() > until:
                    raise
                time.sleep(_PAUSE_S)

    def _steps(self, source: Connection, target: Connection) -> Iterator[int]:
        shard = target.welcome.shard or 0
        address = show_address(self._target)
        mover = Mover(
            Together(source),
            Together(target),
            shard,
            address,
            source_address=self._source_address(),
            with_final=self._with_final,
            wait_s=self._wait_s,
        )
        try:
            yield from mover.run()
        finally:
            self._tell_unknown(mover.unknown)
        self.left = mover.left
        others = source.call(ShowMoves(source.next_id()), Moves).departed
        if others:
            self._caller.warn(
                f"{counted(len(others), 'submission')} left for {others[0].address} before, and may not be active"
                f" there: `opsq drain --to {others[0].address}` finishes that."
            )

    def _tell_unknown(self, submission_ids: list[int]) -> None:
        if submission_ids:
            found = f"{counted(len(submission_ids), 'submission')} moved to {show_address(self._target)} earlier"
            removed = "it: it was removed" if len(submission_ids) == 1 else "them: they were removed"
            self._caller.warn(
                f"{found} (for example {submission_ids[0]}), but that daemon has no record of {removed} or given up"
                " there since, or its file was restored from before the move."
            )

    def _source_address(self) -> str:
        """Where the source is, as somebody on the machine of the target reads it."""
        source = address_of(self._caller.settings)
        return f"{socket.gethostname()}:{os.path.abspath(source)}" if isinstance(source, str) else show_address(source)

    def _open(self) -> Connection:
        return Connection.open(self._target, name="mover", token=self._token)

    @contextlib.contextmanager
    def _connected(self) -> Iterator[tuple[Connection, Connection]]:
        with self._caller.connect(name="mover") as source, self._open() as target, _beating((source, target)):
            yield source, target


class Together:
    """A connection that can send requests together, while something else shows by heartbeats that this side lives."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self.next_id = connection.next_id
        self.call = connection.call

    def call_all(self, requests: Sequence[Request], kind: type[R]) -> list[R]:
        """See `MoveCaller.call_all`.

        Raises:
            Unreachable: the connection has ended, or nothing has come for as long as `MISSES` heartbeats.
        """
        connection = self._connection
        connection.send(requests)
        heartbeat_s, silent_since = connection.welcome.heartbeat_s, time.monotonic()
        numbers = [int(getattr(request, "id")) for request in requests]  # noqa: B009  # all have one
        answers: dict[int, Reply] = {}
        while len(answers) < len(requests):
            heard_at = connection.heard_at
            for reply in connection.receive(heartbeat_s):
                number = getattr(reply, "id", None)
                if number == 0 and isinstance(reply, ErrorReply):
                    raise reply.error()
                if number in numbers:  # others are of requests whose wait was interrupted
                    answers[number] = reply
            if connection.heard_at != heard_at:  # perhaps a part of a reply
                silent_since = time.monotonic()
            elif time.monotonic() - silent_since > MISSES * heartbeat_s:
                raise connection.silent()
        return [expect(answers[number], kind) for number in numbers]


@contextlib.contextmanager
def _beating(connections: Sequence[Connection]) -> Iterator[None]:
    """Show both daemons that this side lives while it waits for one of them."""
    is_over = threading.Event()

    def beat() -> None:
        while not is_over.wait(min(one.welcome.heartbeat_s for one in connections)):
            for connection in connections:
                with contextlib.suppress(Unreachable):
                    connection.send([Heartbeat(_BEAT_ID)])

    thread = threading.Thread(target=beat, name="opsq-mover-beats", daemon=True)
    thread.start()
    try:
        yield
    finally:
        is_over.set()
        thread.join()


def _read(path: str) -> str:
    try:
        return token_in(path)
    except OSError as error:
        raise InputUnreadable(f"The token file {path} cannot be read: {error.strerror}.") from error

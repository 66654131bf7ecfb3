"""A connection that changes to the next daemon when the daemon is restarted, and asks again.

It must not be used for a request that would change something twice; to cancel, remove, requeue or prune again does not.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Self, TypeVar

from msgspec.structs import replace

from opsq.errors import Conflict, Unreachable
from opsq.wire.messages import Changed, Welcome

if TYPE_CHECKING:
    from opsq.cli.caller import Caller

R = TypeVar("R")

RECONNECT_S = 30.0
"""How long a daemon that restarts may be away."""


def is_of_shard(error: Unreachable) -> bool:
    """Whether it is said of one of several shards, which was waited for: a new connection would change nothing."""
    return bool(error.cause)


class LastingConnection:
    """Asks one question after the other, each until a daemon answers it.

    Args:
        caller: who connects.
        reconnect_s: how long a daemon that went away may take to return.

    Attributes:
        restarts_count: how often the daemon went away.

    Raises:
        Unreachable: no daemon answers now; a daemon that goes away later has its time to return.
    """

    def __init__(self, caller: Caller, reconnect_s: float = RECONNECT_S) -> None:
        self._connect = caller.connect
        self._reconnect_s = reconnect_s
        self._daemon = caller.connect()
        self.restarts_count = 0

    @property
    def welcome(self) -> Welcome:
        """The greeting of the daemon that answers now."""
        return self._daemon.welcome

    @property
    def store_url(self) -> str:
        """Where that daemon keeps content."""
        return self.welcome.store

    def next_id(self) -> int:
        """An id for the next request."""
        return self._daemon.next_id()

    def call(self, request: Any, kind: type[R]) -> R:
        """The answer; see `Connection.call`."""
        while True:
            try:
                return self._daemon.call(request, kind)
            except Unreachable as error:
                if is_of_shard(error):
                    raise
                self._reconnect()
                request = replace(request, id=self._daemon.next_id())

    def change(self, request: Any, rest: Callable[[Any], Any] = lambda request: request) -> int:
        """Have a request served that takes many steps: those that a daemon leaves are for the next.

        Args:
            request: answered by `Changed`.
            rest: makes the request for what is left of it; None: nothing is.

        Returns:
            How much the daemons say was changed; what one had done when it was killed is not known.
        """
        count = 0
        while request is not None:
            try:
                return count + self._daemon.call(replace(request, id=self.next_id()), Changed).count
            except Unreachable as error:
                if is_of_shard(error):
                    raise
                self._reconnect()
            except Conflict as error:
                if error.cause != "stopping":
                    raise
                count += int(error.details.get("done", 0))
                self._reconnect(is_stopping=True)
            request = rest(request)
        return count

    def warn_of_restarts(self, caller: Caller) -> None:
        """Say that what `change` has counted may be too little."""
        if self.restarts_count:
            caller.warn("the daemon was restarted in between: all is done, but some of it may not be counted.")

    def _reconnect(self, *, is_stopping: bool = False) -> None:
        """Connect to the daemon that follows; one that `is_stopping` still has to go."""
        deadline = time.monotonic() + self._reconnect_s
        try:
            while is_stopping and (left_s := deadline - time.monotonic()) > 0:
                self._daemon.receive(left_s)
        except Unreachable:
            pass
        self._daemon.close()
        self.restarts_count += 1
        self._daemon = self._connect(reconnect_s=self._reconnect_s)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self._daemon.close()

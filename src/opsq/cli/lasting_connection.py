"""A connection for questions that changes to the next daemon when the daemon is restarted, and asks again.

It must not be used for a request that would change something twice.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Self, TypeVar

from msgspec.structs import replace

from opsq.errors import Unreachable
from opsq.wire.messages import Welcome

if TYPE_CHECKING:
    from opsq.cli.caller import Caller

R = TypeVar("R")

RECONNECT_S = 30.0
"""How long a daemon that restarts may be away."""


class LastingConnection:
    """Asks one question after the other, each until a daemon answers it.

    Args:
        caller: who connects.

    Raises:
        Unreachable: no daemon answers now; a daemon that goes away later has `RECONNECT_S` seconds to return.
    """

    def __init__(self, caller: Caller) -> None:
        self._connect = caller.connect
        self._daemon = caller.connect()

    @property
    def welcome(self) -> Welcome:
        """The greeting of the daemon that answers now."""
        return self._daemon.welcome

    def next_id(self) -> int:
        """An id for the next request."""
        return self._daemon.next_id()

    def call(self, request: Any, kind: type[R]) -> R:
        """The answer; see `Connection.call`."""
        while True:
            try:
                return self._daemon.call(request, kind)
            except Unreachable:
                self._daemon.close()
                self._daemon = self._connect(reconnect_s=RECONNECT_S)
                request = replace(request, id=self._daemon.next_id())

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self._daemon.close()

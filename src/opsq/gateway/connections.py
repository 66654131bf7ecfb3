"""Connections to the daemon: one for the gateway itself, and one for each token that clients have shown.

The daemon alone decides what a token permits. This file must not know HTTP.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict

from opsq.client.aio.queue import AsyncQueue
from opsq.client.core.address import Address
from opsq.errors import NotPermitted

TOKENS_LIMIT = 256
"""The connection of the token that was used least lately is closed when there are more."""
RECONNECT_S = 30.0
"""A request waits so long for a daemon that is being restarted."""


class UnknownToken(NotPermitted):
    """The daemon does not know the token."""


class Connections:
    """Open connections, by token.

    Args:
        address: of the daemon.
        name: what `opsq status` calls the gateway.
        token: that of the gateway itself; "" where the socket needs none.
    """

    def __init__(self, address: Address, *, name: str, token: str) -> None:
        self.address = address
        self._name = name
        self._own_token = token
        self._open: OrderedDict[str, AsyncQueue] = OrderedDict()
        self._lock = asyncio.Lock()

    async def queue(self, token: str | None = None) -> AsyncQueue:
        """The queue as somebody with this token may use it; None: as the gateway itself may.

        Raises:
            UnknownToken: the daemon does not know the token.
            Unreachable: no daemon answers.
        """
        token = self._own_token if token is None else token
        found = self._open.get(token)
        if found is None:
            async with self._lock:
                found = self._open.get(token)
                if found is None:
                    found = AsyncQueue(self.address, name=self._name, token=token, reconnect_s=RECONNECT_S)
                    try:
                        self._open[token] = await found.__aenter__()
                    except NotPermitted as error:
                        raise UnknownToken(error.message, hint=error.hint) from error
        self._open.move_to_end(token)
        if len(self._open) > TOKENS_LIMIT:
            await self._open.popitem(last=False)[1].close()
        return found

    async def close(self) -> None:
        """Close all of them."""
        while self._open:
            await self._open.popitem()[1].close()

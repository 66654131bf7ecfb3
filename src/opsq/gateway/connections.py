"""Connections to the daemon: one for the gateway itself, and one for each token that clients have shown.

The daemon alone decides what a token permits. This file must not know HTTP.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import Counter, OrderedDict
from collections.abc import Callable
from functools import partial
from typing import Any

from opsq.client.aio.queue import AsyncQueue
from opsq.client.core.address import Target
from opsq.client.core.async_link import AsyncLink
from opsq.client.shards.dialling import dial_plain
from opsq.errors import NotPermitted, OpsqError, TooManyConnections, Unreachable

TOKENS_LIMIT = 256
"""When there are more, connections that nobody uses are closed, beginning with the one of the oldest use."""
TOKEN_LIMIT_LENGTH = 1024
"""No token is longer; a daemon would not read the hello that shows one."""
DIALS_LIMIT_COUNT = 16
"""So many tokens are shown to the daemon at a time."""
DIALS_WAITING_LIMIT_COUNT = 256
RECONNECT_S = 30.0
"""A request waits so long for a daemon that is being restarted."""


class UnknownToken(NotPermitted):
    """The daemon does not know the token."""


class _TokenLink(AsyncLink):
    """A link that says when the daemon does not let it in any more, and would dial for ever otherwise."""

    def __init__(self, *arguments: Any, on_refused: Callable[[], None], **options: Any) -> None:
        super().__init__(*arguments, **options)
        self._on_refused = on_refused

    def _fail_all(self, error: OpsqError) -> None:
        if isinstance(error, NotPermitted):
            self._on_refused()
        super()._fail_all(error)


class _TokenQueue(AsyncQueue):
    """The queue as somebody with a token may use it."""

    def __init__(self, *arguments: Any, on_refused: Callable[[], None], **options: Any) -> None:
        self._on_refused = on_refused
        super().__init__(*arguments, **options)

    def _make_link(self, **options: Any) -> AsyncLink:
        return _TokenLink(
            self._address,
            name=self._name,
            token=self._token,
            connect=dial_plain,
            on_refused=self._on_refused,
            **options,
        )


class Connections:
    """Open connections, by token.

    Args:
        address: of the daemon.
        name: what `opsq status` calls the gateway.
        token: that of the gateway itself; "" where the socket needs none.
    """

    def __init__(self, address: Target, *, name: str, token: str) -> None:
        self.address = address
        self._name = name
        self._own_token = token
        self._open: OrderedDict[str, AsyncQueue] = OrderedDict()
        self._opening: dict[str, asyncio.Task[AsyncQueue]] = {}
        self._closing: set[asyncio.Task[None]] = set()
        self._users: Counter[str] = Counter()
        """How many requests use the connection of a token, or wait for it."""
        self._dials = asyncio.Semaphore(DIALS_LIMIT_COUNT)

    async def queue(self, token: str | None = None) -> AsyncQueue:
        """The queue as somebody with this token may use it; None: as the gateway itself may.

        Raises:
            UnknownToken: the daemon does not know the token.
            TooManyConnections: too many tokens wait to be shown to the daemon.
            Unreachable: no daemon answers.
        """
        token = self._own_token if token is None else token
        found = self._open.get(token)
        if found is None:
            return await asyncio.shield(self._opening.get(token) or self._begin(token))
        self._open.move_to_end(token)
        return found

    def keep_open(self, token: str) -> Callable[[], None]:
        """Keep the connection of a token open, from when there is one, until what this returns is called."""
        self._users[token] += 1
        return partial(self._release, token)

    async def close(self) -> None:
        """Close all of them."""
        for opening in list(self._opening.values()):
            opening.cancel()
        for token, queue in list(self._open.items()):
            self._drop(token, queue)
        await asyncio.gather(*self._opening.values(), *self._closing, return_exceptions=True)

    # --- inside -------------------------------------------------------------------------------------------------------

    def _begin(self, token: str) -> asyncio.Task[AsyncQueue]:
        if len(token) > TOKEN_LIMIT_LENGTH:
            raise UnknownToken("The token is wrong: none is that long.")
        if token != self._own_token and len(self._opening) >= DIALS_WAITING_LIMIT_COUNT:
            raise TooManyConnections(
                f"{DIALS_WAITING_LIMIT_COUNT} tokens wait for the daemon to check them.", hint="Try again later."
            )
        opening = self._opening[token] = asyncio.get_running_loop().create_task(self._connect(token))

        def end(_: object) -> None:
            del self._opening[token]
            if not opening.cancelled():
                opening.exception()  # whoever waited was told; everybody may have gone

        opening.add_done_callback(end)
        return opening

    async def _connect(self, token: str) -> AsyncQueue:
        """Dial for one token: others do not wait for it, and the gateway's own connection waits for none."""
        queue = _TokenQueue(
            self.address,
            name=self._name,
            token=token,
            reconnect_s=RECONNECT_S,
            on_refused=lambda: self._drop(token, queue),
        )
        is_own = token == self._own_token
        async with contextlib.nullcontext() if is_own else self._dials:
            try:
                await queue.__aenter__()
            except NotPermitted as error:
                if is_own:
                    raise Unreachable(
                        "The daemon does not let this gateway in: its token is missing or wrong.", hint=error.hint
                    ) from error
                raise UnknownToken(error.message, hint=error.hint) from error
        self._open[token] = queue
        self._drop_surplus()
        return queue

    def _release(self, token: str) -> None:
        self._users[token] -= 1
        if not self._users[token]:
            del self._users[token]
        self._drop_surplus()

    def _drop_surplus(self) -> None:
        """Close what is too much and unused; who uses the gateway's own connection is not counted."""
        surplus_count = len(self._open) - TOKENS_LIMIT
        if surplus_count > 0:
            unused = [each for each in self._open.items() if each[0] not in self._users and each[0] != self._own_token]
            for token, queue in unused[:surplus_count]:
                self._drop(token, queue)

    def _drop(self, token: str, queue: AsyncQueue) -> None:
        if self._open.get(token) is queue:
            del self._open[token]
            closing = asyncio.get_running_loop().create_task(queue.close())
            self._closing.add(closing)
            closing.add_done_callback(self._closing.discard)

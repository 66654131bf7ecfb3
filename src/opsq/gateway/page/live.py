"""Tells browsers when what they show has changed, as server-sent events; one look at the daemon serves all of them.

It must not tell what has changed: a browser loads its page again, with its own rights.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator

from opsq.errors import OpsqError, TooManyConnections
from opsq.gateway.context import Context
from opsq.wire.messages import DaemonState, Status

VIEWERS_LIMIT = 256
PAUSE_S, REST = 2.0, 20
"""Between two looks: so long, or so many times what one has taken, whichever is longer."""
AGE_S = 15.0
"""What has not changed is loaded again after so long: ages are shown."""
_ANSWER_S = 10.0


class Pulse:
    """Looks at the daemon for as long as somebody watches."""

    def __init__(self, context: Context) -> None:
        self._context = context
        self._viewers: set[asyncio.Event] = set()
        self._looking: asyncio.Task[None] | None = None

    def check_room(self) -> None:
        """Refuse a viewer when there are many.

        Raises:
            TooManyConnections: there are.
        """
        if len(self._viewers) >= VIEWERS_LIMIT:
            raise TooManyConnections(f"{VIEWERS_LIMIT} browsers follow the page already.")

    async def events(self) -> AsyncIterator[bytes]:
        """An event whenever something has changed, until the gateway stops."""
        changed = asyncio.Event()
        self._viewers.add(changed)
        if self._looking is None:
            self._looking = asyncio.create_task(self._look())
        try:
            yield b"retry: 3000\n\n"
            while not self._context.stopping.is_set():
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(changed.wait(), AGE_S)
                changed.clear()
                yield b"data: changed\n\n"
        finally:
            self._viewers.discard(changed)
            if not self._viewers and self._looking is not None:
                self._looking.cancel()
                self._looking = None

    async def _look(self) -> None:
        seen: object = ()
        stopping = self._context.stopping
        while True:
            began = time.monotonic()
            found = await self._found()
            if found != seen or stopping.is_set():
                seen = found
                for viewer in self._viewers:
                    viewer.set()
            with contextlib.suppress(TimeoutError):
                pause_s = max(PAUSE_S, REST * (time.monotonic() - began))
                await asyncio.wait_for(stopping.wait(), pause_s)
                for viewer in self._viewers:
                    viewer.set()
                return

    async def _found(self) -> object:
        """What of the state of the daemon, changed, is worth a look; None: it does not answer."""
        try:
            link = (await self._context.connections.queue()).link
            state = await link.call(Status(link.next_id(), None, ""), DaemonState, _ANSWER_S)
        except OpsqError:
            return None
        consumers = [(each.consumer, each.reserved_count, each.waiting_strategy) for each in state.consumers]
        causes = [found.code for found in state.held_back]
        return state.state, state.total, state.states, state.room_waiting_count, consumers, causes

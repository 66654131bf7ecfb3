"""The stop of a daemon: whether it was asked for, who waits for it, and how long reserved chunks are waited for.

This file must not know the engine: the daemon says when nothing is reserved any more.
"""

from __future__ import annotations

import asyncio
import contextlib
import time

from opsq.daemon.session import Session
from opsq.wire.messages import Changed

_LOOK_S = 1.0
"""How soon a wait notices that it was shortened."""


class Stopping:
    """One stop, from the first request on."""

    def __init__(self) -> None:
        self._asked = asyncio.Event()
        self._quiet = asyncio.Event()
        self._until = 0.0
        self._askers: list[tuple[Session, int]] = []

    def ask(self, drain_s: float) -> bool:
        """Wait at most `drain_s` seconds for what is reserved; False, and perhaps shorter, if that was asked before."""
        until = time.monotonic() + drain_s
        is_new = not self._asked.is_set()
        self._until = until if is_new else min(self._until, until)
        self._asked.set()
        if drain_s == 0:
            self._quiet.set()
        return is_new

    @property
    def is_asked(self) -> bool:
        """Whether a stop was requested."""
        return self._asked.is_set()

    @property
    def left_s(self) -> float:
        """How long reserved chunks are still waited for."""
        return max(self._until - time.monotonic(), 0.0)

    def note_quiet(self) -> None:
        """Nothing is reserved any more."""
        self._quiet.set()

    async def wait_for_request(self) -> None:
        """Return when a stop has been requested."""
        await self._asked.wait()

    async def wait_for_quiet(self) -> None:
        """Return when nothing is reserved any more, or the time is over."""
        while not self._quiet.is_set() and (left_s := self.left_s) > 0:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(min(left_s, _LOOK_S)):
                    await self._quiet.wait()

    def remember(self, session: Session, request_id: int) -> None:
        """Who asked is answered when the daemon has stopped."""
        self._askers.append((session, request_id))

    def answer(self) -> None:
        """Say that it is done."""
        for session, request_id in self._askers:
            session.answer(Changed(request_id))

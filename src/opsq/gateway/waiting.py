"""What ends a wait early: the client has gone, or the gateway begins to end.

It must not know what is waited for.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

from starlette.requests import Request

from opsq.errors import Unreachable

R = TypeVar("R")


class Stopping(Unreachable):
    """The gateway ends before what was waited for has come."""


async def unless(stopping: asyncio.Event | None, waiting: Coroutine[Any, Any, R]) -> R:
    """What is waited for, unless the gateway ends before; None: it comes soon.

    Raises:
        Stopping: it ends; the wait is given up.
    """
    if stopping is None:
        return await waiting
    tasks = asyncio.ensure_future(waiting), asyncio.ensure_future(stopping.wait())
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        if not tasks[0].done():
            raise Stopping("The gateway is stopping.", hint="Try again.")
        return tasks[0].result()
    finally:
        for task in tasks:
            task.cancel()


async def gone(request: Request) -> None:
    """Wait until the client has closed its connection; the body must have been read."""
    while (await request.receive())["type"] != "http.disconnect":
        pass


def is_gone(request: Request) -> bool:
    """Whether the client has closed its connection by now; the body must have been read, or be of no interest.

    `receive` is taken one step, up to where it would wait: 2 µs. Starlette's `is_disconnected` cancels a scope around
    it instead, which takes 18 µs.
    """
    steps = request.receive().__await__()
    try:
        next(steps)
    except StopIteration as end:
        return bool(end.value["type"] == "http.disconnect")
    finally:
        steps.close()
    return False

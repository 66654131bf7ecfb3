"""Functions that worker processes import: a zoo of what users' functions do.

It must import nothing that a worker does not need, since each process that is started pays for it.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import time
from collections import defaultdict
from contextlib import suppress
from pathlib import Path
from typing import Any

import opsq
from opsq.errors import UsageError
from waiting import wait_until


def upper(chunk: Any) -> bytes:
    return bytes(chunk.data.upper())


def followed(chunk: Any) -> opsq.Done:
    """A result and a follow-up with the same content, large or small."""
    return opsq.Done(chunk.data, [opsq.FollowUp([chunk.data], metadata={"of": chunk.index})])


def followed_in_vain(chunk: Any) -> opsq.Done:
    return opsq.Done(b"", [opsq.FollowUp(["text"])])


def nothing(chunk: Any) -> None:
    return None


def told(chunk: Any) -> bytes:
    """What a function can see of its chunk."""
    seen = (
        chunk.submission_id,
        chunk.index,
        chunk.attempt,
        str(chunk.handle).split("@")[0],
        chunk.metadata,
        chunk.chunks_count,
    )
    return repr((*seen, bytes(chunk), chunk.attachment(), chunk.attachment())).encode()


def pid(chunk: Any) -> bytes:
    return b"%d" % os.getpid()


def twice(operation: Any) -> Any:
    return operation * 2


def inverse(operation: int) -> float:
    return 1 / operation


def text_returned(chunk: Any) -> str:
    return "text"


_leaked: list[bytes] = []


def obedient(chunk: Any) -> bytes:
    """Do what the chunk says."""
    word, _, rest = chunk.data.decode().partition(" ")
    if word == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    elif word == "exit":
        os._exit(int(rest))
    elif word == "sysexit":
        sys.exit(int(rest))
    elif word == "interrupt":
        raise KeyboardInterrupt
    elif word == "raise":
        raise ValueError(rest)
    elif word == "retry":
        raise opsq.Retry(rest, delay_s=0.0)
    elif word == "bury":
        raise opsq.Bury(rest)
    elif word == "sleep":
        Path(rest).write_text(str(os.getpid()))
        wait_for_ever()
    elif word == "hog":  # takes memory, and stays
        Path(rest).write_text(str(os.getpid()))
        taken = []
        while True:
            taken.append(b"x" * (8 << 20))
            time.sleep(0.001)
    elif word == "leak":
        _leaked.append(b"x" * (1 << 20))
        time.sleep(0.002)
    elif word == "wait":  # until somebody makes the second file, having made the first
        begun, go = map(Path, rest.split(" "))
        begun.write_text(str(os.getpid()))
        while not go.exists():
            time.sleep(0.01)
    elif word == "leave":  # a child that keeps the pipe open, and then death
        child = os.fork()
        if child == 0:
            wait_for_ever()
        Path(rest).write_text(str(child))
        os.kill(os.getpid(), signal.SIGKILL)
    elif word == "clean":  # tell of having been interrupted
        begun, cleaned = map(Path, rest.split(" "))
        begun.write_text(str(os.getpid()))
        try:
            wait_for_ever()
        finally:
            cleaned.write_text("")
    return b"%d" % os.getpid()


_begun: defaultdict[str, asyncio.Event] = defaultdict(asyncio.Event)
_ended: defaultdict[str, asyncio.Event] = defaultdict(asyncio.Event)
"""By their first words, the chunks that `awaited` has begun, and ended, in this process."""


_left: list[Any] = []
"""Chunks that have ended, as what a cancelled coroutine has begun in a thread still sees them."""


async def awaited(chunk: Any) -> bytes:
    """Do what the chunk says, as one of many at once."""
    word, _, rest = (await chunk.data()).decode().partition(" ")
    _begun[word].set()
    try:
        if word.startswith("with"):
            await _begun[rest].wait()
        elif word.startswith("behind"):
            await _ended[rest].wait()
        elif word == "die":  # when the named one has ended
            await _ended[rest].wait()
            os.kill(os.getpid(), signal.SIGKILL)
        elif word == "hang":
            await asyncio.sleep(3600)
        elif word == "stubborn":
            while True:
                with suppress(asyncio.CancelledError):
                    await asyncio.sleep(3600)
        elif word == "block":
            wait_for_ever()
        elif word == "cancelled":
            raise asyncio.CancelledError
        elif word == "clean":
            begun, cleaned = map(Path, rest.split(" "))
            begun.write_text(str(os.getpid()))
            try:
                await asyncio.sleep(3600)
            finally:
                cleaned.write_text("")
        elif word == "then":
            return opsq.Done(b"then", [opsq.FollowUp([rest.encode()])])  # type: ignore[return-value]
        elif word == "left":
            _left.append(chunk.view)
        elif word == "stale":  # asks for the attachment of the one that was left, then for its own
            await _ended["left"].wait()
            await asyncio.sleep(0.05)
            try:
                got = await asyncio.to_thread(_left.pop().attachment)
            except UsageError:
                got = b"late"
            return b"%s, %s" % (got, await chunk.attachment())
        elif word == "attached":
            return b"%s %s %d" % (await chunk.attachment(), chunk.metadata["tenant"].encode(), chunk.index)
        else:
            return obedient(chunk.view)
        return word.encode()
    finally:
        _ended[word].set()


async def twice_awaited(operation: Any) -> Any:
    await asyncio.sleep(0)
    return operation * 2


def wait_for_ever() -> None:
    while True:
        time.sleep(3600)


def hold(chunk: Any) -> None:
    """Takes as long as `wait_four_seconds`, with the daemon whose socket the chunk names."""
    wait_four_seconds(chunk.data.decode())


def wait_four_seconds(socket: str) -> None:
    """Wait until a reservation is that old, as the daemon counts."""
    with opsq.connect(socket) as queue:
        wait_until(lambda: queue.status().oldest_reservation_s > 4, 180, "the work is done")

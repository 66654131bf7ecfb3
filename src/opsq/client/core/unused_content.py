"""Deletes content that no submission names: only where the daemon says that none does, and that none ever will.

That a call has failed is no proof of it. A Submit is sent again after a reconnect, so that a refusal may answer the
second of two; and what ends a call may concern the connection, and answer nothing. So the daemon is asked what the
request key has made. What it does not deny stays: if there is a submission, it is whole, and if there is none, the
daemon's sweep finds the folder. It must not send content anywhere.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Protocol, TypeVar

from opsq.errors import OpsqError
from opsq.wire.messages import Found, NewSubmission, Request, Withdraw

if TYPE_CHECKING:
    from opsq.client.core.async_link import AsyncLink
    from opsq.client.core.content_access import Contents

R = TypeVar("R")

ASK_S = 5.0
"""How long to wait for such an answer: who has submitted is to have theirs soon, and the sweep does the rest."""

Ask = Callable[[bytes], Found]
"""Has the daemon say what a request key has made."""


class Daemon(Protocol):
    """A connection to it."""

    def next_id(self) -> int:
        """An id for the next request."""

    def call(self, request: Request, kind: type[R], timeout_s: float | None = None) -> R:
        """The answer, of that kind; raises the error that ends the call, `TimedOut` after that many seconds."""


def delete_unused(submissions: Iterable[NewSubmission], contents: Contents, ask: Ask) -> None:
    """Delete what was written for those of some submissions that are not made.

    Args:
        submissions: with request keys of their own, handed over or not.
        contents: where it was written.
        ask: see `by_withdrawing`; by `Find` only if the same keys may be handed over again.

    Effects: from the first on of which the daemon does not say, nothing is deleted. It raises nothing.
    """
    with contextlib.suppress(OpsqError, OSError):
        for new in submissions:
            if _is_stored(new) and ask(new.request_key).submission_id is None:
                delete_content([new], contents)


async def delete_unused_async(submissions: Iterable[NewSubmission], contents: Contents, link: AsyncLink) -> None:
    """The same, awaited, by withdrawing; the store is worked on in a thread."""
    import asyncio

    with contextlib.suppress(OpsqError, OSError):
        for new in submissions:
            if _is_stored(new):
                found = await link.call(Withdraw(link.next_id(), new.request_key), Found, ASK_S)
                if found.submission_id is None:
                    await asyncio.to_thread(delete_content, [new], contents)


def by_withdrawing(daemon: Daemon) -> Ask:
    """Ask so that a key which has made nothing never will: a Submit that is still on its way is refused."""
    return lambda request_key: daemon.call(Withdraw(daemon.next_id(), request_key), Found, ASK_S)


def delete_content(submissions: Iterable[NewSubmission], contents: Contents) -> None:
    """Delete what was written for submissions that are known not to be made: never sent, or withdrawn."""
    for new in submissions:
        if _is_stored(new):
            contents.store.delete_folder(new.request_key.hex())


def _is_stored(new: NewSubmission) -> bool:
    from opsq.content.manifest import decode

    return decode(new.content).is_stored

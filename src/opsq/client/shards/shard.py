"""One shard as a router sees it: a link that is kept for ever, and how long it may be away until an answer is given up.

It must not decide which shard is asked.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Callable
from typing import TypeVar

from msgspec.structs import replace

from opsq.client.core.address import Address, show_address
from opsq.client.core.async_link import AsyncLink
from opsq.client.core.pending_requests import OnReply, id_of
from opsq.client.core.transport import connected_socket
from opsq.client.shards.holdings import Holdings
from opsq.errors import OpsqError, Unreachable
from opsq.wire.messages import (
    CancelWait,
    ChunkMask,
    Completed,
    Draining,
    ErrorReply,
    Heartbeat,
    Hello,
    Reply,
    Request,
    Revoked,
    Started,
    Welcome,
)

Asked = TypeVar("Asked", bound=Request)

QUESTION_S = 1.0
"""How long a shard may be away until those who ask all of them do without its answer."""
ERRAND_S = 5.0
"""How long it may be away until what only it can do has failed."""
WORK_S = 30.0
"""How long, for what is not asked twice: submissions and verdicts. It is sent again when the shard is back."""


class Shard:
    """A daemon among others.

    Args:
        address: where it is.
        hello: of the client; the shard gets one like it.
        on_change: called when it has been reached, or lost.
        on_push: told what it says unasked.
    """

    def __init__(
        self,
        address: Address,
        hello: Hello,
        *,
        on_change: Callable[[Shard], None],
        on_push: Callable[[Shard, Revoked | Draining], None],
    ) -> None:
        self.address = address
        self.number: int | None = None
        """Which one it is; None: it has never answered."""
        self.welcome: Welcome | None = None
        """Its last greeting."""
        self.problem: OpsqError | None = None
        """Why it could not be reached, the last time that it was tried."""
        self.rules_revision = 0
        """Of its rules, as far as is known."""
        self.is_draining = False
        """It is about to end, and hands nothing out."""
        self.holdings = Holdings()
        self._away_since: float | None = time.monotonic()
        self._asked: dict[int, float] = {}  # request → how long it may be away
        self._answers: dict[int, OnReply] = {}
        self._on_change = on_change
        self._on_push = on_push
        self.link = AsyncLink(
            address,
            name=hello.name,
            token=hello.token if not isinstance(address, str) else "",
            connect=connected_socket,
            claim=hello.claim,
            holdings=self.holdings.told,
            on_reclaimed=self._reclaimed,
            on_push=self._pushed,
            on_state=self._changed,
        )
        self.link.keep_dialling()

    @property
    def name(self) -> str:
        """What people call it."""
        where = show_address(self.address)
        return where if self.number is None else f"{self.number} ({where})"

    @property
    def store(self) -> str:
        """What marks its content store."""
        return self.welcome.store_marker if self.welcome is not None else ""

    @property
    def is_away(self) -> bool:
        """Whether it cannot be reached now."""
        return self._away_since is not None

    @property
    def is_idle(self) -> bool:
        """Whether nothing is held of it and nothing waits for its answer."""
        return not self._answers and not self.holdings.told()[0]

    def ask(self, request: Asked, on_reply: OnReply, patience_s: float = ERRAND_S) -> int:
        """Send a request; its answer, with the id that is returned, goes to `on_reply`.

        Args:
            patience_s: how long the shard may be away until the answer is `Unreachable`; infinite: for ever.

        After `close` nothing is asked, and nothing answered.
        """
        request_id = self.link.next_id()
        if self.link.is_closed:
            return request_id
        self._asked[request_id] = patience_s
        self._answers[request_id] = on_reply
        self.link.send_soon([replace(request, id=request_id)], self._answered)
        if self.is_away:
            self._have_patience()
        return request_id

    def cancel(self, request_id: int) -> None:
        """End a parked call; its last answer still comes."""
        self.link.send_soon([CancelWait(request_id)])

    def started(self, chunks: list[ChunkMask]) -> None:
        """Work on chunks has started."""
        self.holdings.started(chunks)
        self.link.send_soon([Started(chunks)])

    def beat(self) -> None:
        """The client lives."""
        if not self.is_away:
            self.link.send_soon([Heartbeat(self.link.next_id())])

    def gone(self) -> ErrorReply:
        """The answer to what it cannot be asked."""
        hint = self.problem.message if self.problem is not None else ""
        return ErrorReply.of(0, Unreachable(cause="shard_away", shard=self.name, why=hint))

    async def close(self) -> None:
        """End the connection; what was sent before is on its way, and nobody wants the answers any more."""
        self._asked.clear()
        self._answers.clear()
        await self.link.close()

    # --- what comes ---

    def _answered(self, reply: Reply) -> None:
        request_id = id_of(reply)
        self._asked.pop(request_id, None)
        on_reply = self._answers.pop(request_id, None)
        if on_reply is not None:
            on_reply(reply)

    def _reclaimed(self, reply: Reply) -> None:
        """Chunks that others have reserved meanwhile are the client's no more."""
        if isinstance(reply, Completed):
            for refusal in reply.refusals:
                self._pushed(
                    Revoked([ChunkMask(refusal.submission_id, refusal.block, refusal.mask)], "reservation_lost")
                )

    def _pushed(self, push: Revoked | Draining) -> None:
        if isinstance(push, Revoked):
            self.holdings.ended(push.chunks)
        else:
            self.is_draining = True
        self._on_push(self, push)

    def _changed(self, problem: OpsqError | None) -> None:
        self.problem = problem
        if problem is None:
            self._away_since = None
            self.is_draining = False
            self.welcome = self.link.welcome
            self.number = self.welcome.shard
            self.rules_revision = self.welcome.rules_revision
        elif self._away_since is None:
            self._away_since = time.monotonic()
            self._have_patience()
        self._on_change(self)

    # --- patience ---

    def _have_patience(self) -> None:
        """Look again when the answer that is given up next is due."""
        patience_s = min(self._asked.values(), default=math.inf)
        if self._away_since is not None and patience_s < math.inf:
            left_s = max(self._away_since + patience_s - time.monotonic(), 0.0)
            asyncio.get_running_loop().call_later(left_s, self._lose_patience)

    def _lose_patience(self) -> None:
        if self._away_since is None or self.link.is_closed:
            return
        away_s = time.monotonic() - self._away_since
        over = [request_id for request_id, patience_s in self._asked.items() if patience_s <= away_s]
        for request_id in over:
            self.link.give_up(request_id)
            self._answered(replace(self.gone(), id=request_id))
        if self._asked:
            self._have_patience()

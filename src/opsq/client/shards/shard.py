"""One shard as a router sees it: a link that is kept for ever, and how long it may be away until an answer is given up.

It is away without a connection, and also when it says nothing for some seconds to what should be answered at once, as
when its machine hangs. It must not decide which shard is asked.
"""

from __future__ import annotations

import asyncio
import logging
import math
import time
from collections.abc import Callable
from typing import TypeVar

import msgspec
from msgspec.structs import replace

from opsq.client.core.address import Address, show_address
from opsq.client.core.async_link import AsyncLink
from opsq.client.core.pending_requests import OnReply, id_of
from opsq.client.core.transport import connected_socket
from opsq.client.shards.holdings import Holdings
from opsq.errors import OpsqError, ProtocolError, Unreachable
from opsq.wire.messages import (
    ChunkMask,
    CompleteAndReserve,
    Completed,
    Draining,
    ErrorReply,
    Heartbeat,
    HeldChunks,
    Hello,
    Release,
    Reply,
    Request,
    Reserved,
    Revoked,
    Started,
    Wait,
    Welcome,
)

Asked = TypeVar("Asked", bound=Request)

QUESTION_S = 1.0
"""How long a shard may be away until those who ask all of them do without its answer."""
ERRAND_S = 5.0
"""How long it may be away until what only it can do has failed."""
WORK_S = 30.0
"""How long, for what is not asked twice, and for waits: as long as a daemon may take to be restarted."""
SILENCE_S = 3.0
"""A shard that is asked, and is silent for so long, counts as away until it says something."""


class _Question(msgspec.Struct):
    """What a shard was asked.

    Args:
        on_reply: is given the answer; None: it was given up while the shard was silent, and an answer may come.
        patience_s: how long the shard may be away.
        is_prompt: it should be answered at once.
        has_second: `Completed` is not its last answer.
    """

    on_reply: OnReply | None
    patience_s: float
    is_prompt: bool
    has_second: bool = False


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
        self.makers: frozenset[int] | None = frozenset()
        """The shards that made submissions which have moved to it, as it has said; None: there may be others by now."""
        self.rules_revision = 0
        """Of its rules, as far as is known."""
        self.is_draining = False
        """It is about to end, and hands nothing out."""
        self.holdings = Holdings()
        self._lease_s = 0.0
        self._leased_until = 0.0
        self._away_since: float | None = time.monotonic()
        self._came_at = 0.0
        self._away_before: float | None = None
        """Since when it was away before it came, until it has answered something."""
        self._questions: dict[int, _Question] = {}  # by request, what has no last answer
        self._heard_at = 0.0
        self._watch: asyncio.TimerHandle | None = None
        self._patience: asyncio.TimerHandle | None = None
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
            on_heard=self._heard,
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
    def away_s(self) -> float:
        """For how long it has not been reached."""
        return 0.0 if self._away_since is None else time.monotonic() - self._away_since

    @property
    def is_silent(self) -> bool:
        """Whether it has a connection, and counts as away because it says nothing."""
        return self.is_away and self.link.is_connected

    @property
    def hands_out(self) -> bool:
        """Whether it answers those who want chunks."""
        return not self.is_away and not self.is_draining

    @property
    def is_idle(self) -> bool:
        """Whether nothing is held of it, no lease may last, and nothing waits for its answer."""
        return not (self._questions or self.holdings.told()[0] or time.monotonic() < self._leased_until)

    def ask(self, request: Asked, on_reply: OnReply, patience_s: float = ERRAND_S) -> int:
        """Send a request; its answer, with the id that is returned, goes to `on_reply`, never before this returns.

        CompleteAndReserve has two, unless the first is an error.

        Args:
            patience_s: how long the shard may be away until the answer is `Unreachable`; infinite: for ever.
        """
        request_id = self.link.next_id()
        if self.link.is_closed:
            asyncio.get_running_loop().call_soon(on_reply, replace(self.gone(), id=request_id))
            return request_id
        is_prompt = not (isinstance(request, Wait) or getattr(request, "wait_s", 0.0) != 0.0)
        self._questions[request_id] = _Question(
            on_reply, patience_s, is_prompt, has_second=isinstance(request, CompleteAndReserve)
        )
        try:
            self.link.send_soon([replace(request, id=request_id)], self._answered)
        except OpsqError as error:  # it is too long for this shard, or the shard was left
            asyncio.get_running_loop().call_soon(self._answered, ErrorReply.of(request_id, error))
            return request_id
        if self.is_away:
            self._have_patience()
        elif is_prompt:
            self._listen()
        return request_id

    def cancel(self, request_id: int) -> None:
        """End a parked call; its last answer still comes. What is to be completed stays so."""
        question = self._questions.get(request_id)
        if question is None or question.has_second:
            return
        if self.link.is_connected:
            self.link.cancel([request_id])
        else:  # it would be parked for ever when the shard is back
            self.link.give_up(request_id)
            asyncio.get_running_loop().call_soon(self._answered, replace(self.gone(), id=request_id))

    def give_back(self, reply: Reserved) -> None:
        """Release chunks that nobody was given."""
        held = [HeldChunks.of_grant(reply.reservation_id, grant) for grant in reply.grants]
        self.ask(Release(0, held), lambda _: None, math.inf)

    def started(self, chunks: list[ChunkMask]) -> None:
        """Work on chunks has started."""
        self.holdings.started(chunks)
        self.link.send_soon([Started(chunks)])

    def leased(self, lease_s: float) -> None:
        """The client has got a lease of this length, in seconds, or extended one; 0: of a length that it has had."""
        self._lease_s = max(self._lease_s, lease_s)
        self._leased_until = time.monotonic() + self._lease_s

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
        self._questions.clear()
        await self.link.close()

    # --- what comes ---

    def _answered(self, reply: Reply) -> None:
        request_id = id_of(reply)
        question = self._questions.get(request_id)
        if question is not None:
            if question.has_second and isinstance(reply, Completed):
                question.has_second = False
            else:
                del self._questions[request_id]
        if isinstance(reply, ErrorReply) and self.is_away and not self.is_silent:  # the connection has failed
            reply = replace(self.gone(), id=request_id)
        self._away_before = None
        on_reply = question.on_reply if question is not None else None
        if on_reply is None:
            if isinstance(reply, Reserved) and reply.grants:
                self.give_back(reply)
            return
        try:
            on_reply(reply)
        except Exception as error:  # of whatever kind it is: a shard may answer anything
            logging.getLogger("opsq").exception("%s has answered what makes no sense here:", self.name)
            on_reply(ErrorReply.of(request_id, ProtocolError(f"Shard {self.name}: {error!r}")))

    def _reclaimed(self, reply: Reply) -> None:
        """Chunks that others have reserved meanwhile are the client's no more."""
        if isinstance(reply, Completed):
            for refusal in reply.refusals:
                self._pushed(Revoked([ChunkMask(refusal.submission_id, refusal.block, refusal.mask)], refusal.code))

    def _pushed(self, push: Revoked | Draining) -> None:
        if isinstance(push, Revoked):
            self.holdings.ended(push.chunks)
        else:
            self.is_draining = True
        self._on_push(self, push)

    def _changed(self, problem: OpsqError | None) -> None:
        self.problem = problem
        if problem is None:
            self._away_before, self._away_since = self._away_since, None
            self._came_at = time.monotonic()
            self.is_draining = False
            self.welcome = self.link.welcome
            self.number = self.welcome.shard
            self.makers = frozenset(self.welcome.makers)
            self.rules_revision = self.welcome.rules_revision
            self._heard_at = time.monotonic()
            if self._owes_answer:
                self._listen()
        else:
            for request_id in [one for one, question in self._questions.items() if question.on_reply is None]:
                self.link.give_up(request_id)
                del self._questions[request_id]
            if self._away_since is None:
                now = time.monotonic()
                has_only_greeted = self._away_before is not None and now - self._came_at < SILENCE_S
                self._away_since = self._away_before if has_only_greeted else now
                self._have_patience()
        self._on_change(self)

    # --- silence ---

    def _heard(self) -> None:
        self._heard_at = time.monotonic()
        if self.is_silent:
            self._away_since = None
            self.problem = None
            self._on_change(self)

    @property
    def _owes_answer(self) -> bool:
        """Whether it has yet to answer what should be answered at once."""
        return any(question.is_prompt for question in self._questions.values())

    def _listen(self) -> None:
        """See to it that a shard that says nothing is noticed."""
        if self._watch is None:
            self._heard_at = max(self._heard_at, time.monotonic())
            self._watch = asyncio.get_running_loop().call_later(SILENCE_S / 3, self._look_for_silence)

    def _look_for_silence(self) -> None:
        self._watch = None
        if self.is_away or not self._owes_answer or self.link.is_closed:
            return
        silent_s = time.monotonic() - self._heard_at
        if silent_s >= SILENCE_S:
            self._away_since = time.monotonic()
            self.problem = Unreachable(f"It is connected, but has said nothing for {SILENCE_S:g} s.")
            self._have_patience()
            self._on_change(self)
            return
        self.beat()  # what takes long, as a check does, leaves this answered
        self._watch = asyncio.get_running_loop().call_later(SILENCE_S / 3, self._look_for_silence)

    # --- patience ---

    def _have_patience(self) -> None:
        """Look again when the answer that is given up next is due."""
        patience_s = min((question.patience_s for question in self._questions.values()), default=math.inf)
        if self._patience is not None:
            self._patience.cancel()
            self._patience = None
        if self._away_since is not None and patience_s < math.inf:
            left_s = max(self._away_since + patience_s - time.monotonic(), 0.0)
            self._patience = asyncio.get_running_loop().call_later(left_s, self._lose_patience)

    def _lose_patience(self) -> None:
        self._patience = None
        if self._away_since is None or self.link.is_closed:
            return
        away_s = self.away_s
        over = [one for one, question in self._questions.items() if question.patience_s <= away_s]
        for request_id in over:
            is_silent = self.is_silent
            if not is_silent:
                self.link.give_up(request_id)
            self._answered(replace(self.gone(), id=request_id))
            if is_silent:
                self._questions[request_id] = _Question(None, math.inf, is_prompt=False)
                self.link.cancel([request_id])  # it is not to wait for what nobody takes
        self._have_patience()

    def give_up(self) -> None:
        """The shard will never be back: answer all that it was asked."""
        for request_id in list(self._questions):
            self.link.give_up(request_id)
            self._answered(replace(self.gone(), id=request_id))

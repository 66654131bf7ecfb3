"""Messages about the connection itself: the greeting, heartbeats, the end of a wait, errors and the daemon's own end.

This file must not define anything about submissions or chunks.
"""

from __future__ import annotations

from typing import Annotated, Literal

from msgspec import Meta

from opsq.errors import OpsqError, from_code
from opsq.wire.messages.fields import Count, Detail, Id, Message, Name, Record, RequestKey


class Claim(Record):
    """A name that only one connection may have at a time, until it ends.

    Under the same `key` another connection takes it over: a consumer that reconnects is not shut out by its own old
    connection.
    """

    name: Annotated[str, Meta(min_length=1, max_length=255)]
    key: RequestKey


class Hello(Message):
    """First message of a connection. → Welcome. `token` is needed over TCP only.

    `host` and `pid` say where the client runs, for those who look for what it has reserved; nothing depends on them.
    """

    id: Id
    version: Count
    name: Name = ""
    token: Annotated[str, Meta(max_length=1024)] = ""
    claim: Claim | None = None
    host: Name = ""
    pid: Count = 0


class Welcome(Message):
    """The connection may be used. `store` is the URL of the content store, `store_marker` what its marker must say.

    A client does not believe `is_own`, and sets it itself: whether the daemon is a process of its user or of root, on
    the same machine.
    """

    id: Id
    version: int
    server: str
    consumer: str
    heartbeat_s: float
    frame_limit_bytes: int
    chunk_limit_bytes: int
    is_operator: bool
    is_durable: bool
    store: str
    store_marker: str
    is_own: bool = False
    shard: int | None = None
    """The number of this daemon among the shards of a queue; it stands in the ids that it makes."""
    rules_revision: Count = 0
    """Of its rules, as RulesState has it; shards with the same have the same rules."""
    makers: list[int] = []
    """The other shards that made submissions which have moved here: this one knows their keys."""


class Heartbeat(Message):
    """The consumer lives; extends its reservations. → Alive."""

    id: Id


class Alive(Message):
    """Answer to a heartbeat."""

    id: Id


class CancelWait(Message):
    """One-way: end the parked request `request_id` (Reserve, Wait, Results) now; it gets a last reply all the same."""

    request_id: Id


class ErrorReply(Message):
    """The request with this id failed (0: the connection as a whole; it closes).

    With a `cause`, the receiver makes message and hint of it and the details (`opsq.wording`).
    """

    id: Id
    code: str
    message: str = ""
    hint: str = ""
    cause: str = ""
    details: dict[str, Detail] = {}

    @classmethod
    def of(cls, request_id: int, error: OpsqError, **details: Detail) -> ErrorReply:
        """The reply for an error; `details` are added to its own."""
        if error.cause:
            return cls(request_id, error.code, cause=error.cause, details={**error.details, **details})
        return cls(request_id, error.code, error.message, error.hint)

    def error(self) -> OpsqError:
        """The error that this reply stands for."""
        return from_code(self.code, self.message, self.hint, self.cause, self.details)


class Draining(Message):
    """Push: the daemon is about to end; no reserve is answered any more."""

    drain_s: float


class ShardsMissing(Message):
    """Push, by a client over shards to itself: the answer to `request_id`, which follows, is without these.

    Each by number and address, as `3 (b:7400)`; by its address alone, if it has never answered. `effect`: what is asked
    for is missing, what is to be changed is not, rules change when the shards are back, or they are waited for.
    """

    request_id: Id
    shards: list[str]
    effect: Literal["missing", "unchanged", "rules", "waiting"] = "missing"


Requests = Hello | Heartbeat | CancelWait
Replies = Welcome | Alive | ErrorReply | Draining | ShardsMissing

"""What concerns all shards at once: which shard is asked what, and how one answer is made of theirs.

It must not send anything, nor know which shards can be reached.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from typing import Generic, NamedTuple, TypeVar

from msgspec.structs import replace

from opsq.client.core.pending_requests import id_of
from opsq.errors import NotFound
from opsq.wire import messages as m

Q = TypeVar("Q", bound=m.Request)
R = TypeVar("R", bound=m.Reply)


class Members(NamedTuple):
    """The shards of a queue, as far as its client knows them."""

    addresses: Mapping[int, str]
    """By number, as people know them."""
    unreached: Sequence[str] = ()
    """Addresses of those whose numbers are not known, as they have never answered."""

    def name(self, shard: int) -> str:
        """A shard, in words for people."""
        address = self.addresses.get(shard, "")
        return f"shard {shard} ({address})" if address else f"shard {shard}"


class Gathering(ABC, Generic[Q, R]):
    """One request to all shards. `ask` comes first, then `merged`, once each.

    Args:
        request: what the client asks.
        members: whom it could ask.
    """

    def __init__(self, request: Q, members: Members) -> None:
        self.request = request
        self.members = members

    def ask(self, shards: Sequence[int]) -> dict[int, m.Request]:
        """What each shard is asked, under the id of the client's request; a shard that need not be asked is left out.

        Args:
            shards: the numbers of all that have one, also of those that cannot be reached now.
        """
        return dict.fromkeys(shards, self.request)

    def merged(self, replies: Mapping[int, m.Reply]) -> m.Reply:
        """The answer to the client's request.

        An error of one shard is that of all; that one has not found what others have is none.

        Args:
            replies: of the shards that were asked and have answered, by number. None: none had to be asked.
        """
        in_order = {shard: replies[shard] for shard in sorted(replies)}
        answers = {shard: reply for shard, reply in in_order.items() if not isinstance(reply, m.ErrorReply)}
        errors = [reply for reply in in_order.values() if isinstance(reply, m.ErrorReply)]
        if answers:
            errors = [error for error in errors if error.code != NotFound.code]
        if errors:
            return replace(self._error(errors[0], in_order.values()), id=id_of(self.request))
        return self.answer(answers)  # type: ignore[arg-type]  # each kind of request has one kind of answer

    @abstractmethod
    def answer(self, answers: dict[int, R]) -> m.Reply:
        """The answer to the client, of those of shards, in the order of their numbers; none of them is an error."""

    def _error(self, error: m.ErrorReply, replies: Iterable[m.Reply]) -> m.ErrorReply:
        """The error for the client."""
        return error

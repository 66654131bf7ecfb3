"""Shards that only note what they are asked; the test answers for them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from msgspec.structs import replace

from opsq.client.core.address import ShardedAddress
from opsq.client.shards.holdings import Holdings
from opsq.errors import Unreachable
from opsq.wire import messages as m

WELCOME = m.Welcome(0, m.VERSION, "0", "c", 10.0, 1 << 20, 1 << 20, True, True, "/store", "mark")


class FakeTimer:
    """What is to be called later: when the test calls it, unless it was cancelled."""

    def __init__(self, call: Callable[[], None]) -> None:
        self._call = call
        self.is_cancelled = False

    def __call__(self) -> None:
        if not self.is_cancelled:
            self._call()

    def cancel(self) -> None:
        self.is_cancelled = True


class FakeShard:
    """A shard."""

    def __init__(self, number: int) -> None:
        self.number = number
        self.address = f"/run/{number}.sock"
        self.name = f"{number} (/run/{number}.sock)"
        self.is_away = False
        self.away_s = 0.0
        self.is_draining = False
        self.makers: frozenset[int] | None = frozenset()
        self.rules_revision = 0
        self.welcome: m.Welcome | None = WELCOME
        self.holdings = Holdings()
        self.asked: dict[int, tuple[m.Request, Callable[[m.Reply], None]]] = {}
        self.patience_s: dict[int, float] = {}
        self.beats_count = 0
        self.cancelled: list[int] = []
        self.told: list[m.ChunkMask] = []
        self.leases_s: list[float] = []
        self._last_id = 0

    @property
    def hands_out(self) -> bool:
        return not self.is_away and not self.is_draining

    def ask(self, request: Any, on_reply: Callable[[m.Reply], None], patience_s: float = 5.0) -> int:
        self._last_id += 1
        self.asked[self._last_id] = replace(request, id=self._last_id), on_reply
        self.patience_s[self._last_id] = patience_s
        return self._last_id

    def cancel(self, request_id: int) -> None:
        self.cancelled.append(request_id)

    def started(self, chunks: list[m.ChunkMask]) -> None:
        self.told += chunks

    def give_back(self, reply: m.Reserved) -> None:
        held = [m.HeldChunks.of_grant(reply.reservation_id, grant) for grant in reply.grants]
        self.ask(m.Release(0, held), lambda _: None)

    def leased(self, lease_s: float) -> None:
        self.leases_s.append(lease_s)

    def beat(self) -> None:
        self.beats_count += 1

    def gone(self) -> m.ErrorReply:
        return m.ErrorReply.of(0, Unreachable(cause="shard_away", shard=self.name, why=""))

    # --- for tests ---

    @property
    def questions(self) -> list[m.Request]:
        """What has no answer yet."""
        return [request for request, _ in self.asked.values()]

    def answer(self, reply: Any, kind: type | None = None) -> None:
        """Answer the oldest question, of a kind if that is given; `Completed` may be the first of two answers."""
        request_id = next(
            number for number, (request, _) in self.asked.items() if kind is None or isinstance(request, kind)
        )
        request, on_reply = self.asked[request_id]
        if not isinstance(request, m.CompleteAndReserve) or not isinstance(reply, m.Completed):
            del self.asked[request_id]
        on_reply(replace(reply, id=request_id))

    def lose_patience(self) -> None:
        """It has been away for long."""
        while self.asked:
            self.answer(self.gone())


class FakeShards:
    """A set of them, with what a `ShardSet` says."""

    def __init__(self, *numbers: int, shard_by: str = "", served: frozenset[int] = frozenset()) -> None:
        self.all = [FakeShard(number) for number in numbers]
        self.address = ShardedAddress(tuple(shard.address for shard in self.all), "", shard_by, served)
        self._moved: dict[int, int] = {}

    def __iter__(self) -> Any:
        return iter(list(self.all))

    def __len__(self) -> int:
        return len(self.all)

    def __getitem__(self, number: int) -> FakeShard:
        return next(shard for shard in self.all if shard.number == number)

    @property
    def served(self) -> list[FakeShard]:
        only = self.address.served
        return [shard for shard in self.all if not only or shard.number in only]

    @property
    def present(self) -> list[FakeShard]:
        return [shard for shard in self.all if not shard.is_away]

    @property
    def numbers(self) -> list[int] | None:
        found = [shard.number for shard in self.all]
        return None if None in found else found

    def numbered(self, number: int) -> FakeShard | None:
        return next((shard for shard in self.all if shard.number == number), None)

    def owner(self, submission_id: int) -> int:
        return self._moved.get(submission_id, submission_id >> 12 & 1023)

    def note_owner(self, shard: FakeShard, submission_ids: set[int]) -> None:
        for one in submission_ids:
            if self.owner(one) != shard.number:
                self.moved(one, shard.number)

    def moved(self, submission_id: int, number: int) -> None:
        self._moved[submission_id] = number


def submission_id(shard: int, number: int = 1) -> int:
    """An id that a shard has made."""
    return number << 22 | shard << 12


def granted(shard: int, mask: int = 1, number: int = 1) -> m.Reserved:
    """What a shard hands out."""
    described = m.SubmissionContent(submission_id(shard, number), 64, b"", {}, has_attachment=False)
    return m.Reserved(0, 7, 60.0, [m.Grant(submission_id(shard, number), 0, mask, 0, 99)], [described])


NOTHING = m.Reserved(0)
EMPTY = m.Reserved(0, is_empty=True)

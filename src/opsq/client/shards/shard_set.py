"""The shards of a client: those that its addresses name, also when the file with the addresses changes.

It must not know what they are asked.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator

from opsq.client.core.address import Address, ShardedAddress, read_addresses, show_address
from opsq.client.shards.shard import WORK_S, Shard
from opsq.errors import Conflict, NameTaken, OpsqError, Unreachable
from opsq.ids import shard_of
from opsq.wire.messages import Welcome


class ShardSet:
    """All shards of one client.

    Args:
        address: names them.
        open_shard: begins to dial one.
    """

    def __init__(self, address: ShardedAddress, open_shard: Callable[[Address], Shard]) -> None:
        self.address = address
        self._open_shard = open_shard
        self._read: tuple[int, int, int] | None = None
        self._shards = {part: open_shard(part) for part in self._parts()}
        self._leaving: list[Shard] = []
        self._left_out: set[Address] = set()
        self._by_number: dict[int | None, Shard] = {}  # as it was found last
        self._moved: dict[int, int] = {}

    def _parts(self) -> tuple[Address, ...]:
        """The addresses: those that the file has now, which may have changed since they were read."""
        self._read = self._stamp()
        try:
            return read_addresses(self.address.file, self.address.tls_files) if self._read else self.address.parts
        except OpsqError:
            return self.address.parts

    def __iter__(self) -> Iterator[Shard]:
        """Those that are to be used; whether one can be reached now it says itself."""
        return iter(list(self._shards.values()))

    def __len__(self) -> int:
        return len(self._shards)

    @property
    def served(self) -> list[Shard]:
        """Those of which consumers take chunks; one that was never reached may be one of them."""
        only = self.address.served
        if not only:
            return list(self._shards.values())
        return [shard for shard in self if not only or shard.number is None or shard.number in only]

    @property
    def present(self) -> list[Shard]:
        """Those that can be reached now, by number."""
        return sorted((shard for shard in self if not shard.is_away), key=lambda shard: shard.number or 0)

    @property
    def numbers(self) -> list[int] | None:
        """The numbers of all; None: one was never reached, so that nobody knows."""
        found = [shard.number for shard in self]
        return None if None in found else [number for number in found if number is not None]

    def numbered(self, number: int) -> Shard | None:
        """The shard with this number, also one that leaves."""
        found = self._by_number.get(number)
        if found is None or found.number != number or found in self._leaving:
            self._by_number = {shard.number: shard for shard in [*self._leaving, *self]}
        return self._by_number.get(number)

    # --- where a submission is ---

    def owner(self, submission_id: int) -> int:
        """The number of the shard that has a submission."""
        return self._moved.get(submission_id, shard_of(submission_id))

    def note_owner(self, shard: Shard, submission_ids: Iterable[int]) -> None:
        """A shard has handed out chunks of these submissions; one that another shard has made has moved there."""
        for submission_id in submission_ids:
            if shard.number is not None and self.owner(submission_id) != shard.number:
                self.moved(submission_id, shard.number)

    def moved(self, submission_id: int, number: int) -> None:
        """A submission is on another shard than that which made it, or was."""
        if len(self._moved) >= _MOVED_LIMIT:
            del self._moved[next(iter(self._moved))]
        self._moved[submission_id] = number

    # --- changes ---

    def problem(self) -> OpsqError | None:
        """Why these daemons cannot be one queue; None: they can, as far as they have answered."""
        seen: dict[int, Shard] = {}
        for shard in self.present:
            if shard.number is None:
                return Conflict(cause="shard_without_number", address=show_address(shard.address))
            if other := seen.get(shard.number):
                addresses = f"{show_address(other.address)} and {show_address(shard.address)}"
                return Conflict(cause="shards_alike", shard=shard.number, addresses=addresses)
            seen[shard.number] = shard
            if shard.store != (first := next(iter(seen.values()))).store:
                return Conflict(cause="stores_differ", first=first.name, second=shard.name)
        if not seen:
            problems = [shard.problem for shard in self if shard.problem is not None]
            return next(
                (problem for problem in problems if not isinstance(problem, Unreachable)),
                problems[0] if problems else Unreachable(cause="no_shard", addresses=show_address(self.address)),
            )
        return None

    def greeting_problem(self) -> OpsqError | None:
        """Why a client cannot begin.

        A name that only one client may have is taken if it is at any of them: who has it may serve them all.
        """
        taken = (shard.problem for shard in self if isinstance(shard.problem, NameTaken))
        return next(taken, None) or self.problem()

    def read_again(self) -> bool:
        """Use the addresses that the file has now, if it has changed; one that is not in it leaves.

        Raises:
            OpsqError: as `read_addresses`; the shards are as they were.
        """
        if (stamp := self._stamp()) == self._read:
            return False
        self._read = stamp
        self._left_out.clear()
        parts = read_addresses(self.address.file, self.address.tls_files)
        for gone in self._shards.keys() - set(parts):
            self._leaving.append(self._shards.pop(gone))
        for part in parts:
            if part not in self._shards:
                self._shards[part] = self._open_shard(part)
        return True

    def leave_out(self, shard: Shard) -> None:
        """Use a shard no more, until it is admitted again."""
        if self._shards.get(shard.address) is shard:
            del self._shards[shard.address]
            self._left_out.add(shard.address)
            self._by_number.clear()

    def admit_again(self) -> None:
        """Dial those that were left out: what was wrong with them may have been mended."""
        for part in self._left_out:
            self._shards.setdefault(part, self._open_shard(part))
        self._left_out.clear()

    def take_idle(self) -> list[Shard]:
        """Those that leave and with which nothing is to be done any more, or which have left; the caller's to close."""
        idle = [shard for shard in self._leaving if shard.is_idle or shard.away_s >= WORK_S]
        self._leaving = [shard for shard in self._leaving if shard not in idle]
        self._by_number.clear()
        return idle

    def take_all(self) -> list[Shard]:
        """All of them, to be closed."""
        found = [*self._shards.values(), *self._leaving]
        self._shards, self._leaving = {}, []
        return found

    def _stamp(self) -> tuple[int, int, int] | None:
        try:
            found = os.stat(self.address.file) if self.address.file else None
        except OSError:
            return self._read
        return None if found is None else (found.st_mtime_ns, found.st_ino, found.st_size)


_MOVED_LIMIT = 100_000


def joint_welcome(request_id: int, welcomes: list[Welcome]) -> Welcome:
    """What the router says for all that have answered: the least that any of them promises."""
    first = welcomes[0]
    return Welcome(
        request_id,
        min(welcome.version for welcome in welcomes),
        first.server,
        first.consumer,
        min(welcome.heartbeat_s for welcome in welcomes),
        min(welcome.frame_limit_bytes for welcome in welcomes),
        min(welcome.chunk_limit_bytes for welcome in welcomes),
        all(welcome.is_operator for welcome in welcomes),
        all(welcome.is_durable for welcome in welcomes),
        first.store,
        first.store_marker,
        all(welcome.is_own for welcome in welcomes),
    )

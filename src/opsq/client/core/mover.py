"""Moves submissions from one daemon to another: holds them back, copies them, changes who owns them, batch by batch.

All that outlives this process is in the two files, so whoever does it again goes on: what the source has given away is
activated, and what it has not is copied again. It must not connect to anything, nor decide which daemon is meant.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator, Sequence
from typing import Protocol, TypeVar

from opsq.client.core.administration import Caller
from opsq.errors import Conflict, OpsqError, Refused, Unreachable, UsageError
from opsq.wire.messages import (
    Activated,
    ActivateMoved,
    AdmitMover,
    CancelMove,
    Changed,
    CommitMove,
    ConfirmMoved,
    DriveMoves,
    Driving,
    ExportedSlice,
    ExportSlice,
    GiveUpMoved,
    HeldForMove,
    HoldForMove,
    Moves,
    Request,
    ShowMoves,
    StageSlice,
    Welcome,
)

R = TypeVar("R")

BATCH_SUBMISSIONS = 100
TOGETHER_ACTIVE = 10_000
TOGETHER_SUBMISSIONS = 16
"""Copied at a time: with an attachment each, that is 16 MiB."""
CLEARING_S = 0.05
"""How long to wait until the target is asked again that still removes what is left of an earlier attempt."""
CLEARING_LIMIT_S = 60.0
"""For how long it is asked again."""
BUSY_S = 0.05
"""How long to wait until the source is asked again for what was just changing."""
_KEPT_CHANGING = "Other requests kept changing it."
_OF_ONE = frozenset({"moved_key_taken", "arrived_before", "arriving_already", "bad_slice"})
"""Refusals for which a submission stays at the source."""


def check_pair(source: Welcome, target: Welcome) -> None:
    """Make sure that submissions can move from one daemon to the other.

    Raises:
        UsageError: the target has no shard number of its own, or another content store, or one is not durable.
    """
    if target.shard is None:
        raise UsageError(
            "The target daemon has no shard number.",
            hint="Start it with one that no other has: opsq start --shard N",
        )
    if target.shard == (source.shard or 0):
        raise UsageError(
            f"Both daemons are shard {target.shard}, so their ids could be the same.",
            hint="Start the other one, with a new state folder, as another shard: opsq start --shard N",
        )
    if not source.is_durable or not target.is_durable:
        which = "target" if source.is_durable else "source"
        raise UsageError(
            f"The {which} daemon may lose its latest work in a power failure: submissions could be lost, or doubled.",
            hint="Restart it with --durability durable.",
        )
    if source.store_marker != target.store_marker:
        raise UsageError(
            f"The two daemons have different content stores, {source.store} and {target.store}: content does not move.",
            hint="Start the other one with the store of this one: opsq start --store URL",
        )


class MoveCaller(Caller, Protocol):
    """A connection of an operator."""

    def call_all(self, requests: Sequence[Request], kind: type[R]) -> list[R]:
        """Send requests together; their answers in the same order, or the first error after all have been answered."""


class Mover:
    """Moves submissions.

    Args:
        source, target: connections of operators.
        shard: of the target.
        address: of the target, for those who ask the source.
        source_address: of the source, for the operator of the target.
        with_final: move also what has ended.
        wait_s: how long to wait for chunks that are reserved before their reservations are revoked, and for what is
            changing before it is left.

    Attributes:
        left: submissions that cannot move, each with why.
        unknown: those that were given away in an earlier run, and of which the target knows nothing (any more).
    """

    def __init__(
        self,
        source: MoveCaller,
        target: MoveCaller,
        shard: int,
        address: str,
        *,
        source_address: str,
        with_final: bool,
        wait_s: float,
    ) -> None:
        self._source = source
        self._target = target
        self._shard = shard
        self._address = address
        self._source_address = source_address
        self._with_final = with_final
        self._wait_s = wait_s
        self._driver = 0
        self._identity = b""
        self._target_identity = b""
        self._busy: dict[int, str] = {}
        """What cannot move just now, each with why."""
        self.left: dict[int, str] = {}
        self.unknown: list[int] = []

    def run(self) -> Iterator[int]:
        """Finish what was begun, then move all there is; yields how many submissions each commit has moved.

        Raises:
            Unreachable: one of the daemons is gone: do it again.
            Conflict: another mover has begun meanwhile.
            NoRoom, StorageFull: the target has no room for the next.
        """
        yield from self.recover()
        until = time.monotonic() + self._wait_s
        while True:
            count = 0
            for moved_count in self._pass():
                count += moved_count
                yield moved_count
                until = time.monotonic() + self._wait_s
            if not count and not self._busy:
                return
            if not count and time.monotonic() >= until:
                self.left |= self._busy
                return
            if not count:
                time.sleep(BUSY_S)

    def recover(self) -> Iterator[int]:
        """Activate what the source has given away to this target, and have the rest of what is there removed."""
        source = self._source
        here = source.call(DriveMoves(source.next_id()), Driving)
        try:
            there = self._admit(here)
        except Conflict as error:
            above = error.details.get("driver")
            if not isinstance(above, int):
                raise
            # Either another mover has begun at the source, which says so now, or its file was restored since.
            here = source.call(DriveMoves(source.next_id(), above), Driving)
            there = self._admit(here)
        self._driver, self._identity, self._target_identity = here.driver, here.identity, there.identity
        # No other mover commits anything any more, so all is known that the source has given away.
        departed = self._departed()
        for start in range(0, len(departed), TOGETHER_ACTIVE):
            yield self._activate(departed[start : start + TOGETHER_ACTIVE])
        while given_up := self._arriving().difference(departed):
            self._give_up(sorted(given_up))

    def _admit(self, here: Driving) -> Driving:
        target = self._target
        return target.call(AdmitMover(target.next_id(), here.identity, here.driver, self._source_address), Driving)

    def _departed(self) -> list[int]:
        """What the source has given to this target, and does not know to be active there."""
        found: list[int] = []
        after = 0
        while True:
            rows = self._source.call(ShowMoves(self._source.next_id(), None, after), Moves).departed
            if not rows:
                return found
            found += [one.submission_id for one in rows if one.identity == self._target_identity]
            after = rows[-1].submission_id

    def _arriving(self) -> set[int]:
        """What has come to the target from this source and is not active, or the first of that."""
        return set(self._target.call(ShowMoves(self._target.next_id(), self._identity), Moves).arriving)

    def _pass(self) -> Iterator[int]:
        """Go through all submissions once."""
        self.left.clear()
        self._busy.clear()
        after: int | None = 0
        limit = BATCH_SUBMISSIONS
        while after is not None:
            request = HoldForMove(self._source.next_id(), after, limit, self._wait_s, self._with_final)
            held = self._source.call(request, HeldForMove)
            self.left |= dict.fromkeys(held.left, "Too many submissions wait for it, or it for too many.")
            self._busy |= dict.fromkeys(held.busy, _KEPT_CHANGING)
            try:
                if held.submission_ids:
                    self._give(held)
            except (Conflict, UsageError) as error:
                if error.cause == "other_driver" or (isinstance(error, UsageError) and error.cause not in _OF_ONE):
                    raise
                if error.cause in _OF_ONE and limit > 1:
                    limit = 1  # the others of this batch can move
                    continue
                refused = self.left if error.cause in _OF_ONE else self._busy
                refused |= dict.fromkeys(held.submission_ids, error.message)
            else:
                if held.submission_ids:
                    yield self._activate(held.submission_ids)
                    limit = min(2 * limit, BATCH_SUBMISSIONS)
            after = held.next_after

    def _give(self, held: HeldForMove) -> None:
        """Copy what is held, and have the source give it away; if that fails, drop it unless it may be given away."""
        ids, source = held.submission_ids, self._source
        is_asked = False
        try:
            for start in range(0, len(ids), TOGETHER_SUBMISSIONS):
                self._copy(held, ids[start : start + TOGETHER_SUBMISSIONS])
            commit = CommitMove(source.next_id(), held.move, self._target_identity, self._shard, self._address)
            is_asked = True
            source.call(commit, Changed)
        except BaseException as error:
            # Once it was asked, only its refusal says that it has not.
            is_free = isinstance(error, Conflict | Refused) if is_asked else not isinstance(error, Unreachable)
            if is_free:
                # What ends the move is raised; after a refusal it goes on, so there the loss of a connection is.
                is_refusal = isinstance(error, Conflict | UsageError)
                with contextlib.suppress(*(Conflict, Refused) if is_refusal else (OpsqError,)):
                    self._drop(held)
            raise

    def _activate(self, submission_ids: list[int]) -> int:
        """Have the target hand these out, and the source note that; how many were not active yet.

        What was active, and was removed there before this was noted, is not known there. So there is nothing to do.
        """
        activated = self._target.call(ActivateMoved(self._target.next_id(), submission_ids, self._identity), Activated)
        if activated.unknown:
            shown = self._source.call(ShowMoves(self._source.next_id(), self._target_identity), Moves)
            self.unknown += [one for one in activated.unknown if one not in shown.arriving]  # those are coming back
        self._source.call(ConfirmMoved(self._source.next_id(), submission_ids), Changed)
        return activated.count

    def _give_up(self, submission_ids: list[int]) -> None:
        self._send([GiveUpMoved(self._target.next_id(), submission_ids, self._identity, self._driver)])

    def _drop(self, held: HeldForMove) -> None:
        """Do not move these after all."""
        self._give_up(held.submission_ids)
        self._source.call(CancelMove(self._source.next_id(), held.move), Changed)

    def _copy(self, held: HeldForMove, submission_ids: list[int]) -> None:
        """Stage some submissions, a slice of each at a time: what comes together is one commit there."""
        places: dict[int, tuple[int, int, int] | None] = dict.fromkeys(submission_ids)
        number = 0
        while places:
            source, target = self._source, self._target
            parts = source.call_all(
                [ExportSlice(source.next_id(), one, after) for one, after in places.items()], ExportedSlice
            )
            slices = [
                StageSlice(
                    target.next_id(),
                    self._identity,
                    held.move,
                    one,
                    number,
                    part.content,
                    part.after is None,
                    self._driver,
                )
                for one, part in zip(places, parts, strict=True)
            ]
            self._send(slices)
            places = {one: part.after for one, part in zip(places, parts, strict=True) if part.after is not None}
            number += 1

    def _send(self, requests: Sequence[Request]) -> None:
        """Have the target do these, again while it still removes what is in the way: to do one twice is no mistake.

        Raises:
            Conflict: it refuses one, or has not removed that within `CLEARING_LIMIT_S`.
        """
        until = time.monotonic() + CLEARING_LIMIT_S
        while True:
            try:
                self._target.call_all(requests, Changed)
            except Conflict as error:
                if error.cause != "clearing" or time.monotonic() >= until:
                    raise
                time.sleep(CLEARING_S)
            else:
                return

"""Messages by which submissions move from one daemon, the source, to another, the target. For operators only.

A *mover* is a client of both: it has the source hold submissions back, copies them slice by slice, has the source give
them away in one commit, and then has the target hand them out. This file must not define what a user asks for.
"""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta

from opsq.wire.messages.fields import Bytes, Count, Duration, Id, Int64, Message, Record, RequestKey

MovedIds = Annotated[list[Id], Meta(max_length=10_000)]
ShardNumber = Annotated[int, Meta(ge=0, le=1023)]


class DriveMoves(Message):
    """To the source: be the only one who moves submissions from it; what other movers hold is free. → Driving.

    The answer has a number, higher than that of any mover before. `above`: the target has refused the number that this
    mover has, and knows this one: the source was restored from before that one was given, and has to go on above it.
    """

    id: Id
    above: Annotated[int, Meta(ge=0, le=1 << 40)] = 0


class AdmitMover(Message):
    """To the target: be the only one who moves submissions there from a file, by the number from DriveMoves. → Driving.

    What comes of a mover with a lower number is refused from then on, and so is a number that is known here already:
    the refusal has the highest of these as `driver`. `address`: of the source, for people.
    """

    id: Id
    source: RequestKey
    driver: Count
    address: Annotated[str, Meta(max_length=1024)] = ""


class Driving(Message):
    """Answer to DriveMoves and AdmitMover: the identity of this file, and the number of the mover."""

    id: Id
    identity: bytes
    driver: Count


class HoldForMove(Message):
    """To the source: hand out nothing more of the next submissions behind `after`, and wait for what is reserved.

    → HeldForMove, when nothing changes them any more: after `wait_s` at the latest, when reservations are revoked.
    They are free again with CancelMove, or when the connection ends.
    """

    id: Id
    after: Id = 0
    limit: Annotated[int, Meta(ge=1, le=1000)] = 100
    wait_s: Duration = 30.0
    with_final: bool = False
    """Also those that have ended."""


class HeldForMove(Message):
    """Answer to HoldForMove. `move` names them in what follows; `next_after` None: there are no more behind them.

    `left` are submissions that cannot move: too many others wait for them, or they for others. `busy` are those that
    cannot be held now, since another request is ending, reviving or moving them: ask again.
    """

    id: Id
    move: RequestKey
    submission_ids: list[Id]
    next_after: Id | None
    left: list[Id]
    busy: list[Id] = []


class ExportSlice(Message):
    """To the source: give a slice of a held submission; `after` None: its header. → ExportedSlice."""

    id: Id
    submission_id: Id
    after: tuple[Id, Int64, Int64] | None = None


class ExportedSlice(Message):
    """Answer to ExportSlice, for StageSlice. `after` goes into the next call; None: this is the last."""

    id: Id
    content: bytes
    after: tuple[int, int, int] | None


class StageSlice(Message):
    """To the target: keep a slice of a submission that nobody sees yet; the header has number 0. → Changed.

    0: it was here already.
    """

    id: Id
    source: RequestKey
    move: RequestKey
    submission_id: Id
    number: Count
    content: Bytes
    is_last: bool
    driver: Count = 0


class CommitMove(Message):
    """To the source: give held submissions away to the target. → Changed. This commit is the point of no return."""

    id: Id
    move: RequestKey
    identity: RequestKey
    shard: ShardNumber
    address: Annotated[str, Meta(min_length=1, max_length=1024)]


class CancelMove(Message):
    """To the source: do not move what is held under this name after all. → Changed (0: nothing is)."""

    id: Id
    move: RequestKey


class ActivateMoved(Message):
    """To the target: hand out submissions that the source has given away, all in one commit. → Activated."""

    id: Id
    submission_ids: MovedIds
    source: RequestKey


class Activated(Message):
    """Answer to ActivateMoved: how many were not active yet, and those of which the target knows nothing.

    A target that has activated a submission knows it until it is removed, and knows where it went if it has moved on:
    not to this source, though, which has just given it away.
    """

    id: Id
    count: Count
    unknown: list[Id] = []


class GiveUpMoved(Message):
    """To the target: drop what is here of submissions that the source has not given away. → Changed."""

    id: Id
    submission_ids: MovedIds
    source: RequestKey
    driver: Count


class GiveUpSource(Message):
    """To the target: drop what is here of submissions from a file that is gone for good. → SourceGivenUp.

    `with_complete`: also those of which everything is here. The source may have given these away, and then they are
    nowhere else.
    """

    id: Id
    source: RequestKey
    with_complete: bool = False


class SourceGivenUp(Message):
    """Answer to GiveUpSource: how many are dropped, and how many from that file are still here."""

    id: Id
    count: Count
    left_count: Count


class ConfirmMoved(Message):
    """To the source: the target hands them out. → Changed."""

    id: Id
    submission_ids: MovedIds


class ShowMoves(Message):
    """Ask for moves that are under way, by which a mover goes on where one was killed. → Moves.

    `source`: of which file the `arriving` ones are asked for; `after`: behind which id the `departed` ones are.
    """

    id: Id
    source: RequestKey | None = None
    after: Id = 0


class ArrivingState(Record):
    """How many submissions are on their way here from a file, by its identity, and of how many everything is here.

    `address`: where its daemon was, as the mover has it.
    """

    source: bytes
    submissions_count: Count
    complete_count: Count
    address: str = ""


class DepartedSubmission(Record):
    """A submission that the source has given away, not known to be active at its target."""

    submission_id: Id
    identity: bytes
    shard: int
    address: str


class Moves(Message):
    """Answer to ShowMoves: the identity of this file, and up to 10000 submissions on their way from it and to it."""

    id: Id
    identity: bytes
    departed: list[DepartedSubmission]
    arriving: list[Id]


Requests = (
    DriveMoves
    | AdmitMover
    | HoldForMove
    | ExportSlice
    | StageSlice
    | CommitMove
    | CancelMove
    | ActivateMoved
    | GiveUpMoved
    | GiveUpSource
    | ConfirmMoved
    | ShowMoves
)
Replies = Driving | HeldForMove | ExportedSlice | Activated | SourceGivenUp | Moves

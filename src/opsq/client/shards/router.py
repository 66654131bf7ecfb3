"""Takes what a client asks, has shards answer it, and gives the client one answer.

What concerns a submission goes to its shard, what concerns all is asked of all and merged. It must not know sockets.
`placing` decides where a new submission goes, `chunk_calls` what becomes of chunks.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any, Literal

from msgspec.structs import replace

from opsq.client.core.address import show_address
from opsq.client.shards.chunk_calls import ChunkCalls
from opsq.client.shards.merging import Cursors, Members, gathering
from opsq.client.shards.parking import Later
from opsq.client.shards.placement import Placement
from opsq.client.shards.placing import Placing
from opsq.client.shards.poll import Replies, code_of, is_gone, poll
from opsq.client.shards.rules_repair import RulesRepair
from opsq.client.shards.schedule_routes import ScheduleRoutes
from opsq.client.shards.shard import ERRAND_S, WORK_S, Shard
from opsq.client.shards.shard_set import ShardSet
from opsq.errors import Moved, NotFound, UsageError
from opsq.wire import messages as m

_HELD = (m.Complete, m.Fail, m.Release, m.Extend, m.Reclaim)
_OF_SUBMISSION = (m.Show, m.Wait, m.GetAttachment, m.Results, m.Cancel, m.Remove, m.ExplainWork)
_SCHEDULES = (
    m.PutSchedule,
    m.RemoveSchedule,
    m.PauseSchedule,
    m.ResumeSchedule,
    m.TriggerSchedule,
    m.BackfillSchedule,
)
_CHANGES = (m.Requeue, m.Drop, m.Prune, m.Vacuum, m.ReleaseConsumer)
Effect = Literal["missing", "unchanged", "rules", "waiting"]
_RULES = (m.Pause, m.Resume, m.Limit, m.Unlimit, m.Weight)


class Router:
    """The one daemon that a client of several sees.

    Args:
        shards: what it is made of.
        say: gives the client a message.
        wall_ms: the wall clock.
        later: calls something in so many seconds.
    """

    def __init__(
        self,
        shards: ShardSet,
        say: Callable[[m.Reply], None],
        wall_ms: Callable[[], int],
        later: Later,
    ) -> None:
        self._shards = shards
        self._say = say
        self._wall_ms = wall_ms
        self._cursors = Cursors()
        self._chunks = ChunkCalls(shards, say, self._say_missing, later)
        self._placing = Placing(shards)
        self._schedules = ScheduleRoutes(shards)
        self._repair = RulesRepair(shards)
        self._waits: dict[int, tuple[Shard, int]] = {}  # calls that one shard has parked
        self._placements: dict[int, Placement] = {}

    def take(self, request: m.Request) -> None:
        """Have a request answered, now or later."""
        match request:
            case m.Heartbeat():
                self._say(m.Alive(request.id))
                for shard in self._shards:
                    shard.beat()
            case m.CancelWait():
                self._cancel(request.request_id)
            case m.Reserve():
                self._chunks.parking.reserve(request)
            case m.CompleteAndReserve():
                self._chunks.complete_and_reserve(request)
            case m.Started():
                self._chunks.started(request.chunks)
            case m.Submit():
                placement = self._placing.submit(request, functools.partial(self._answer_wait, request))
                if placement is not None:
                    self._placements[request.id] = placement
            case m.CheckCapacity():
                answer = functools.partial(self._answer_wait, request)
                self._placing.check_capacity(request, answer, functools.partial(self._note_wait, request.id))
            case m.Withdraw():
                self._withdraw(request)
            case _ if isinstance(request, _HELD):
                self._chunks.divide(request)
            case _ if isinstance(request, _RULES):
                self._repair.then(functools.partial(self._gather, request))
            case _ if isinstance(request, _SCHEDULES) or (isinstance(request, m.ShowSchedules) and request.name):
                self._schedules.take(request, functools.partial(self._answer, request))
            case _ if (submission_id := _submission_of(request)) is not None:
                self._pass_on(request, submission_id)
            case _:
                self._gather(request)

    def begin(self) -> None:
        """The shards have been greeted; what they said of their rules is new."""
        self._repair.compare()

    def changed(self, shard: Shard) -> None:
        """A shard has been reached, or lost."""
        if not shard.is_away:
            self._repair.returned(shard)
        self._chunks.changed(shard)

    def end(self) -> None:
        """The client has gone: nobody waits for chunks any more."""
        self._chunks.parking.end()

    def chosen_anew(self) -> None:
        """Shards were added, or removed."""
        self._chunks.parking.chosen_anew()
        self._placing.chosen_anew()

    def pushed(self, shard: Shard, push: m.Revoked | m.Draining) -> None:
        """A shard says something unasked; that it ends is told when all do."""
        if isinstance(push, m.Revoked) or not any(one.hands_out for one in self._shards):
            self._say(push)
        if isinstance(push, m.Draining):
            self._chunks.parking.look_again()

    # --- one shard ---

    def _pass_on(self, request: Any, submission_id: int, moves_count: int = 0) -> None:
        """Ask the shard that has a submission; if it has moved, the one that has it now."""
        number = self._shards.owner(submission_id)
        shard = self._shards.numbered(number)
        if shard is None:
            self._answer(request, self._unknown(submission_id, number))
            return

        def heard(reply: m.Reply) -> None:
            self._waits.pop(request.id, None)
            if code_of(reply) == Moved.code and moves_count < len(self._shards):
                self._shards.moved(submission_id, int(reply.details["shard"]))  # type: ignore[union-attr]
                self._pass_on(request, submission_id, moves_count + 1)
            else:
                self._answer(request, reply)

        patience_s = WORK_S if isinstance(request, m.Wait | m.Results) else ERRAND_S
        self._waits[request.id] = shard, shard.ask(request, heard, patience_s)

    def _unknown(self, submission_id: int, number: int) -> m.ErrorReply:
        """The answer about a submission whose shard is not among these, or was never reached."""
        away = next((shard for shard in self._shards if shard.number is None), None)
        if away is not None:
            return away.gone()
        numbers = ", ".join(map(str, sorted(self._shards.numbers or [])))
        return m.ErrorReply.of(
            0, NotFound(cause="submission_elsewhere", submission_id=submission_id, shard=number, shards=numbers)
        )

    def _cancel(self, request_id: int) -> None:
        if self._chunks.parking.cancel(request_id):
            return
        if (placement := self._placements.get(request_id)) is not None:
            placement.cancel()
        elif request_id in self._waits:
            shard, asked_id = self._waits[request_id]
            shard.cancel(asked_id)

    def _note_wait(self, request_id: int, shard: Shard, asked_id: int) -> None:
        self._waits[request_id] = shard, asked_id

    def _answer_wait(self, request: Any, reply: m.Reply) -> None:
        self._waits.pop(request.id, None)
        self._placements.pop(request.id, None)
        self._answer(request, reply)

    # --- all shards ---

    def _gather(self, request: Any) -> None:
        """Ask all, and merge what those say that answer in time; the client is told of the others."""
        if isinstance(request, _RULES):
            request = replace(request, revision=max(self._wall_ms(), request.revision))
        try:
            numbered = {shard.number: shard for shard in self._shards if shard.number is not None}
            addresses = {number: show_address(shard.address) for number, shard in numbered.items()}
            unreached = [show_address(shard.address) for shard in self._shards if shard.number is None]
            gathered = gathering(request, Members(addresses, unreached), self._cursors)
            if gathered is None:
                raise UsageError(cause="one_shard_only", request=type(request).__name__)
            questions = gathered.ask(sorted(numbered))
        except UsageError as error:
            self._answer(request, m.ErrorReply.of(0, error))
            return
        missing = [shard for shard in self._shards if shard.number is None]

        def known(replies: Replies) -> None:
            missing.extend(shard for shard, reply in replies.items() if is_gone(reply))
            found = {shard.number or 0: reply for shard, reply in replies.items() if not is_gone(reply)}
            if missing and not found:
                self._answer(request, missing[0].gone())
                return
            answer = gathered.merged(found)
            if missing and not isinstance(answer, m.ErrorReply):
                self._say_missing(request.id, missing, _effect(request))
            self._answer(request, answer)

        poll({numbered[number]: question for number, question in questions.items()}, known)

    def _withdraw(self, request: m.Withdraw) -> None:
        """Take a Submit back wherever it may have arrived; only all of them know that it never will be there."""

        def known(replies: Replies) -> None:
            found = list(replies.values())
            made = [one for one in found if isinstance(one, m.Found) and one.submission_id is not None]
            failed = [one for one in found if isinstance(one, m.ErrorReply)]
            self._answer(request, (made or failed or found)[0])

        poll(dict.fromkeys(self._shards, request), known, WORK_S)

    # --- the client ---

    def _answer(self, request: Any, reply: m.Reply) -> None:
        self._say(replace(reply, id=request.id))

    def _say_missing(self, request_id: int, shards: Sequence[Shard], effect: Effect = "waiting") -> None:
        self._say(m.ShardsMissing(request_id, [shard.name for shard in shards], effect))


def _effect(request: Any) -> Effect:
    """What it means for a request that a shard does not answer."""
    if isinstance(request, _RULES):
        return "rules"
    return "unchanged" if isinstance(request, _CHANGES) else "missing"


def _submission_of(request: Any) -> int | None:
    """The one submission that a request is about."""
    if isinstance(request, m.History):
        return request.where.submission_id
    if isinstance(request, (*_OF_SUBMISSION, m.Dead, m.Running, m.Requeue, m.Drop)):
        found: int | None = request.submission_id
        return found
    return None

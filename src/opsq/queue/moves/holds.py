"""Submissions that are held back so that they can move: nothing of them is handed out, and then nothing changes them.

In memory only: when the process ends, or the connection of the mover, they are free again. It must not give anything
away.
"""

from __future__ import annotations

from collections.abc import Callable
from enum import Enum, auto

import msgspec

from opsq.clock import MonoNs, Now
from opsq.errors import Conflict, OpsqError
from opsq.queue.batch import Batch, request_id
from opsq.queue.chunks.reservations import Reservations
from opsq.queue.folding import Folding
from opsq.queue.live_submission import LiveSubmission
from opsq.queue.peer import Peer
from opsq.queue.state import EngineState
from opsq.store import dependencies, move_units
from opsq.store.submissions import FINAL_STATES
from opsq.wire.messages import ChunkMask, ErrorReply, HeldForMove, Revoked

LOOK_NS = 20_000_000
"""How often it is looked at whether what was reserved has come back."""


class Stage(Enum):
    """How far a hold is."""

    WAITING = auto()
    """For what is reserved: chunks are still completed."""
    STILL = auto()
    """Nothing changes them, and all of their history is being folded."""
    READY = auto()
    """The file says all about them."""
    LEAVING = auto()
    """The commit that gives them away is under way."""


class Hold(msgspec.Struct, eq=False):
    """Submissions that move in one commit, for one mover."""

    peer: Peer
    key: bytes
    submissions: list[LiveSubmission]
    deadline: MonoNs
    reply: HeldForMove
    with_final: bool
    is_unit: bool
    """It is all that must move with one submission, so its mover cannot ask for less."""
    stage: Stage = Stage.WAITING
    open_waits_count: int = 0
    """What they waited for when they became ready."""


class Holds:
    """All that is held, by the key of the move."""

    def __init__(self, state: EngineState, reservations: Reservations, folding: Folding) -> None:
        self._state = state
        self._reservations = reservations
        self._folding = folding
        self._by_key: dict[bytes, Hold] = {}
        self._driver: Peer | None = None
        self._next_look: MonoNs = state.now.mono

    def drive(self, peer: Peer) -> None:
        """This mover is the only one from now on: what others hold is free, but for what is being given away."""
        self._driver = peer
        for hold in list(self._by_key.values()):
            if hold.peer is not peer and hold.stage is not Stage.LEAVING:
                is_answered = hold.stage is Stage.READY
                self.release(hold)
                if not is_answered:
                    self._state.refuse(hold.peer, hold.reply.id, Conflict(cause="other_driver"))

    def check_driver(self, peer: Peer) -> None:
        """`Conflict` unless this is the only mover."""
        if peer is not self._driver:
            raise Conflict(cause="other_driver")

    def begin(self, hold: Hold) -> None:
        """Hand out nothing more of these, which are pinned; `tick` answers the mover as soon as they are at rest."""
        self._by_key[hold.key] = hold
        for submission in hold.submissions:
            submission.is_held = True
        self._state.note_news()

    def get(self, key: bytes, peer: Peer) -> Hold | None:
        """What this mover holds under a key, if it is ready."""
        hold = self._by_key.get(key)
        return hold if hold is not None and hold.peer is peer and hold.stage is Stage.READY else None

    def ready_of(self, peer: Peer, submission_id: int) -> LiveSubmission | None:
        """A submission that this mover may export."""
        for hold in self._by_key.values():
            if hold.peer is peer and hold.stage in {Stage.READY, Stage.LEAVING}:
                for submission in hold.submissions:
                    if submission.id == submission_id:
                        return submission
        return None

    def cancel(self, key: bytes, peer: Peer) -> int:
        """Free what a mover holds under a key; how many submissions that are."""
        hold = self._by_key.get(key)
        if hold is None or hold.peer is not peer or hold.stage is Stage.LEAVING:
            return 0
        self.release(hold)
        return len(hold.submissions)

    def stay(self, hold: Hold) -> None:
        """What was being given away is held still, if its mover is there and still the only one."""
        hold.stage = Stage.READY
        if hold.peer is not self._driver or not hold.peer.is_connected:
            self.release(hold)

    def release(self, hold: Hold) -> None:
        """Free what is held: it goes on as if nothing had been."""
        self._by_key.pop(hold.key, None)
        for submission in list(hold.submissions):
            self._free(submission, was_still=hold.stage is not Stage.WAITING)
        for action in self.take_waiting():
            action()

    def gone(self, hold: Hold) -> None:
        """What was held is another daemon's."""
        self._by_key.pop(hold.key, None)
        for action in self.take_waiting():
            action()

    def take_waiting(self) -> list[Callable[[], None]]:
        """What others wanted to do to held submissions; they try again."""
        waiting, self._state.after_moves = self._state.after_moves, []
        return waiting

    def disconnect(self, peer: Peer) -> None:
        """A mover is gone: free what it held, but for what is being given away."""
        if peer is self._driver:
            self._driver = None
        for hold in [hold for hold in self._by_key.values() if hold.peer is peer]:
            if hold.stage is not Stage.LEAVING:
                self.release(hold)

    def _free(self, submission: LiveSubmission, *, was_still: bool) -> None:
        submission.is_held = False
        submission.pins -= 1
        if was_still:
            submission.is_closing = False
        if submission.state not in FINAL_STATES:
            self._state.became_free(submission)
        self._state.forget_if_over(submission)

    # --- time ---

    def tick(self, now: Now) -> None:
        """Look whether what is held has come to rest; revoke what is reserved for too long."""
        if not self._by_key or now.mono < self._next_look:
            return
        self._next_look = MonoNs(now.mono + LOOK_NS)
        for hold in list(self._by_key.values()):
            if hold.stage is Stage.WAITING:
                self._look(hold, now)

    def next_due(self) -> MonoNs | None:
        """When `tick` has something to look at."""
        is_waiting = any(hold.stage is Stage.WAITING for hold in self._by_key.values())
        return self._next_look if is_waiting else None

    def _look(self, hold: Hold, now: Now) -> None:
        state = self._state
        if state.has_untold:
            return  # ends of others may change them
        for submission in list(hold.submissions):
            has_ended = submission.state in FINAL_STATES and not submission.is_closing
            # One that waits on all the same moves with it: at the target, what is not there counts as removed.
            if has_ended and not hold.with_final and not dependencies.is_awaited(state.reader, submission.id):
                hold.submissions.remove(submission)
                self._free(submission, was_still=False)
        busy = [submission for submission in hold.submissions if not _is_at_rest(submission)]
        if not busy:
            self._hold_still(hold)
        elif now.mono >= hold.deadline:
            for submission in busy:
                self._revoke(submission)

    def _hold_still(self, hold: Hold) -> None:
        """Let nothing change them, and answer when all that was before is committed and folded."""
        hold.stage = Stage.STILL
        for submission in hold.submissions:
            submission.is_closing = True
        batch, folding = self._state.batch, self._folding
        batch.after.append(lambda _: folding.after(folding.last_seq, lambda _: self._answer(hold)))
        batch.on_failed.append(lambda error: self._fail(hold, batch, error))

    def _answer(self, hold: Hold) -> None:
        if self._by_key.get(hold.key) is not hold:
            return
        if self._state.has_untold:  # of an end that was being committed as they came to rest
            self._wait_on(hold)
        else:
            hold.stage = Stage.READY
            ids = [submission.id for submission in hold.submissions]
            hold.open_waits_count = move_units.open_waits_count(self._state.reader, ids)
            self._state.reply(hold.peer, msgspec.structs.replace(hold.reply, submission_ids=ids))

    def _wait_on(self, hold: Hold) -> None:
        hold.stage = Stage.WAITING
        for submission in hold.submissions:
            submission.is_closing = False

    def _fail(self, hold: Hold, batch: Batch, error: OpsqError) -> None:
        """Their batch is gone; if only for the sake of another request, they come to rest with the next."""
        if self._by_key.get(hold.key) is not hold:
            return
        is_made_again = any(peer is hold.peer and request_id(one) == hold.reply.id for _, peer, one in batch.again)
        if error.cause == "batch_undone" and not is_made_again:
            self._wait_on(hold)
        else:
            self.release(hold)
            self._state.reply(hold.peer, ErrorReply.of(hold.reply.id, error))

    def _revoke(self, submission: LiveSubmission) -> None:
        for work in list(submission.blocks.values()):
            for part in list(work.parts):
                mask = part.mask & ~work.settling
                if mask:
                    peer = part.reservation.peer
                    self._reservations.give_back_part(part, mask)
                    if peer is not None:
                        revoked = [ChunkMask(submission.id, work.index, mask)]
                        self._state.reply(peer, Revoked(revoked, "reservation_lost"))


def _is_at_rest(submission: LiveSubmission) -> bool:
    """Whether nobody holds a chunk of it, and nothing about it is being committed."""
    return (
        not submission.reserved_count
        and not submission.is_closing
        and submission.pins == 1
        and not any(work.settling or work.parts for work in submission.blocks.values())
    )

"""What the parts of the engine share: the database, the batch being formed, what is in memory of submissions, and the outbox.

Must not decide anything; each part of the engine is given the one `EngineState` and changes only what it owns.
"""

from __future__ import annotations

import random
import secrets
from collections import OrderedDict
from collections.abc import Callable, Iterable
from functools import partial
from hashlib import blake2b
from struct import Struct
from typing import TYPE_CHECKING

import apsw

from opsq.clock import MonoNs, Now
from opsq.errors import OpsqError
from opsq.ids import SubmissionId
from opsq.queue.batch import Batch
from opsq.queue.chunks.live_submission import BlockWork, LiveSubmission
from opsq.queue.dispatch.fair import FairFront
from opsq.queue.dispatch.front import Front, Walk, make_front
from opsq.queue.dispatch.gates import Gates
from opsq.queue.dispatch.rules import NO_LIMIT, Rules
from opsq.queue.policy import Policy
from opsq.queue.timers import Timers
from opsq.store import backlog, lanes, meta, rules, submissions
from opsq.store.backlog import AttemptRow
from opsq.store.database import Database
from opsq.store.lanes import GoneLane
from opsq.strategy.arms import FAIR, SUBMISSION_KEY, Arm, Filter
from opsq.wire.messages import Reply

if TYPE_CHECKING:
    from opsq.queue.chunks.reservations import Reservation
    from opsq.queue.dispatch.reserve import Call
    from opsq.queue.dispatch.until_empty import UntilEmpty
    from opsq.queue.folding import Folding
    from opsq.queue.views.subscriptions import Subscriptions

SUBMISSIONS_KEPT = 20_000
"""Submissions of which the file says all that is known stay in memory up to this number (about 1 KiB each)."""
FRONTS_KEPT = 256
"""Fronts of strategies that are used no more are forgotten beyond this number; a new call walks again."""
DESCRIBED_KEPT = 4096
PASSES_SAVED = 500
"""Passes of a fair front saved by one batch."""
_TOKEN = Struct(">5Q")
"""What the hash of a token covers: five numbers below 2**64."""
RARE_COUNT = 1000
"""Of several lanes the rarest is walked; counting stops here."""


class Peer:
    """One connection, as the engine knows it."""

    __slots__ = ("calls", "consumer", "described", "heard", "is_connected", "reservations", "watches")

    def __init__(self, name: str, now: Now) -> None:
        self.consumer = f"{name or 'anonymous'}-{secrets.token_hex(4)}"
        self.heard: MonoNs = now.mono
        self.is_connected = True
        self.reservations: dict[int, Reservation] = {}
        self.calls: dict[int, Call] = {}
        self.watches: dict[int, int] = {}
        self.described: set[int] = set()


class EngineState:
    """The state that the parts of the engine share."""

    folding: Folding
    subscriptions: Subscriptions
    until_empty: UntilEmpty

    def __init__(self, database: Database, policy: Policy, now: Now, rng: random.Random) -> None:
        self.database = database
        self.reader: apsw.Connection = database.reader
        self._loading = self.reader.cursor()
        self.policy = policy
        self.rng = rng
        self.batch = Batch()
        self.outbox: list[tuple[Peer, Reply]] = []
        self.retries: Timers[tuple[int, int, int, int]] = Timers()
        self.expiries: Timers[SubmissionId] = Timers()
        self.live: OrderedDict[int, LiveSubmission] = OrderedDict()
        self._fronts: OrderedDict[str, Front | FairFront] = OrderedDict()
        self._fair: dict[FairFront, None] = {}
        self._by_lane: dict[int, dict[Front | FairFront, None]] = {}
        self._by_probe: dict[int, dict[Front | FairFront, None]] = {}
        self.lanes_version = 0
        """Grows whenever a lane may have been made or forgotten."""
        self.wanted = NO_LIMIT
        """How many chunks the turn of a submission that is looked for may give: so much the gates must know for sure."""
        self.rows_left = 0
        """How many rows the present turn of the event loop may still visit."""
        self.consumers: dict[Peer, str] = {}
        """Who has asked for chunks and is still connected, and by which strategy last."""
        self.unfolded_done: dict[int, dict[int, int]] = {}
        self.unfolded_completed: dict[int, int] = {}
        self.unique_keys: dict[str, SubmissionId] = {}
        """Unique keys that will be held once the batches under way are committed."""
        self.missed_step_ms = 0
        """By how much the wall clock was stepped between the last process and this one: by so much stored instants lie too early."""
        self.has_until_start = submissions.has_until_start(self.reader)
        """Whether there has been a submission, since the start, whose unique key is to be freed when a chunk of it is handed out."""
        self.states: dict[str, int] = dict.fromkeys(submissions.STATES, 0) | submissions.counts_by_state(self.reader)
        self.has_news = False
        """Something may have become free, or the last open submission has ended: parked calls must be looked at."""
        self.singles: dict[tuple[Peer, float], Reservation] = {}
        """What was opened for calls of one chunk that are being answered together, by connection and length."""
        self.has_granted = False
        """Chunks were handed out since it was last made sure that we own the file."""
        self.is_full = False
        self.is_draining = False
        self.now = now
        self.rules = Rules(self)
        self.gates = Gates(self, self.rules)
        self.gates.watch(self.rules.limited_keys)
        self.starts = meta.get_int(self.reader, "starts")
        self.has_old_delays = backlog.has_attempts(self.reader)
        """Chunks may wait for a retry of which memory knows nothing: the last process left them, or a submission that has been revived."""
        self._keyed = blake2b(digest_size=8, key=meta.secret(self.reader))

    @property
    def is_ending(self) -> bool:
        """The process ends as soon as all is folded: what goes in slices stops between two of them."""
        return self.is_draining and self.folding.is_urgent

    def charge(self, rows_count: int) -> None:
        """Work that visits no rows takes as long as this many: the turn of the event loop ends the sooner."""
        self.rows_left -= rows_count

    # --- submissions in memory ----------------------------------------------------------------------------------------------------

    def submission(self, submission_id: int, beside: Iterable[int] = ()) -> LiveSubmission | None:
        """The submission in memory, loaded if need be, in whatever state; None when there is none. Cost: two look-ups the first time.

        Args:
            beside: submissions that will be asked for soon: if this one is to be loaded, they are with it.
        """
        submission = self.live.get(submission_id)
        if submission is None:
            others = [other for other in beside if other not in self.live and other != submission_id]
            rows = submissions.load(self._loading, submission_id, others)
            for row in reversed(rows):
                submission = self.keep(LiveSubmission(row))
                done = self.unfolded_done.pop(submission.id, None)
                if done is not None:
                    self._overlay(submission, done)
            if submission is None or submission.id != submission_id:
                self.unfolded_done.pop(submission_id, None)
                self.unfolded_completed.pop(submission_id, None)
                return None
        return submission

    def keep(self, submission: LiveSubmission) -> LiveSubmission:
        """Hold a submission in memory, and drop the oldest idle ones when there are too many."""
        self.live[submission.id] = submission
        if not self.has_old_delays:
            submission.has_all_delays = True
        if len(self.live) > SUBMISSIONS_KEPT:
            # Two for each that comes: so all are looked at in turn, and whoever has 10⁵ of them at work does not look at many in vain.
            for _ in range(2):
                oldest_id, oldest = next(iter(self.live.items()))
                if oldest is submission or not oldest.is_plain:
                    self.live.move_to_end(oldest_id)
                else:
                    del self.live[oldest_id]
        return submission

    def _overlay(self, submission: LiveSubmission, done: dict[int, int]) -> None:
        """Put completions that were not folded when the last process ended on top of a freshly loaded submission."""
        for index, mask in done.items():
            work = submission.block(self.reader, index)
            if work.attempts == ():
                work.attempts = None
            work.done |= mask
        completed = self.unfolded_completed.pop(submission.id, 0)
        submission.completed += completed
        submission.unfinished -= completed

    # --- tokens -------------------------------------------------------------------------------------------------------------------

    def mac(self, submission_id: int, block: int, reservation_id: int, attempt: int, granted: int) -> int:
        """The keyed hash of a token, 64 bits; the key lies in the file, so it outlives restarts."""
        keyed = self._keyed.copy()
        keyed.update(_TOKEN.pack(submission_id, block, reservation_id, attempt, granted))
        return int.from_bytes(keyed.digest(), "big")

    # --- fronts -------------------------------------------------------------------------------------------------------------------

    def front(self, name: str, arm: Arm) -> Front | FairFront | None:
        """The front of an arm, by a name that is the same for equal arms; None while no submission has ever been in one of its lanes."""
        front = self._fronts.get(name)
        if front is not None and not front.is_stale:
            self._fronts.move_to_end(name)
            return front
        if front is not None:
            self.retire(self._fronts.pop(name))
        front = self.make(arm)
        if front is not None:
            self._fronts[name] = front
            if len(self._fronts) > FRONTS_KEPT:
                self.retire(self._fronts.popitem(last=False)[1])
        return front

    def front_in_use(self, name: str) -> Front | FairFront | None:
        """The front of an arm if there is one."""
        return self._fronts.get(name)

    def make(
        self,
        arm: Arm,
        on_news: Callable[[], None] | None = None,
        known: tuple[Filter, int] | None = None,
        scope: str = "",
    ) -> Front | FairFront | None:
        """A new front for an arm, told from now on of what becomes free.

        Args:
            known: the lane of one of the filters, if it need not be looked for.
            scope: the fair front that it is part of.
        """
        walk = self.walk(arm, known)
        if walk is None:
            return None
        if arm.gates:
            self.gates.watch(frozenset(gate.key for gate in arm.gates))
        front = (
            FairFront(self, arm, walk, on_news, scope)
            if arm.order is FAIR
            else make_front(arm, walk, self.rng, on_news)
        )
        self._by_lane.setdefault(walk.lane_id, {})[front] = None
        for lane_id in walk.probes:
            self._by_probe.setdefault(lane_id, {})[front] = None
        if isinstance(front, FairFront):
            self._fair[front] = None
        if walk.is_single:
            submission = self.submission(~walk.lane_id)
            if submission is not None and submission.is_open:
                front.offer(submission)
        return front

    def unregister(self, front: Front | FairFront) -> None:
        """A front is not used any more."""
        _leave(self._by_lane, front.walk.lane_id, front)
        for lane_id in front.walk.probes:
            _leave(self._by_probe, lane_id, front)
        if isinstance(front, FairFront):
            self._fair.pop(front, None)
        front.close(self)

    def retire(self, front: Front | FairFront) -> None:
        """Forget a front that may be made again: its passes are saved."""
        if isinstance(front, FairFront):
            self._save_passes(front, len(front.changed))
        self.unregister(front)

    def forget_lanes(self, gone: list[GoneLane]) -> None:
        """Lanes are no more; if their pairs come again they have others. Fronts that know them are to be made anew."""
        for lane in gone:
            self.rules.forget_lane(lane)
            for front in (*self._by_lane.get(lane.id, ()), *self._by_probe.get(lane.id, ())):
                front.is_stale = True
                self.lanes_version += 1

    def save_passes(self, *, everything: bool = False) -> None:
        """Have the batch save the passes that fair fronts have moved."""
        for front in self._fair:
            self._save_passes(front, len(front.changed) if everything else PASSES_SAVED)

    def _save_passes(self, front: FairFront, count: int) -> None:
        rows = dict(list(front.changed.items())[:count])
        if not rows:
            return
        for lane_id in rows:
            del front.changed[lane_id]
        self.batch.statements.append(partial(_save_passes, front.scope, rows))
        self.batch.on_failed.append(partial(_restore_passes, front, rows))

    def walk(self, arm: Arm, known: tuple[Filter, int] | None = None) -> Walk | None:
        """How to walk the submissions that pass the filters of an arm: the rarest lane, and look-ups in the others.

        Returns:
            None when nothing can pass: filters contradict each other, or no submission has ever had one of the pairs.
            A filter that names one submission leaves nothing to walk; the lane is then `~id`.
        """
        own, own_lane = known or (None, 0)
        if arm.filters == (own,) and own_lane > lanes.ALL:
            return Walk(own_lane)
        if arm.is_impossible:
            return None
        absent = tuple(entry.key for entry in arm.filters if entry.value is None)
        for entry in arm.filters:
            if entry.key == SUBMISSION_KEY:
                return Walk(~entry.value, is_single=True) if isinstance(entry.value, int) and entry.value >= 0 else None
        found = [
            own_lane if entry == own else lanes.find(self.reader, entry.key, entry.value)
            for entry in arm.filters
            if entry.value is not None
        ]
        lane_ids = [lane_id for lane_id in found if lane_id is not None]
        if len(lane_ids) < len(found):
            return None
        if len(lane_ids) > 1:
            lane_ids.sort(key=lambda lane_id: lanes.open_count(self.reader, lane_id, RARE_COUNT))
        return Walk(lane_ids[0] if lane_ids else lanes.ALL, tuple(lane_ids[1:]), absent)

    def became_free(self, submission: LiveSubmission) -> None:
        """Chunks of an open submission are free that were not: tell every front that walks one of its lanes."""
        if not submission.is_open:
            return
        self.until_empty.freed(submission)
        by_lane = self._by_lane
        everywhere = by_lane.get(lanes.ALL, {})
        for front in list(everywhere):
            front.offer(submission)
        if len(by_lane) > bool(everywhere):
            for lane_id in (~submission.id, *(lane_id for lane_id, _ in submission.lane_of.values())):
                for front in list(by_lane.get(lane_id, ())):
                    front.offer(submission)
        self.has_news = True

    def give_back(self, submission: LiveSubmission, work: BlockWork) -> None:
        """Chunks of a block were given back: make those that are free available."""
        if submission.state in submissions.FINAL_STATES:
            submission.forget_if_plain(work)
            self.forget_if_over(submission)
        elif submission.give_back(work) or submission.cursor < submission.blocks_count:
            self.became_free(submission)

    def restore_delays(self, submission: LiveSubmission, now: Now) -> None:
        """Set the timers of all chunks of a submission that wait for a retry from before a restart."""
        for work, due, row in submission.restore_delays(self.reader, now):
            self.add_retry(due, submission, work, row)

    def add_retry(self, due: MonoNs, submission: LiveSubmission, work: BlockWork, row: AttemptRow) -> None:
        """Have delayed chunks come back at `due`."""
        self.retries.add(due, (submission.id, work.index, row.mask, row.attempts + row.lost))

    def reply(self, peer: Peer, message: Reply) -> None:
        """Send now: the message tells nothing that waits for a commit."""
        if peer.is_connected:
            self.outbox.append((peer, message))

    def forget_if_over(self, submission: LiveSubmission) -> None:
        """Drop a submission that has ended and has nothing left in memory."""
        if not submission.blocks and not submission.is_closing and not submission.pins and submission.state != "open":
            self.live.pop(submission.id, None)


def _leave(table: dict[int, dict[Front | FairFront, None]], lane_id: int, front: Front | FairFront) -> None:
    fronts = table.get(lane_id)
    if fronts is not None:
        fronts.pop(front, None)
        if not fronts:
            del table[lane_id]


def _save_passes(scope: str, rows: dict[int, float | None], database: Database, _: Batch) -> None:
    rules.put_passes(database.writer, scope, rows.items())


def _restore_passes(front: FairFront, rows: dict[int, float | None], _: OpsqError) -> None:
    front.changed = rows | front.changed

"""What the parts of the engine share: the database, the batch being formed, the submissions in memory, and the outbox.

Must not decide anything: each part of the engine is given the one `EngineState` and changes only what it owns.
"""

from __future__ import annotations

import random
from collections import OrderedDict
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import TypeVar

import apsw

from opsq.clock import MonoNs, Now
from opsq.errors import Moved, NotFound, OpsqError, StorageFull
from opsq.queue.batch import Batch, nothing_to_undo
from opsq.queue.dispatch.fronts import Fronts
from opsq.queue.dispatch.gates import Gates
from opsq.queue.dispatch.rules import NO_LIMIT, Rules
from opsq.queue.dispatch.until_empty import UntilEmpty
from opsq.queue.faults import Fatal, describe_bug
from opsq.queue.lane_set import LaneSets, Stranger
from opsq.queue.live_submission import BlockWork, LiveSubmission
from opsq.queue.peer import Peer
from opsq.queue.policy import Policy
from opsq.queue.timers import Timers
from opsq.queue.unique_keys import UniqueKeys
from opsq.store import arriving, backlog, dependencies, moved, shard, submissions
from opsq.store.backlog import AttemptRow
from opsq.store.database import Database
from opsq.store.disk_use import Details
from opsq.store.moved import MovedRow
from opsq.store.removable import Removable
from opsq.store.removals import Removed
from opsq.wire.messages import ErrorReply, Reply

SUBMISSIONS_KEPT = 20_000
"""Submissions of which the file says all that is known stay in memory up to this number (about 1 KiB each)."""


LOADED_TOGETHER = 8
"""Submissions read by one statement at the start."""
FULL_SHARE = 20

Lack = TypeVar("Lack", bound=OpsqError)


class EngineState:
    """The state that the parts of the engine share."""

    def __init__(
        self, database: Database, policy: Policy, now: Now, rng: random.Random, folders: Sequence[Path] = ()
    ) -> None:
        self.database = database
        self.reader: apsw.Connection = database.reader
        self._loading = self.reader.cursor()
        self._missed: set[int] = set()
        """Of what was loaded last with another one, what was not there: it has been removed, so it never will be."""
        self.policy = policy
        self.rng = rng
        self.batch = Batch()
        self.report: Callable[[Exception], OpsqError] = describe_bug
        """Given an internal error, returns the answer to the request that has met it."""
        self.outbox: list[tuple[Peer, Reply]] = []
        self.retries: Timers[tuple[int, int, int, int]] = Timers()
        self.live: OrderedDict[int, LiveSubmission] = OrderedDict()
        self.lane_sets = LaneSets()
        self.wanted = NO_LIMIT
        """How many chunks the present turn may give: up to this number the gates must be exact."""
        self.rows_left = 0
        """How many rows the present turn of the event loop may still visit."""
        self.awaited_arms_count = 0
        """Arms of the strategies with which calls wait."""
        self.consumers: dict[Peer, str] = {}
        """Who has asked for chunks and is still connected, and by which strategy last."""
        self.unfolded_done: dict[int, dict[int, int]] = {}
        self.unfolded_completed: dict[int, int] = {}
        self.unique_keys = UniqueKeys(self.reader)
        self.missed_step_ms = 0
        """By how much the wall clock was stepped since the last process ended: stored instants are this much early."""
        self.states: dict[str, int] = dict.fromkeys(submissions.STATES, 0) | submissions.counts_by_state(self.reader)
        self.has_news = False
        """Something may have become free, or the last open submission has ended: parked calls must be looked at."""
        self.has_untold = dependencies.has_due(self.reader)
        """Some of those who wait for an end have not been told of it: they may open."""
        self.has_granted = False
        """Chunks were handed out since it was last made sure that we own the file."""
        self.is_full = not database.has_room
        """There is room only for what frees some: nothing comes in and nothing is handed out."""
        self.removable_found: Details | None = None
        self._removable = Removable(self.reader, database.path, folders)
        self.is_draining = False
        """The process is about to end."""
        self.takes_new = True
        """Whether submissions come in; False: an operator has the daemon drained."""
        self.now = now
        self.rules = Rules(self.reader)
        self.gates = Gates(self, self.rules)
        self.gates.watch(self.rules.limited_keys)
        self.fronts = Fronts(self)
        self.until_empty = UntilEmpty(self)
        self.shard = shard.number(self.reader)
        """The number of this file among the shards of a queue; None: it has none."""
        self.has_moved = moved.is_used(self.reader)
        """Whether submissions have moved to other daemons."""
        self.makers = arriving.makers(self.reader) - {self.shard}
        """The numbers of other shards of which submissions are here, or were since the start."""
        self.arriving: dict[int, Removed] = {}
        """Submissions that are moving here, which nobody sees yet; the counters of lanes include them."""
        self.staging: set[int] = set()
        """Of which a batch that has not ended keeps a slice, or gives all up."""
        self.activating: set[int] = set()
        """Which are active once a batch that has not ended is committed."""
        self.after_moves: list[Callable[[], None]] = []
        """What waits until held submissions have moved, or do not after all."""
        self.starts = database.starts()
        self.removing: dict[int, Removed] = {}
        """Submissions that are gone for everybody, whose rows are being deleted."""

    def note_news(self) -> None:
        """Have parked calls looked at: something may have become free, or the last open submission has ended."""
        self.has_news = True

    def take_news(self) -> None:
        """Parked calls are being looked at."""
        self.has_news = False

    def slice_of(self, rows_count: int) -> int:
        """How many rows one batch takes of something long: on a full disk little, for lack of room in the log."""
        return max(rows_count // FULL_SHARE, 1) if self.is_full else rows_count

    def no_room(self) -> StorageFull:
        """What to answer to what is refused while the storage is full."""
        return self.with_removable(StorageFull(cause="storage_full"))

    def with_removable(self, error: Lack) -> Lack:
        """An error that says what would make room."""
        error.details.update(self.removable())
        return error

    def removable(self) -> Details:
        """What takes room on the disk, and what of that could go; looked at again after `removable_found` is None."""
        if self.removable_found is None:
            self.removable_found = self._removable.details(is_spent=self.database.log.is_spent())
        return self.removable_found

    def charge(self, rows_count: int) -> None:
        """Work that visits no rows takes as long as this many: the turn of the event loop ends the sooner."""
        self.rows_left -= rows_count

    # --- submissions in memory ---

    def submission(self, submission_id: int, beside: Iterable[int] = ()) -> LiveSubmission | None:
        """The submission in memory, loaded if need be, in whatever state; None when there is none.

        Cost: two look-ups the first time.

        Args:
            beside: submissions that will be asked for soon: if this one is to be loaded, they are with it.
        """
        submission = self.live.get(submission_id)
        if submission is None:
            if submission_id not in self._missed:
                others = {other for other in beside if other not in self.live and other != submission_id}
                for row in submissions.load(self._loading, submission_id, tuple(others)):
                    submission = self.keep(LiveSubmission(row, self.lane_sets.of(row.lanes)))
                    others.discard(submission.id)
                    done = self.unfolded_done.pop(submission.id, None)
                    if done is not None:
                        self._overlay(submission, done)
                self._missed = others or self._missed
            if submission is None or submission.id != submission_id:
                self.unfolded_done.pop(submission_id, None)
                self.unfolded_completed.pop(submission_id, None)
                return None
        return submission

    def strangers(self, submission_ids: list[int]) -> dict[int, LiveSubmission | Stranger]:
        """What gates look at in these submissions; those that are not in memory are not loaded for that."""
        live, set_of = self.live, self.lane_sets.of
        known: dict[int, LiveSubmission | Stranger] = {one: live[one] for one in submission_ids if one in live}
        unknown = [one for one in submission_ids if one not in known]
        for submission_id, stored in submissions.lanes_of(self._loading, unknown) if unknown else ():
            known[submission_id] = Stranger(submission_id, set_of(stored))
        return known

    def find(self, submission_id: int) -> LiveSubmission:
        """The submission in memory, loaded if need be; `NotFound` if there is none, `Moved` if it is elsewhere."""
        submission = self.submission(submission_id)
        if submission is None:
            raise self.missing(submission_id)
        return submission

    def missing(self, submission_id: int) -> OpsqError:
        """Why a submission is not here."""
        return self.moved(submission_id) or unknown(submission_id)

    def moved(self, submission_id: int) -> Moved | None:
        """The answer to who asks for a submission that has moved to another daemon; None: it has not."""
        row = moved.find(self.reader, submission_id) if self.has_moved else None
        return None if row is None else has_moved(row)

    def moved_by_key(self, request_key: bytes | None, idempotency_key: str | None = None) -> MovedRow | None:
        """The submission that one of these keys made, if it is elsewhere."""
        return moved.by_key(self.reader, request_key, idempotency_key) if self.has_moved else None

    def forget_missed(self, submission_id: int) -> None:
        """A submission is there that was not."""
        self._missed.discard(submission_id)

    def keep(self, submission: LiveSubmission) -> LiveSubmission:
        """Hold a submission in memory, and drop the oldest idle ones when there are too many."""
        self.live[submission.id] = submission
        if len(self.live) > SUBMISSIONS_KEPT:
            # Two for each that comes: so all are looked at in turn, and with 10⁵ at work few looks find none to drop.
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
            if work.attempts == () and submission.has_failed:
                work.attempts = None
            work.done |= mask
        completed = self.unfolded_completed.pop(submission.id, 0)
        submission.completed += completed
        submission.unfinished -= completed

    def set_state(self, submission: LiveSubmission, name: str) -> None:
        """A submission is in another state; the removed are not counted."""
        self.states[submission.state] -= 1
        if name in self.states:
            self.states[name] += 1
        submission.state = name

    # --- what becomes free ---

    def became_free(self, submission: LiveSubmission) -> None:
        """Chunks of an open submission are free that were not: tell every front that walks one of its lanes."""
        if not submission.is_offered:
            return
        self.until_empty.note_free(submission)
        self.fronts.offer(submission)
        self.has_news = True

    def stays_open(self, submission: LiveSubmission) -> None:
        """What would have changed the state of a submission was not committed."""
        submission.is_closing = False
        self.became_free(submission)

    def give_back(self, submission: LiveSubmission, work: BlockWork) -> None:
        """Chunks of a block were given back: make those that are free available."""
        if submission.state in submissions.FINAL_STATES:
            submission.forget_if_plain(work)
            self.forget_if_over(submission)
        elif submission.give_back(work) or submission.cursor < submission.blocks_count:
            self.became_free(submission)

    def restore(self, now: Now) -> None:
        """Hold back what waited for a retry when the last process ended."""
        submission_ids = backlog.submissions_delayed(self.reader, now.wall)
        for place, submission_id in enumerate(submission_ids):
            submission = self.submission(submission_id, submission_ids[place + 1 : place + LOADED_TOGETHER])
            if submission is not None:
                self.restore_delays(submission, now)

    def restore_delays(self, submission: LiveSubmission, now: Now) -> None:
        """Hold back what of a submission waits for a retry, as the file tells: at a start, and when it is revived."""
        for work, due, row in submission.restore_delays(self.reader, now):
            self.add_retry(due, submission, work, row)

    def add_retry(self, due: MonoNs, submission: LiveSubmission, work: BlockWork, row: AttemptRow) -> None:
        """Have delayed chunks come back at `due`."""
        mask = work.pending if row.mask == work.pending else row.mask  # often all of a block: then one number for both
        self.retries.add(due, (submission.id, work.index, mask, row.attempts + row.lost))

    def reply(self, peer: Peer, message: Reply) -> None:
        """Send now: the message tells nothing that waits for a commit."""
        if peer.is_connected:
            self.outbox.append((peer, message))

    def await_copy(self, peer: Peer, request_id: int) -> None:
        """Have the answer to a request wait until the replica, if there is one, has all that is committed with it."""
        if self.policy.replicate_to:
            self.batch.add(lambda _: peer.awaiting_copy.add(request_id), nothing_to_undo)

    def refuse(self, peer: Peer, request_id: int, error: OpsqError) -> None:
        """Answer a request that was put off with an error."""
        self.reply(peer, ErrorReply.of(request_id, error))

    def attempt(self, peer: Peer, request_id: int, work: Callable[[], None]) -> None:
        """Go on with a request that was put off: what that raises is its answer, and costs no other its own.

        Raises:
            Fatal: as the work.
        """
        try:
            work()
        except OpsqError as error:
            self.reply(peer, ErrorReply.of(request_id, error))
        except Fatal:
            raise
        except Exception as error:  # noqa: BLE001  # as in a session
            self.reply(peer, ErrorReply.of(request_id, self.report(error)))

    def forget_if_over(self, submission: LiveSubmission) -> None:
        """Drop a submission that has ended and has nothing left in memory."""
        if not submission.blocks and not submission.is_closing and not submission.pins and submission.state != "open":
            self.live.pop(submission.id, None)


def unknown(submission_id: int) -> NotFound:
    """There is no such submission."""
    return NotFound(cause="unknown_submission", submission_id=submission_id)


def has_moved(row: MovedRow) -> Moved:
    """A submission is on another daemon by now."""
    return Moved(cause="moved", submission_id=row.submission_id, shard=row.shard, address=row.address)

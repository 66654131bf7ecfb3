"""The engine: takes requests, time and finished commits; gives replies.

The only door to everything else in this package.

It does no I/O but SQLite, knows no clock, and never awaits. Its driver (daemon, embedded queue, test) calls
`handle` with each request, `tick` when `next_tick_s` is over, `begin_batch`, COMMIT and `end_batch` while `has_batch`,
and after each call sends what is in `outbox`. Between `begin_batch` and `end_batch` other requests may be handled;
they form the next batch.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from opsq.clock import MonoNs, Now
from opsq.errors import OpsqError, ProtocolError
from opsq.queue.chunk_counters import ChunkCounters
from opsq.queue.chunks.complete import Completions
from opsq.queue.chunks.dead import DeadLetters
from opsq.queue.chunks.expiry import Expiry
from opsq.queue.chunks.fail import Failures
from opsq.queue.chunks.follow_ups import FollowUps
from opsq.queue.chunks.leases import Leases
from opsq.queue.chunks.pipelined import Pipelined
from opsq.queue.chunks.requests import ChunkRequests
from opsq.queue.chunks.reservations import Reservations
from opsq.queue.chunks.reserve import ReserveCalls
from opsq.queue.clock_steps import ClockSteps
from opsq.queue.commits import Commits
from opsq.queue.faults import Fatal
from opsq.queue.folding import Folding
from opsq.queue.full_disk import FullDisk
from opsq.queue.live_submission import LiveSubmission
from opsq.queue.moves.holds import Holds
from opsq.queue.moves.listing import show_moves
from opsq.queue.moves.source import MoveSource
from opsq.queue.moves.target import MoveTarget
from opsq.queue.peer import Peer
from opsq.queue.policy import Policy
from opsq.queue.rule_changes import RuleChanges
from opsq.queue.rule_replacement import RuleReplacement
from opsq.queue.schedules.desk import ScheduleDesk
from opsq.queue.state import EngineState
from opsq.queue.submissions.admission import Admission
from opsq.queue.submissions.dependencies import Dependencies
from opsq.queue.submissions.finish import Finisher
from opsq.queue.submissions.intake import Intake
from opsq.queue.submissions.keys import Keys
from opsq.queue.submissions.retention import Retention
from opsq.queue.submissions.submit import Submitter, check_new
from opsq.queue.submissions.unique_until_start import UniqueUntilStart
from opsq.queue.views.between_commits import BetweenCommits
from opsq.queue.views.events import EventStream
from opsq.queue.views.explain_strategy import StrategyExplainer
from opsq.queue.views.explain_work import WorkExplainer
from opsq.queue.views.held_back import HeldBack
from opsq.queue.views.history import HistoryView
from opsq.queue.views.reports import Reports
from opsq.queue.views.running import RunningView
from opsq.queue.views.subscriptions import Subscriptions
from opsq.queue.views.watchdog import Waiting, Watchdog
from opsq.store.database import Database, Deposed
from opsq.store.submissions import UNFINISHED_STATES, SubmissionRow
from opsq.wire import messages as m

TICK_LIMIT_S = 1.0
"""The wall clock is looked at this often, for `--at`."""

__all__ = ["Engine", "Fatal", "Peer"]


class Engine:
    """One queue on one database.

    Args:
        folders: where content is stored, if that is a folder: its disk must keep as much free as that of the database.
        boot: names the boot of the machine, within which monotonic instants of several processes can be compared;
            empty: not known.
    """

    def __init__(
        self,
        database: Database,
        policy: Policy,
        now: Now,
        *,
        rng: random.Random | None = None,
        folders: Sequence[Path] = (),
        boot: str = "",
    ) -> None:
        self._state = state = EngineState(database, policy, now, rng or random.Random(), folders)
        self._folding = folding = Folding(state)
        self._reservations = reservations = Reservations(state)
        self._subscriptions = subscriptions = Subscriptions(state)
        self._event_stream = event_stream = EventStream(state)
        waiting = Dependencies(state, self._note_ended, self._note_scheduled)
        self._finisher = finisher = Finisher(state, reservations, waiting, self._note_ended)
        self._failures = Failures(state, reservations, finisher.end)
        self._expiry = Expiry(state, reservations, self._failures)
        self._leases = leases = Leases(state, reservations, self._expiry)
        self._dead_letters = DeadLetters(state, folding)
        self._admission = Admission(state, (database.path.parent, *folders))
        rule_changes = RuleChanges(state)
        keys = Keys(state)
        self._submitter = Submitter(state, self._admission, keys, rule_changes, waiting, finisher.expire_after)
        follow_ups = FollowUps(state, self._submitter.check, self._submitter.submit_one)
        self._completions = completions = Completions(
            state, reservations, folding, finisher.end, subscriptions.note_completed, follow_ups.make
        )
        self._schedules = desk = ScheduleDesk(state, check_new, self._submitter.submit_one, finisher.cancel_one)
        self._reserve_calls = ReserveCalls(state, reservations)
        self._holds = holds = Holds(state, reservations, folding)
        source = MoveSource(state, holds, self._note_moved)
        target = MoveTarget(state, folding, rule_changes, self._admission.check_room, self._note_active)
        self._pipelined = Pipelined(state, self._reserve_calls, reservations)
        chunk_requests = ChunkRequests(
            state, completions, self._failures, reservations, leases, self._reserve_calls, follow_ups
        )
        self._retention = Retention(state, folding, finisher)
        self._unique_until_start = UniqueUntilStart(state, reservations)
        self._watchdog = Watchdog(state, self._reserve_calls)
        held_back = HeldBack(state, self._reserve_calls, self._admission, self._watchdog)
        counters = ChunkCounters()
        reports = Reports(
            state, folding, reservations, self._reserve_calls, self._admission, self._watchdog, held_back, counters
        )
        history_view = HistoryView(state, folding)
        self._full_disk = FullDisk(state, now)
        self._commits = commits = Commits(
            state, folding, self._full_disk, self._admission, self._unique_until_start, counters, now
        )
        self._views = views = BetweenCommits(state, lambda: commits.is_under_way)
        self._timed_if_room = (self._submitter, desk, finisher, self._expiry, waiting, holds)
        """What is done by the clock and writes: on a full disk it waits, whatever is due."""
        self._heard = now
        self._last_tick: MonoNs = now.mono
        self._clock_steps = ClockSteps(state, boot)
        self._folding.restore()
        self._admission.restore()
        self._leases.restore(now)
        state.restore(now)
        self._submitter.restore(now)
        self._finisher.restore(now)
        desk.restore(now)
        self._verbs: dict[type[m.Message], Callable[[Peer, Any, Now], None]] = {
            m.Submit: self._submitter.submit,
            m.Find: lambda peer, request, _: keys.find(peer, request),
            m.Withdraw: keys.withdraw,
            m.CheckCapacity: self._submitter.check_capacity,
            m.Reserve: self._reserve_calls.reserve,
            m.Complete: chunk_requests.complete,
            m.CompleteAndReserve: chunk_requests.complete_and_reserve,
            m.Fail: chunk_requests.fail,
            m.Release: chunk_requests.release,
            m.ReleaseConsumer: chunk_requests.release_consumer,
            m.Extend: chunk_requests.extend,
            m.Reclaim: chunk_requests.reclaim,
            m.Started: lambda peer, request, now: self._reservations.start(peer, request.chunks, now),
            m.Heartbeat: self.heartbeat,
            m.CancelWait: self.cancel_wait,
            m.Describe: lambda peer, request, _: reports.describe(peer, request),
            m.GetAttachment: lambda peer, request, _: reports.attachment(peer, request),
            m.Show: views.put_off(lambda peer, request, _: reports.show(peer, request)),
            m.List: views.put_off(lambda peer, request, _: reports.list(peer, request)),
            m.Wait: lambda peer, request, _: self._subscriptions.wait(peer, request),
            m.Results: self._subscriptions.results,
            m.Cancel: self._finisher.cancel,
            m.Remove: self._finisher.remove,
            m.Dead: views.put_off(lambda peer, request, _: self._dead_letters.dead(peer, request)),
            m.Requeue: self._dead_letters.requeue,
            m.Drop: self._dead_letters.drop,
            m.History: views.put_off(lambda peer, request, _: history_view.history(peer, request)),
            m.Events: event_stream.events,
            m.Prune: self._retention.prune,
            m.Status: views.put_off(reports.status),
            m.Running: views.put_off(RunningView(state, reservations).running),
            m.Explain: views.put_off(StrategyExplainer(state, self._reserve_calls).explain),
            m.ExplainWork: views.put_off(
                WorkExplainer(state, reservations, self._reserve_calls, held_back).explain_work
            ),
            m.Pause: rule_changes.pause,
            m.Resume: rule_changes.resume,
            m.Limit: rule_changes.limit,
            m.Unlimit: rule_changes.unlimit,
            m.Weight: rule_changes.set_weight,
            m.Drain: Intake(state).drain,
            m.DriveMoves: source.drive,
            m.AdmitMover: target.admit,
            m.HoldForMove: source.hold,
            m.ExportSlice: views.put_off(source.export),
            m.CommitMove: source.commit,
            m.CancelMove: source.cancel,
            m.ConfirmMoved: source.confirm,
            m.StageSlice: target.stage,
            m.ActivateMoved: target.activate,
            m.GiveUpMoved: target.give_up,
            m.ShowMoves: views.put_off(lambda peer, request, _: show_moves(state, peer, request)),
            m.PutRules: RuleReplacement(state, rule_changes).put,
            m.PutSchedule: desk.put,
            m.RemoveSchedule: desk.remove,
            m.PauseSchedule: desk.pause,
            m.ResumeSchedule: desk.resume,
            m.TriggerSchedule: desk.trigger,
            m.BackfillSchedule: desk.backfill,
            m.ShowSchedules: views.put_off(lambda peer, request, _: desk.show(peer, request)),
            m.ShowRules: views.put_off(lambda peer, request, _: rule_changes.show(peer, request)),
        }

    @property
    def outbox(self) -> list[tuple[Peer, m.Reply]]:
        """Replies and pushes to be sent now; the driver empties it after each call."""
        return self._state.outbox

    @property
    def removed_content(self) -> list[str]:
        """Hex request keys of submissions that are gone, whose content the driver is to delete; it empties the list."""
        return self._finisher.removed_content

    @property
    def shard(self) -> int | None:
        """The number of the file among the shards of a queue, 0 to 1023; None: it has none."""
        return self._state.shard

    @property
    def rules_revision(self) -> int:
        """The revision of the rules that is committed."""
        return self._state.rules.committed_revision

    @property
    def is_full(self) -> bool:
        """Whether there is room only for what frees some."""
        return self._state.is_full

    def note_full(self, now: Now) -> None:
        """The log could not be copied for want of room."""
        if self._commits.is_under_way:
            self._full_disk.note_soon()
        else:
            self._full_disk.note(now)

    def report_bugs(self, report: Callable[[Exception], OpsqError]) -> None:
        """Have `report` told of each internal error; it returns the answer to the request that has met it."""
        self._state.report = report

    def _note_ended(self, submission: LiveSubmission) -> None:
        self._subscriptions.note_ended(submission)
        self._schedules.note_ended(submission.id)

    def _note_moved(self, submission: LiveSubmission) -> None:
        self._subscriptions.note_moved(submission.id)
        self._schedules.note_ended(submission.id)

    def _note_active(self, submission: LiveSubmission, now: Now) -> None:
        row = submission.row
        if submission.state == "scheduled":
            self._submitter.wait_for_date(row, now)
        if row.expires_ms is not None and row.expires_at is not None and submission.state in UNFINISHED_STATES:
            self._finisher.expire_after(row.id, max(row.expires_at - now.wall, 0) / 1000, now)

    def _note_scheduled(self, row: SubmissionRow, now: Now) -> None:
        self._submitter.wait_for_date(row, now)

    # --- requests ---

    def connect(self, name: str, now: Now, uid: int | None = None, host: str = "", pid: int = 0) -> Peer:
        """A new connection of a consumer or producer that calls itself `name`; see `Peer`."""
        return Peer(name, now, uid, host, pid)

    def disconnect(self, peer: Peer, now: Now) -> None:
        """A connection is gone: what it had started counts as lost, what it had not is free."""
        peer.is_connected = False
        self._reserve_calls.disconnect(peer)
        self._subscriptions.disconnect(peer)
        self._event_stream.disconnect(peer)
        self._admission.disconnect(peer)
        self._holds.disconnect(peer)
        self._expiry.disconnect(peer, now)
        self._serve(now)

    def handle(self, peer: Peer, request: m.Request, now: Now) -> None:
        """Take one request; its reply comes into `outbox`, now or after a commit.

        Raises:
            OpsqError: the answer to this request.
            Fatal: we do not own the file any more.
        """
        peer.heard = now.mono
        if now is not self._heard:  # all requests of a frame come at one instant
            self._heard = now
            self._clock_steps.watch(now)
            self._state.gates.tick(now)
        verb = self._verbs.get(type(request))
        if verb is None:
            raise ProtocolError(cause="wrong_request", request=type(request).__name__)
        state = self._state
        batch = state.batch
        replies, on_failed = batch.replies, batch.on_failed
        answers_count = len(replies) + len(on_failed)
        if state.is_full:
            self._full_disk.weigh(request)
            if not self._full_disk.fits(request):
                verb = partial(self._full_disk.postpone, self.handle)
        verb(peer, request, now)
        if len(replies) + len(on_failed) > answers_count:
            batch.again.append((verb, peer, request))
        if state.has_news or state.has_granted or self._reservations.has_singles:
            self._serve(now)

    def _serve(self, now: Now, *, is_turn: bool = False) -> None:
        """Serve waiting calls; if chunks were handed out, check that we still own the file before replies are sent.

        One look for all that a call hands out: it costs as much as a reserve.
        """
        state = self._state
        self._reserve_calls.serve(now, is_turn=is_turn)
        self._unique_until_start.look()
        if state.has_granted:
            state.has_granted = False
            try:
                state.database.check_owner()
            except Deposed as error:
                raise Fatal(str(error)) from error
        if self._reservations.has_singles and not self._pipelined.has_turn:
            self._reservations.end_singles()

    def heartbeat(self, peer: Peer, request: m.Heartbeat, now: Now) -> None:
        """The consumer lives: `handle` has noted it."""
        self._state.reply(peer, m.Alive(request.id))

    def cancel_wait(self, peer: Peer, request: m.CancelWait, now: Now) -> None:
        """A parked call is not wanted any more."""
        self._reserve_calls.cancel_wait(peer, request.request_id)
        self._subscriptions.cancel_wait(peer, request.request_id)
        self._event_stream.cancel_wait(peer, request.request_id)
        self._admission.cancel_wait(peer, request.request_id)

    # --- batches ---

    def committing_count(self) -> int:
        """How many requests wait for a commit: those in the next one, and questions that wait for the end of this."""
        return len(self._state.batch.again) + len(self._views)

    def has_batch(self, now: Now) -> bool:
        """Whether there is something to commit, and no commit is under way."""
        return self._commits.is_due(now)

    def begin_batch(self, now: Now) -> bool:
        """Write the rows of all intents inside a transaction, which the driver then commits.

        What cannot be written costs the request that has brought it its answer, and no other.

        Returns:
            Whether there is a transaction to commit; False: nothing was written, call `end_batch` at once.

        Raises:
            apsw.Error: hand it to `end_batch`.
            Fatal: we do not own the file any more.
        """
        return self._commits.begin(now)

    def end_batch(self, error: Exception | None, now: Now) -> None:
        """The commit succeeded (None) or not: facts change, replies leave.

        Raises:
            Fatal: the outcome of the commit is unknown, or it succeeded and memory does not say so.
        """
        if not self._commits.is_under_way:
            return
        state, batch = self._state, self._commits.end(error, now)
        if batch is None:
            self._views.serve(now)
            return
        state.outbox += [(peer, reply) for peer, reply in batch.replies if peer.is_connected]
        for action in batch.after:
            action(now)
        if batch.events:
            self._event_stream.note(batch.events)
        self._admission.serve(now)
        self._pipelined.add(batch.following)
        self._pipelined.serve(now)
        self._folding.run_waiting(now)
        self._views.serve(now)
        if batch.has_rows:
            state.has_granted = False  # the transaction that was committed just now has made sure of the owner
        self._serve(now)

    # --- time ---

    def tick(self, now: Now, *, is_moved: bool = False) -> None:
        """Do what is due. A tick that comes late by half a heartbeat postpones all expiries by one heartbeat.

        Args:
            is_moved: it is not late: the driver has moved its clock on to now.
        """
        state = self._state
        heartbeat_ns = int(state.policy.heartbeat_s * 1e9)
        if now.mono - self._last_tick > TICK_LIMIT_S * 1e9 + heartbeat_ns / 2 and not is_moved:
            self._expiry.hold(MonoNs(now.mono + heartbeat_ns))
        self._last_tick = now.mono
        state.removable_found = None
        self._clock_steps.watch(now)
        is_resting = self._commits.rest_s(now) > 0
        if not state.is_full and not is_resting:
            state.fronts.tick()
            for timed in self._timed_if_room:
                timed.tick(now)
        elif state.is_full and not self._commits.is_under_way:
            self._full_disk.tick(now)
        if not is_resting:
            self._retention.tick(now)
        self._admission.tick(now)
        state.gates.tick(now)
        self._failures.tick(now)
        self._serve(now)  # what has become free goes to those whose time is over now, too
        self._reserve_calls.tick(now)
        self._subscriptions.tick(now)
        self._event_stream.tick(now)

    def next_tick_s(self, now: Now, limit_s: float = TICK_LIMIT_S) -> float:
        """Seconds until `tick` has something to do, at most `limit_s`: more than a second if nobody steps the clock."""
        state = self._state
        rest_s = self._commits.rest_s(now)
        if rest_s:
            return min(rest_s, 0.1)
        if self._retention.is_active:
            return 0.0
        left_s = limit_s
        waiting = (self._reserve_calls, self._subscriptions, self._event_stream, self._admission)
        always = (state.retries, *waiting, state.gates)
        for timed in always if state.is_full else (*always, *self._timed_if_room):
            due = timed.next_due()
            if due is not None and due - now.mono < left_s * 1e9:
                left_s = max((due - now.mono) / 1e9, 0.0)
        return left_s

    def watch(self, now: Now) -> Waiting | None:
        """Look after those who wait for long; the driver logs what is found. If it is our mistake, it is mended."""
        state = self._state
        if self._commits.is_under_way or self.has_turn() or state.is_full or state.is_draining:
            return None
        found = self._watchdog.look(now)
        if found is not None and found.is_overlooked:
            state.fronts.renew(name for name, _ in self._reserve_calls.plan(found.strategy).arms)
            state.note_news()
            self._serve(now)
        return found

    def has_turn(self) -> bool:
        """Whether a bounded run stopped half-way; `turn` goes on."""
        return (
            self._pipelined.has_turn
            or self._reserve_calls.has_turn
            or (self._dead_letters.has_turn and not self._commits.is_under_way)
        )

    def turn(self, now: Now) -> None:
        """Go on with a bounded run."""
        if self._dead_letters.has_turn and not self._commits.is_under_way:
            self._dead_letters.turn(now)
        self._pipelined.serve(now)
        self._serve(now, is_turn=True)

    # --- the end ---

    def stop_handing_out(self) -> None:
        """Answer parked and future reserves with nothing."""
        self._state.is_draining = True
        self._reserve_calls.stop()

    def is_quiet(self) -> bool:
        """Whether no connection holds anything any more."""
        return not any(not reservation.is_lease for reservation in self._reservations.all())

    def save_reservations(self, now: Now) -> None:
        """Turn what connections hold into leases that outlive a restart; takes effect with the next batch."""
        self._leases.save(now)

    def fold_all(self) -> None:
        """Have the next batches fold everything, so that the stopped file tells the whole truth by itself."""
        self._folding.is_urgent = True
        self._state.fronts.save_passes(everything=True)

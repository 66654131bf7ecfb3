"""The rooms of the engine: builds them, introduces them to each other, and says which of them takes which request.

It must not decide anything, nor know when what is due is done: `Engine` drives them.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from opsq.clock import Now
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
from opsq.queue.folding import Folding
from opsq.queue.full_disk import FullDisk
from opsq.queue.live_submission import LiveSubmission
from opsq.queue.moves.giving_up import GivingUp
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
from opsq.queue.views.watchdog import Watchdog
from opsq.store.database import Database
from opsq.store.submissions import UNFINISHED_STATES, SubmissionRow
from opsq.wire import messages as m

Verb = Callable[[Peer, Any, Now], None]


class Rooms:
    """All rooms of one engine; the arguments are those of `Engine`."""

    def __init__(
        self, database: Database, policy: Policy, now: Now, rng: random.Random, folders: Sequence[Path], boot: str
    ) -> None:
        self.state = state = EngineState(database, policy, now, rng, folders)
        self.folding = folding = Folding(state)
        self.reservations = reservations = Reservations(state)
        self.subscriptions = subscriptions = Subscriptions(state)
        self.event_stream = event_stream = EventStream(state)
        self.dependencies = waiting = Dependencies(state, self._note_ended, self._note_scheduled)
        self.finisher = finisher = Finisher(state, reservations, waiting, self._note_ended)
        self.failures = Failures(state, reservations, finisher.end)
        self.expiry = Expiry(state, reservations, self.failures)
        self.leases = leases = Leases(state, reservations, self.expiry)
        self.dead_letters = DeadLetters(state, folding)
        self.admission = Admission(state, (database.path.parent, *folders))
        rule_changes = RuleChanges(state)
        keys = Keys(state)
        self.submitter = Submitter(state, self.admission, keys, rule_changes, waiting, finisher.expire_after)
        follow_ups = FollowUps(state, self.submitter.check_follow_up, self.submitter.submit_one)
        self.completions = completions = Completions(
            state, reservations, folding, finisher.end, subscriptions.note_completed, follow_ups.make
        )
        self.schedules = desk = ScheduleDesk(
            state, check_new, self.admission.check_room, self.submitter.submit_one, finisher.cancel_one
        )
        self.reserve_calls = ReserveCalls(state, reservations)
        self.holds = holds = Holds(state, reservations, folding)
        source = MoveSource(state, holds, self._note_moved)
        giving_up = GivingUp(state, folding)
        target = MoveTarget(state, folding, rule_changes, keys, self.admission.check_room, self._note_active, giving_up)
        self.pipelined = Pipelined(state, self.reserve_calls, reservations)
        chunk_requests = ChunkRequests(
            state, completions, self.failures, reservations, leases, self.reserve_calls, follow_ups
        )
        self.retention = Retention(state, folding, finisher)
        self.unique_until_start = UniqueUntilStart(state, reservations)
        self.watchdog = Watchdog(state, self.reserve_calls)
        held_back = HeldBack(state, self.reserve_calls, self.admission, self.watchdog)
        counters = ChunkCounters()
        reports = Reports(
            state, folding, reservations, self.reserve_calls, self.admission, self.watchdog, held_back, counters
        )
        history_view = HistoryView(state, folding)
        self.full_disk = FullDisk(state, now)
        self.commits = commits = Commits(
            state, folding, self.full_disk, self.admission, self.unique_until_start, counters, now
        )
        self.views = views = BetweenCommits(state, lambda: commits.is_under_way)
        self.clock_steps = ClockSteps(state, boot)
        self.folding.restore()
        self.admission.restore()
        self.leases.restore(now)
        state.restore(now)
        self.submitter.restore(now)
        self.finisher.restore(now)
        desk.restore(now)
        self.verbs: dict[type[m.Message], Verb] = {
            m.Submit: self.submitter.submit,
            m.Find: lambda peer, request, _: keys.find(peer, request),
            m.Withdraw: keys.withdraw,
            m.CheckCapacity: self.submitter.check_capacity,
            m.Reserve: self.reserve_calls.reserve,
            m.Complete: chunk_requests.complete,
            m.CompleteAndReserve: chunk_requests.complete_and_reserve,
            m.Fail: chunk_requests.fail,
            m.Release: chunk_requests.release,
            m.ReleaseConsumer: chunk_requests.release_consumer,
            m.Extend: chunk_requests.extend,
            m.Reclaim: chunk_requests.reclaim,
            m.Started: chunk_requests.start,
            m.Heartbeat: self._note_alive,
            m.CancelWait: self._cancel_wait,
            m.Describe: lambda peer, request, _: reports.describe(peer, request),
            m.GetAttachment: lambda peer, request, _: reports.attachment(peer, request),
            m.Show: views.put_off(lambda peer, request, _: reports.show(peer, request)),
            m.List: views.put_off(lambda peer, request, _: reports.list(peer, request)),
            m.Wait: lambda peer, request, _: self.subscriptions.wait(peer, request),
            m.Results: self.subscriptions.results,
            m.Cancel: self.finisher.cancel,
            m.Remove: self.finisher.remove,
            m.Dead: views.put_off(lambda peer, request, _: self.dead_letters.dead(peer, request)),
            m.Requeue: self.dead_letters.requeue,
            m.Drop: self.dead_letters.drop,
            m.History: views.put_off(lambda peer, request, _: history_view.history(peer, request)),
            m.Events: event_stream.events,
            m.Prune: self.retention.prune,
            m.Status: views.put_off(reports.status),
            m.Running: views.put_off(RunningView(state, reservations).running),
            m.Explain: views.put_off(StrategyExplainer(state, self.reserve_calls).explain),
            m.ExplainWork: views.put_off(
                WorkExplainer(state, reservations, self.reserve_calls, held_back).explain_work
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
            m.GiveUpSource: giving_up.of_source,
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

    def _note_ended(self, submission: LiveSubmission) -> None:
        self.subscriptions.note_ended(submission)
        self.schedules.note_ended(submission.id)

    def _note_moved(self, submission: LiveSubmission) -> None:
        self.subscriptions.note_moved(submission.id)
        self.schedules.note_ended(submission.id)

    def _note_active(self, submission: LiveSubmission, now: Now) -> None:
        row = submission.row
        if submission.state == "scheduled":
            self.submitter.wait_for_date(row, now)
        if row.expires_ms is not None and row.expires_at is not None and submission.state in UNFINISHED_STATES:
            self.finisher.expire_after(row.id, max(row.expires_at - now.wall, 0) / 1000, now)

    def _note_scheduled(self, row: SubmissionRow, now: Now) -> None:
        self.submitter.wait_for_date(row, now)

    def _note_alive(self, peer: Peer, request: m.Heartbeat, now: Now) -> None:
        """The consumer lives: the engine has noted it with the request."""
        self.state.reply(peer, m.Alive(request.id))

    def _cancel_wait(self, peer: Peer, request: m.CancelWait, now: Now) -> None:
        """A parked call is not wanted any more."""
        for room in (self.reserve_calls, self.subscriptions, self.event_stream, self.admission):
            room.cancel_wait(peer, request.request_id)

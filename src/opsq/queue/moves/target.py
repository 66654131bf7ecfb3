"""The side to which submissions move: keeps what is staged where nobody sees it, until it is activated or given up.

Must not ask the source for anything: the mover carries all.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

import msgspec

from opsq.clock import Now
from opsq.errors import Conflict, UsageError
from opsq.ids import shard_of
from opsq.queue.batch import Batch, acting, nothing_to_undo
from opsq.queue.folding import Folding
from opsq.queue.live_submission import LiveSubmission
from opsq.queue.moves import checks
from opsq.queue.moves.giving_up import GivingUp
from opsq.queue.peer import Peer
from opsq.queue.rule_changes import RuleChanges
from opsq.queue.state import EngineState
from opsq.queue.submissions.keys import Keys
from opsq.store import arriving, dependencies, idempotency_keys, lanes, meta, moved, removals, submissions, transfer
from opsq.store.arriving import ArrivingRow
from opsq.store.database import Database
from opsq.store.submissions import SubmissionRow
from opsq.store.transfer import Header
from opsq.strategy.arms import shuffle_of
from opsq.users import ROOT
from opsq.wire.messages import (
    Activated,
    ActivateMoved,
    AdmitMover,
    Changed,
    Driving,
    GiveUpMoved,
    StageSlice,
)

FAST_CLOCK_MS = 86_400_000
"""The clock of a source may be fast by a day: ids that it has made are not larger than that."""


class MoveTarget:
    """Takes submissions over.

    Args:
        check_room: raises NoRoom unless so many chunks may come in.
        on_active: notified of each that is ours from now on, with its row.
    """

    def __init__(
        self,
        state: EngineState,
        folding: Folding,
        rule_changes: RuleChanges,
        keys: Keys,
        check_room: Callable[[int], None],
        on_active: Callable[[LiveSubmission, Now], None],
        giving_up: GivingUp,
    ) -> None:
        self._state = state
        self._folding = folding
        self._rule_changes = rule_changes
        self._keys = keys
        self._check_room = check_room
        self._on_active = on_active
        self._giving_up = giving_up
        state.unique_keys.has_arriving = bool(state.arriving)
        self._drivers: dict[bytes, int] = {}
        """The only mover from each file of which one was heard since the start."""

    def admit(self, peer: Peer, request: AdmitMover, _: Now) -> None:
        """Have this mover be the only one from its source.

        Raises:
            Conflict: a later one is, or its source was restored from before it gave the number that is known here.
        """
        source, number, address = request.source, request.driver, request.address
        known = self._driver(source)
        if number <= known:
            raise Conflict(cause="other_driver", driver=known)
        self._drivers[source] = number
        batch = self._state.batch

        def write(database: Database, _: Batch) -> None:
            meta.put(database.writer, _driver_key(source), number)
            arriving.put_address(database.writer, source, address)

        def undo(_: Now) -> None:
            self._drivers[source] = known

        batch.add(nothing_to_undo, undo, write)
        batch.replies.append((peer, Driving(request.id, moved.identity(self._state.reader), number)))
        self._state.await_copy(peer, request.id)

    def _driver(self, source: bytes) -> int:
        known = self._drivers.get(source)
        return meta.get_int(self._state.reader, _driver_key(source)) if known is None else known

    def _check_driver(self, source: bytes, number: int) -> None:
        """`Conflict` unless this is the number of the only mover."""
        if number != self._driver(source):
            raise Conflict(cause="other_driver")

    # --- what arrives ---

    def stage(self, peer: Peer, request: StageSlice, now: Now) -> None:
        """Keep a slice; one that is here already changes nothing.

        Raises:
            UsageError: it is malformed.
            Conflict: the submission is known here, or one of its keys is; or another slice should come first; or
                another mover is the only one.
            NoRoom, StorageFull: there is no room for it.
        """
        state = self._state
        self._check_driver(request.source, request.driver)
        if state.is_full:
            raise state.no_room()
        known = arriving.find(state.reader, request.submission_id)
        if request.submission_id in state.staging or (known is not None and known.is_given_up):
            raise Conflict(cause="clearing", submission_id=request.submission_id)
        if known is not None and known.move != request.move:
            raise Conflict(cause="arriving_already", submission_id=request.submission_id)
        expected = 0 if known is None else known.next_slice
        if expected is None or request.number < expected:
            self._answer(peer, request, 0)
            return
        if request.number > expected:
            raise Conflict(cause="out_of_step", submission_id=request.submission_id)
        try:
            if known is None:
                self._stage_header(peer, request, transfer.decode_header(request.content), now)
            else:
                self._stage_rows(request, known, now)
        except (ValueError, msgspec.MsgspecError, RecursionError) as error:
            raise _bad_slice(request.submission_id, error) from error
        state.staging.add(request.submission_id)
        self._answer(peer, request, 1)

    def _answer(self, peer: Peer, request: StageSlice, count: int) -> None:
        self._state.batch.replies.append((peer, Changed(request.id, count)))
        if request.is_last:  # the source may give it away now
            self._state.await_copy(peer, request.id)

    def _stage_header(self, peer: Peer, request: StageSlice, header: Header, now: Now) -> None:
        state, header = self._state, _adapted(header, peer, now)
        row = header.row
        checks.check_header(header, request.submission_id, self._latest_at(row.id, now))
        self._check_new(header)
        self._check_room(_unfinished(row))
        if request.is_last:
            checks.check_whole(row, transfer.NOTHING)
        following = None if request.is_last else 1
        unique_key = _held_key(row)
        removed: removals.Removed | None = None
        kept = transfer.encode(msgspec.structs.replace(header, content=b"", attachment=None))

        def write(database: Database, batch: Batch) -> None:
            nonlocal removed
            writer = database.writer
            found = {key: (lanes.find_or_make(writer, key, value), value) for key, value in header.metadata.items()}
            lane_ids = [lane for lane, _ in found.values()]
            hidden = row._replace(state="removed", finished_at=None, lanes=lanes.encode(found))
            submissions.insert(writer, hidden, header.content, header.attachment, header.about)
            lanes.attach(writer, row.id, lane_ids)
            arriving.put(writer, row.id, request.source, request.move, following, unique_key, kept)
            if header.idempotency_key is not None:
                idempotency_keys.keep(writer, header.idempotency_key, row.id)
            counts = (row.chunks_completed, row.chunks_dead, row.chunks_skipped)
            batch.count(frozenset(lane_ids), (1, row.chunks_total, *counts))
            removed = removals.Removed(row.request_key, hidden.lanes, row.chunks_total, *counts, keeps_content=True)

        def end(_: Now) -> None:
            state.staging.discard(row.id)
            self._keys.leave(row.request_key, header.idempotency_key)
            state.unique_keys.release(unique_key, row.id)

        def settle(now: Now) -> None:
            state.fronts.note_new_lanes()
            state.unique_keys.has_arriving = True
            end(now)
            if removed is not None:
                state.arriving[row.id] = removed

        if shard_of(row.id) != state.shard:
            state.makers.add(shard_of(row.id))
        # What the counters say from now on has no place in the backlog before it is active.
        state.batch.hidden_count += row.chunks_total - row.chunks_dead - row.chunks_skipped
        self._keys.enter(row.request_key, header.idempotency_key, header.content, row.id)
        if unique_key is not None:
            state.unique_keys.take(unique_key, row.id, until_start=False)
        state.batch.add(settle, end, write)

    def _latest_at(self, submission_id: int, now: Now) -> int:
        """When an id may have been made at the latest; one of ours that we did not give away could be the next."""
        state = self._state
        is_ours = shard_of(submission_id) == (state.shard or 0) and moved.find(state.reader, submission_id) is None
        return now.wall - 1 if is_ours else now.wall + FAST_CLOCK_MS

    def _check_new(self, header: Header) -> None:
        """`Conflict` if the submission, or one of its keys, is known here."""
        reader, row = self._state.reader, header.row
        if submissions.is_hidden(reader, row.id):
            raise Conflict(cause="clearing", submission_id=row.id)
        if submissions.is_there(reader, row.id):
            raise Conflict(cause="arrived_before", submission_id=row.id)
        holder = self._keys.holder(row.request_key, header.idempotency_key)
        unique_key = _held_key(row)
        if holder is None and unique_key is not None:
            holder = self._state.unique_keys.holder(unique_key)
        if holder is not None:
            raise Conflict(cause="moved_key_taken", submission_id=row.id, holder=holder)

    def _stage_rows(self, request: StageSlice, known: ArrivingRow, now: Now) -> None:
        found = transfer.decode_slice(request.content)
        submission_id, batch, reader = request.submission_id, self._state.batch, self._state.reader
        row = transfer.decode_header(arriving.header(reader, submission_id)).row
        checks.check_slice(found, row)
        sums = transfer.added(reader, submission_id, known.sums, found)
        if request.is_last:
            checks.check_whole(row, sums)
        following = None if request.is_last else request.number + 1

        def write(database: Database, _: Batch) -> None:
            transfer.put(database.writer, submission_id, found, now.wall)
            arriving.set_next(database.writer, submission_id, following, sums)

        def end(_: Now) -> None:
            self._state.staging.discard(submission_id)

        batch.add(end, end, write)
        batch.arrived += transfer.events_of(submission_id, found)

    # --- what becomes of it ---

    def activate(self, peer: Peer, request: ActivateMoved, _: Now) -> None:
        """Hand out submissions that have arrived, all in one commit; those that are active already are none."""
        folding = self._folding

        def go_on(now: Now) -> None:
            # All of their history is folded, while nobody knows them: so no chunk of theirs is touched by that.
            answers_count = self._state.batch.answers_count
            self._state.attempt(peer, request.id, lambda: self._activate(peer, request, now))
            if self._state.batch.answers_count > answers_count:
                self._state.batch.again.append((acting(go_on), peer, request))

        self._state.batch.after.append(lambda _: folding.after(folding.last_seq, go_on))
        self._state.batch.on_failed.append(lambda error: self._state.refuse(peer, request.id, error))

    def _activate(self, peer: Peer, request: ActivateMoved, now: Now) -> None:
        state = self._state
        found, unknown = self._arrived(request.submission_ids, request.source)
        for one in found:
            self._activate_one(transfer.decode_header(arriving.header(state.reader, one)), now)

        def write(database: Database, _: Batch) -> None:
            dependencies.note_arrived(database.writer, found)

        def settle(_: Now) -> None:
            state.has_untold = dependencies.has_due(state.reader)
            state.note_news()

        if found:
            state.batch.add(settle, nothing_to_undo, write)
        state.batch.replies.append((peer, Activated(request.id, len(found), unknown)))
        state.await_copy(peer, request.id)

    def _arrived(self, ids: Iterable[int], source: bytes) -> tuple[list[int], list[int]]:
        """Those of these that are here and not active yet, nor being activated; and those that are not known.

        One that has moved from here to the source, which has given it away since, is not known by that.
        """
        reader = self._state.reader
        found: list[int] = []
        unknown: list[int] = []
        for submission_id in dict.fromkeys(ids):
            if submission_id in self._state.activating:
                continue
            if submission_id in self._state.staging:
                raise Conflict(cause="clearing", submission_id=submission_id)
            known = arriving.find(reader, submission_id)
            if known is not None and known.next_slice is None and not known.is_given_up:
                found.append(submission_id)
            elif not submissions.is_there(reader, submission_id):
                gone = moved.find(reader, submission_id)
                if gone is None or gone.identity == source:
                    unknown.append(submission_id)
        return found, unknown

    def _activate_one(self, header: Header, now: Now) -> None:
        state, row = self._state, header.row

        def write(database: Database, _: Batch) -> None:
            lane_ids = [lanes.find_or_make(database.writer, *pair) for pair in header.metadata.items()]
            arriving.activate(database.writer, header, lane_ids)
            moved.forget(database.writer, row.id)
            moved.release(database.writer, header.idempotency_key, unique_key)

        state.batch.hidden_count -= _unfinished(row)
        state.activating.add(row.id)
        unique_key = _held_key(row)
        if unique_key is not None:
            until_start = row.unique_until == submissions.UNTIL_START
            state.unique_keys.take(unique_key, row.id, until_start=until_start)
        state.batch.add(lambda now: self._settle_active(row, now), lambda _: self._activation_is_over(row), write)
        for key, weight in header.weights.items():
            pair = (key, header.metadata[key])
            if state.rules.weight(*pair) == 1.0 and pair not in state.rules.weights:
                self._rule_changes.put_weight(*pair, weight, by_submission=True)

    def _activation_is_over(self, row: SubmissionRow) -> None:
        self._state.activating.discard(row.id)
        self._state.unique_keys.release(row.unique_key, row.id)

    def _settle_active(self, row: SubmissionRow, now: Now) -> None:
        state = self._state
        self._activation_is_over(row)
        state.arriving.pop(row.id, None)
        state.states[row.state] += 1
        state.forget_missed(row.id)
        submission = state.submission(row.id)
        if submission is None:
            return
        submission.pins += 1
        if row.state == "open":
            state.restore_delays(submission, now)
            state.became_free(submission)
        self._on_active(submission, now)
        submission.pins -= 1
        state.forget_if_over(submission)

    def give_up(self, peer: Peer, request: GiveUpMoved, _: Now) -> None:
        """Have what is here of submissions removed.

        Raises:
            Conflict: another mover is the only one.
        """
        self._check_driver(request.source, request.driver)
        self._giving_up.of_mover(peer, request)


def _driver_key(source: bytes) -> str:
    """Under which the number of the last mover from a file is in `meta`."""
    return f"move_driver {source.hex()}"


def _bad_slice(submission_id: int, error: Exception) -> UsageError:
    return UsageError(cause="bad_slice", submission_id=submission_id, complaint=str(error))


def _held_key(row: SubmissionRow) -> str | None:
    """The unique key that no other may have while this one has not ended, or not started."""
    is_held = row.state in submissions.UNFINISHED_STATES and row.unique_until != submissions.STARTED
    return row.unique_key if is_held else None


def _unfinished(row: SubmissionRow) -> int:
    return row.chunks_total - row.chunks_completed - row.chunks_dead - row.chunks_skipped


def _adapted(header: Header, peer: Peer, now: Now) -> Header:
    """A header as it holds here: durations end as late as they would have, by our clock.

    The user who has submitted it is believed only of one who could have done so.
    """
    row, step_ms = header.row, now.wall - header.exported_at
    if row.delay_ms is not None and row.not_before_at is not None:
        row = row._replace(not_before_at=row.not_before_at + step_ms)
    if row.expires_ms is not None and row.expires_at is not None:
        row = row._replace(expires_at=row.expires_at + step_ms)
    if peer.uid is None or peer.uid not in {ROOT, row.submitter}:
        row = row._replace(submitter=None)
    return msgspec.structs.replace(header, row=row._replace(shuffle=shuffle_of(row.id)))

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

from opsq.clock import MonoNs, Now
from opsq.errors import OpsqError, ProtocolError
from opsq.queue.faults import Fatal
from opsq.queue.peer import Peer
from opsq.queue.policy import Policy
from opsq.queue.rooms import Rooms
from opsq.queue.views.watchdog import Waiting
from opsq.store.database import Database, Deposed
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
        self._rooms = rooms = Rooms(database, policy, now, rng or random.Random(), folders, boot)
        self._state = rooms.state
        self._folding = rooms.folding
        self._reservations = rooms.reservations
        self._event_stream = rooms.event_stream
        self._dead_letters = rooms.dead_letters
        self._admission = rooms.admission
        self._reserve_calls = rooms.reserve_calls
        self._pipelined = rooms.pipelined
        self._unique_until_start = rooms.unique_until_start
        self._finisher = rooms.finisher
        self._full_disk = rooms.full_disk
        self._commits = rooms.commits
        self._views = rooms.views
        self._clock_steps = rooms.clock_steps
        self._verbs = rooms.verbs
        self._timed_if_room = (
            rooms.submitter,
            rooms.schedules,
            rooms.finisher,
            rooms.expiry,
            rooms.dependencies,
            rooms.holds,
        )
        """What is done by the clock and writes: on a full disk it waits, whatever is due."""
        self._heard = now
        self._last_tick: MonoNs = now.mono

    @property
    def outbox(self) -> list[tuple[Peer, m.Reply]]:
        """Replies and pushes to be sent now; the driver empties it after each call."""
        return self._state.outbox

    @property
    def removed_content(self) -> list[str]:
        """Hex request keys of submissions that are gone, whose content the driver is to delete; it empties the list."""
        return self._finisher.removed_content

    def expects(self, request_key: bytes) -> bool:
        """Whether this request has made a submission, or may be about to: it is being committed, or waits for room."""
        return self._rooms.submitter.expects(request_key)

    @property
    def shard(self) -> int | None:
        """The number of the file among the shards of a queue, 0 to 1023; None: it has none."""
        return self._state.shard

    @property
    def makers(self) -> list[int]:
        """The numbers of the other shards that made submissions which have moved here."""
        return sorted(self._state.makers)

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

    # --- requests ---

    def connect(self, name: str, now: Now, uid: int | None = None, host: str = "", pid: int = 0) -> Peer:
        """A new connection of a consumer or producer that calls itself `name`; see `Peer`."""
        return Peer(name, now, uid, host, pid)

    def disconnect(self, peer: Peer, now: Now) -> None:
        """A connection is gone: what it had started counts as lost, what it had not is free."""
        peer.is_connected = False
        self._reserve_calls.disconnect(peer)
        self._rooms.subscriptions.disconnect(peer)
        self._event_stream.disconnect(peer)
        self._admission.disconnect(peer)
        self._rooms.holds.disconnect(peer)
        self._rooms.expiry.disconnect(peer, now)
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
            self._rooms.expiry.hold(MonoNs(now.mono + heartbeat_ns))
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
            self._rooms.retention.tick(now)
        self._admission.tick(now)
        state.gates.tick(now)
        self._rooms.failures.tick(now)
        self._serve(now)  # what has become free goes to those whose time is over now, too
        self._reserve_calls.tick(now)
        self._rooms.subscriptions.tick(now)
        self._event_stream.tick(now)

    def next_tick_s(self, now: Now, limit_s: float = TICK_LIMIT_S) -> float:
        """Seconds until `tick` has something to do, at most `limit_s`: more than a second if nobody steps the clock."""
        state = self._state
        rest_s = self._commits.rest_s(now)
        if rest_s:
            return min(rest_s, 0.1)
        if self._rooms.retention.is_active:
            return 0.0
        left_s = limit_s
        waiting = (self._reserve_calls, self._rooms.subscriptions, self._event_stream, self._admission)
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
        found = self._rooms.watchdog.look(now)
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

    @property
    def is_losing(self) -> bool:
        """Whether chunks of consumers that are gone are still to be counted as lost, which `tick` goes on with."""
        return self._rooms.expiry.is_losing and not self.is_full

    def save_reservations(self, now: Now) -> None:
        """Turn what connections hold into leases that outlive a restart; takes effect with the next batch."""
        self._rooms.leases.save(now)

    def fold_all(self) -> None:
        """Have the next batches fold everything, so that the stopped file tells the whole truth by itself."""
        self._folding.is_urgent = True
        self._state.fronts.save_passes(everything=True)

"""The rules about schedules: added, edited, paused, resumed, triggered, backfilled and removed, while the clock passes.

Which instants come depends on what has ended by then, so the engine is watched as it decides, and what it says it has
decided must add up: each instant that passed was fired, skipped, missed or waits, and none was fired twice.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import msgspec
from hypothesis import strategies as st
from hypothesis.stateful import precondition, rule

from opsq.clock import Now
from opsq.queue.engine import Peer
from opsq.queue.live_submission import LiveSubmission
from opsq.queue.schedules.table import KnownSchedule
from opsq.store import schedules
from opsq.wire import messages as m
from unit.model.consuming import Consuming, numbers

NAMES = ("s", "t")
TEMPLATE = m.NewSubmission(bytes(16), 0, max_attempts=2, max_lost=2, reservation_s=5.0)
TIMINGS = st.fixed_dictionaries(
    {
        "when": st.sampled_from(["every 5s", "every 12s", "every 40s"]),
        "overlap": st.sampled_from(["skip", "queue", "allow", "cancel"]),
        "catch_up": st.sampled_from(["none", "last", "all"]),
        "pauses_on_failure": st.booleans(),
    }
)


@dataclass
class Span:
    """Instants in a row that count: those after one instant up to another (None: up to where it is decided)."""

    every_ms: int
    after: int
    until: int | None = None

    def count(self, anchor: int, decided_at: int) -> int:
        until = decided_at if self.until is None else self.until
        return (until - anchor) // self.every_ms - (self.after - anchor) // self.every_ms


@dataclass
class Watched:
    """What has been committed of one schedule."""

    created_at: int
    spans: list[Span]
    fired: set[int] = field(default_factory=set)
    fired_before: int = 0
    """How many were fired that a clock which was set back, and a change, have had decided again."""
    dropped: int = 0
    """How many that waited are decided again for that."""

    def decided(self, decided_at: int) -> int:
        """How many instants must have been decided."""
        anchor = self.created_at // 1000 * 1000
        return sum(span.count(anchor, decided_at) for span in self.spans) - self.dropped

    def decide_again(self, after: int, waiting: tuple[int, ...]) -> None:
        """What comes after an instant is decided again, whether it was fired or waits."""
        again = {one for one in self.fired if one > after}
        self.fired -= again
        self.fired_before += len(again)
        self.dropped += sum(one > after for one in waiting)


class Scheduling(Consuming):
    """The schedules' part of the state machine."""

    def __init__(self) -> None:
        super().__init__()
        self.schedules: dict[str, Watched] = {}  # as the file has them
        self.coming: dict[str, Watched] = {}  # as the engine has them
        self.is_backfilling = False
        self.watch_engine()

    def watch_engine(self) -> None:
        """Have the model told of each submission that a new engine makes by the clock, or cancels."""
        desk = self.rig.engine._rooms.schedules
        submit, cancel, fire, tick = desk._submit, desk._cancel, desk._fire, desk.tick

        def submitted(peer: Peer, new: m.NewSubmission, now: Now) -> m.Created:
            known = self.model.known(new)
            created = submit(peer, new, now)
            assert created.is_new == (known is None), "made twice"
            if created.is_new:
                self.model.submit(new, created.submission_id, now)
            return created

        def cancelled(submission: LiveSubmission, reason: str, now: Now) -> bool:
            is_running = cancel(submission, reason, now)
            assert self.model.cancel(submission.id) == is_running
            return is_running

        def fired(known: KnownSchedule, planned: int, now: Now) -> m.Created:
            # The clock may have been set back since an instant came that waits.
            assert planned <= now.wall or planned in known.row.waiting or self.is_backfilling, "too early"
            watched = self.coming[known.row.name]
            if not self.is_backfilling:
                self._intend(lambda: self._note_fired(watched, planned))
            return fire(known, planned, now)

        def ticked(now: Now) -> None:
            tick(now)
            self.model.tick_behind_schedules(now)

        desk._submit, desk._cancel = submitted, cancelled
        desk._fire = fired  # type: ignore[method-assign]
        desk.tick = ticked  # type: ignore[method-assign]

    def _note_fired(self, watched: Watched, planned: int) -> None:
        assert planned not in watched.fired, "fired twice"
        watched.fired.add(planned)

    # --- rules ---

    @precondition(lambda self: not self.model.is_full)
    @rule(peer=numbers, name=st.sampled_from(NAMES), timing=TIMINGS)
    def add_or_edit_schedule(self, peer: int, name: str, timing: dict[str, object]) -> None:
        known = self._known_schedule(name)
        catch_up_s = 20.0 if timing["catch_up"] == "all" else None  # so that a day makes no thousand submissions
        new = msgspec.structs.replace(m.Schedule(name, "", TEMPLATE), catch_up_s=catch_up_s, **timing)
        before = None if known is None else known.row
        self._change(peer, m.PutSchedule(next(self.rig.ids), new, before is not None))
        row = self._row(name)
        every_ms = row_every_ms(row)
        if before is None:
            watched = Watched(row.created_at, [Span(every_ms, row.decided_at)])
            self.coming[name] = watched
            self._intend(lambda: self.schedules.update({name: watched}))
        else:
            until = max(row.decided_at, before.decided_at) if before.paused_at is None else before.decided_at
            self._begin_span(name, every_ms, until, row, before.waiting)

    @precondition(lambda self: not self.model.is_full)
    @rule(peer=numbers, name=st.sampled_from(NAMES))
    def pause_schedule(self, peer: int, name: str) -> None:
        if self._known_schedule(name) is not None:
            self._change(peer, m.PauseSchedule(next(self.rig.ids), name))

    @precondition(lambda self: not self.model.is_full)
    @rule(peer=numbers, name=st.sampled_from(NAMES))
    def resume_schedule(self, peer: int, name: str) -> None:
        known = self._known_schedule(name)
        if known is not None:
            before = known.row
            self._change(peer, m.ResumeSchedule(next(self.rig.ids), name))
            row = self._row(name)
            assert row.decided_at == (before.decided_at if before.paused_at is None else self.now.wall), "from now"
            self._begin_span(name, row_every_ms(row), before.decided_at, row, before.waiting)

    @precondition(lambda self: not self.model.is_full)
    @rule(peer=numbers, name=st.sampled_from(NAMES))
    def trigger_schedule(self, peer: int, name: str) -> None:
        if self._known_schedule(name) is not None and len(self.model.submissions) < 6:
            self._change(peer, m.TriggerSchedule(next(self.rig.ids), name))

    @precondition(lambda self: not self.model.is_full)
    @rule(peer=numbers, name=st.sampled_from(NAMES), from_s=st.integers(0, 60))
    def backfill_schedule(self, peer: int, name: str, from_s: int) -> None:
        if self._known_schedule(name) is not None and len(self.model.submissions) < 6:
            wall = self.now.wall
            request = m.BackfillSchedule(next(self.rig.ids), name, wall - from_s * 1000, wall - from_s * 1000 + 15_000)
            self.is_backfilling = True
            try:
                self._change(peer, request)
            finally:
                self.is_backfilling = False

    @precondition(lambda self: not self.model.is_full)
    @rule(peer=numbers, name=st.sampled_from(NAMES), number=numbers)
    def remove_schedule(self, peer: int, name: str, number: int) -> None:
        if self._known_schedule(name) is not None and number % 4 == 0:
            self._change(peer, m.RemoveSchedule(next(self.rig.ids), name))
            del self.coming[name]
            self._intend(lambda: self.schedules.pop(name))

    @rule(peer=numbers, name=st.sampled_from(NAMES))
    def end_what_a_schedule_has_made(self, peer: int, name: str) -> None:
        """What waits for the end of that goes on."""
        mine = [one for one in self.model.submissions.values() if one.new.metadata.get("schedule") == name]
        open_ids = [one.id for one in mine if one.is_open]
        if open_ids:
            count = self.model.cancel(open_ids[0])
            request = m.Cancel(next(self.rig.ids), open_ids[0])
            self._ask(self._peer(peer), request, lambda reply: reply.count == count)

    def _change(self, peer: int, request: m.Request) -> None:
        self._ask(self._peer(peer), request, lambda reply: isinstance(reply, m.Changed | m.Submitted))

    def _intend(self, settle: Callable[[], object]) -> None:
        """Do this once the batch is committed; if it is not, there is nothing to undo."""
        self.model.forming.changes.append((lambda _: settle(), lambda _: None))

    def _begin_span(
        self, name: str, every_ms: int, until: int, row: schedules.ScheduleRow, waiting: tuple[int, ...]
    ) -> None:
        """What is planned changes, or was passed over in between; `waiting` waited before."""
        watched = self.coming[name]

        def settle() -> None:
            watched.spans[-1].until = until
            watched.spans.append(Span(every_ms, row.decided_at))
            watched.decide_again(row.decided_at, waiting)

        self._intend(settle)

    def forget_what_came(self) -> None:
        """All that was not committed is gone."""
        self.coming = dict(self.schedules)

    # --- what always holds ---

    def check_schedules(self) -> None:
        """Every instant up to where a schedule is decided is counted once, and what it knows to run is there."""
        rows = {row.name: row for row in schedules.all_rows(self.rig.database.reader)}
        assert rows.keys() == self.schedules.keys()
        for name, row in rows.items():
            watched = self.schedules[name]
            sums = row.fired_count + row.skipped_count + row.missed_count + len(row.waiting)
            assert sums == watched.decided(row.decided_at), (row, watched)
            assert row.fired_count == len(watched.fired) + watched.fired_before
            assert not watched.fired & set(row.waiting)

    def _known_schedule(self, name: str) -> KnownSchedule | None:
        return self.rig.idle_engine._rooms.schedules._table.get(name)

    def _row(self, name: str) -> schedules.ScheduleRow:
        known = self._known_schedule(name)
        assert known is not None
        return known.row


def row_every_ms(row: schedules.ScheduleRow) -> int:
    """How often the instants of a schedule come."""
    when = msgspec.msgpack.decode(row.definition, type=m.Schedule).when
    return {"every 5s": 5_000, "every 12s": 12_000, "every 40s": 40_000}[when]

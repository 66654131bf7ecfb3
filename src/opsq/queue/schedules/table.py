"""The schedules in memory, and in the file with the batch: what each is, when it is due, and what of it has not ended.

A change holds in memory at once; if its batch fails, the file says what holds. It must not decide what is made.
"""

from __future__ import annotations

import hashlib
import heapq
from collections import deque
from collections.abc import Iterator

import msgspec

from opsq.errors import NotFound
from opsq.queue.batch import Batch
from opsq.queue.schedules.plan import Plan
from opsq.queue.state import EngineState
from opsq.store import schedules
from opsq.store.database import Database
from opsq.store.schedules import ScheduleRow
from opsq.wire.messages import Schedule

STALE_DUE = 100
"""Instants of schedules that were changed or removed, beyond as many as there are schedules, before they are dropped:
each would stay until it has come, which may be years."""

_definition = msgspec.msgpack.Decoder(Schedule)


class KnownSchedule:
    """A schedule in memory."""

    __slots__ = ("_found", "due", "plan", "row", "schedule")

    def __init__(self, row: ScheduleRow) -> None:
        self.row = row
        self.schedule = _definition.decode(row.definition)
        self.plan = plan_of(self.schedule, row.created_at)
        self._found: tuple[int, int | None] = (-1, None)
        """The last instant that was asked about, and its answer: it is asked again when the first is decided."""
        self.due: int | None = None
        """The wall-clock instant at which its next planned instant is to be decided, or looked for."""

    def after(self, planned: int) -> int | None:
        """The next planned instant before its end."""
        asked, found = self._found
        if asked != planned:
            found, until = self.plan.after(planned), self.schedule.until_at
            if found is not None and until is not None and found >= until:
                found = None
            self._found = planned, found
        return found

    @property
    def chunks_count(self) -> int:
        """How many chunks each of its submissions has."""
        return self.schedule.template.chunks_count or 1

    def is_due(self, wall_ms: int) -> bool:
        """Whether there may be something to decide."""
        return self.due is not None and self.due <= wall_ms

    def due_at(self, planned: int) -> int:
        """When an instant is to be decided: always the same for one, so that a restart changes nothing."""
        jitter_ms = int(self.schedule.jitter_s * 1000)
        return planned + (int.from_bytes(self.key_of(planned)[:7], "big") % (jitter_ms + 1))

    def key_of(self, planned: int) -> bytes:
        """The request key of the submission of a planned instant."""
        text = f"{self.row.name} {planned}".encode()
        return hashlib.blake2b(text, digest_size=16, person=b"opsq schedule").digest()


class ScheduleTable:
    """All schedules."""

    def __init__(self, state: EngineState) -> None:
        self._state = state
        self._known: dict[str, KnownSchedule] = {}
        self._due: list[tuple[int, str]] = []
        """A heap of when schedules are due; where `KnownSchedule.due` says otherwise, that holds."""
        self._open: dict[int, str] = {}
        """Schedule by its submission that has not ended."""
        self.ended: deque[tuple[int, str]] = deque()
        """Submissions that have ended, with their schedules, whose rows do not say so yet."""

    def restore(self) -> None:
        """Take up what the file says; when each is due is found out when it is looked at first."""
        for row in schedules.all_rows(self._state.reader):
            self._load(row)

    def get(self, name: str) -> KnownSchedule | None:
        """The schedule of this name."""
        return self._known.get(name)

    def find(self, name: str) -> KnownSchedule:
        """The schedule of this name; `NotFound` if there is none."""
        known = self._known.get(name)
        if known is None:
            raise NotFound(cause="unknown_schedule", name=name)
        return known

    def behind(self, name: str, count: int) -> tuple[list[KnownSchedule], bool]:
        """The first schedules by name behind this one, and whether there are more. Cost: sorts all names."""
        names = sorted(other for other in self._known if other > name)
        return [self._known[other] for other in names[:count]], len(names) > count

    def change(self, row: ScheduleRow) -> None:
        """A schedule is as the row says."""
        self.plan(self._keep(row))

        def write(database: Database, _: Batch) -> None:
            schedules.put(database.writer, row)

        self._state.batch.add(_nothing, lambda _: self._reload(row.name), write)

    def remove(self, name: str) -> None:
        """Forget a schedule."""
        self._forget(name)
        self._state.batch.add(_nothing, lambda _: self._reload(name), lambda db, _: schedules.delete(db.writer, name))

    def note_ended(self, submission_id: int) -> None:
        """A submission has ended."""
        name = self._open.pop(submission_id, None)
        if name is not None:
            self.ended.append((submission_id, name))

    def take_due(self, wall_ms: int) -> Iterator[KnownSchedule]:
        """Those that may be due, one after the other; each that is taken is to be changed or planned."""
        while self._due and self._due[0][0] <= wall_ms:
            due, name = heapq.heappop(self._due)
            known = self._known.get(name)
            if known is not None and known.due == due:
                known.due = None
                yield known

    def next_due(self) -> int | None:
        """The wall-clock instant at which the next may be due."""
        return self._due[0][0] if self._due else None

    def _reload(self, name: str) -> None:
        """What was to be stored is gone."""
        self._forget(name)
        row = schedules.find(self._state.database.latest, name)
        if row is not None:
            self._load(row)

    def _load(self, row: ScheduleRow) -> None:
        """Keep a row of the file, and find out what has ended that it does not know.

        Not what ends, or is made, in a transaction that is open: that is told once it is committed.
        """
        known = self._keep(row)
        if row.paused_at is None:  # ten thousand plans would hold up a start by 0.6 s
            self._note_due(known, row.decided_at)
        sources = {self._state.reader, self._state.database.latest}
        running = set[int]().union(*(schedules.running(one, row.open_ids) for one in sources))
        for submission_id in row.open_ids:
            if submission_id not in running:
                self.note_ended(submission_id)
        self.note_waiting(row)

    def note_waiting(self, row: ScheduleRow) -> None:
        """What waits for the end of nothing goes on: no submission that ends will say so."""
        if row.waiting and not row.open_ids and row.paused_at is None:
            self.ended.append((0, row.name))

    def _keep(self, row: ScheduleRow) -> KnownSchedule:
        known = self._known.get(row.name)
        old_ids = known.row.open_ids if known is not None else ()
        if known is None or known.row.definition != row.definition:
            known = self._known[row.name] = KnownSchedule(row)
        known.row = row
        if row.open_ids != old_ids:
            self._open |= dict.fromkeys(row.open_ids, row.name)
        return known

    def plan(self, known: KnownSchedule) -> None:
        """Find out when a schedule is due."""
        row = known.row
        planned = None if row.paused_at is not None else known.after(row.decided_at)
        self._note_due(known, None if planned is None else known.due_at(planned))

    def _note_due(self, known: KnownSchedule, due: int | None) -> None:
        if due is not None and due != known.due:
            heapq.heappush(self._due, (due, known.row.name))
        known.due = due
        if len(self._due) > 2 * len(self._known) + STALE_DUE:
            self._due = [(one.due, name) for name, one in self._known.items() if one.due is not None]
            heapq.heapify(self._due)

    def _forget(self, name: str) -> None:
        known = self._known.pop(name, None)
        for submission_id in known.row.open_ids if known is not None else ():
            self._open.pop(submission_id, None)


def plan_of(schedule: Schedule, created_at: int) -> Plan:
    """The instants of a schedule; `every` counts from its beginning, else from the second in which it was added."""
    anchor = created_at // 1000 * 1000 if schedule.from_at is None else schedule.from_at
    return Plan(schedule.when, schedule.zone, anchor)


def _nothing(_: object) -> None:
    """Memory knew it at once."""

"""The notifier: takes events, notes whom each is for, and has it delivered, again and again until it was or is dead.

Nothing is lost: the cursor moves in the transaction that notes what is to be delivered. What one subject has for one
target is delivered in order, one after the other. It must not know how a target is notified.
"""

from __future__ import annotations

import contextlib
import heapq
import queue
import random
import threading
from collections import Counter, deque
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

import msgspec

from opsq.clock import after, now
from opsq.documents.event_cursor import EventCursor
from opsq.documents.events import EventDocument
from opsq.notify.target import Delivery, Failure, Target
from opsq.store.deliveries import Deliveries, NewDelivery, Waiting
from opsq.units import counted
from opsq.wire.messages import Event, EventRows

WAITING_LIMIT = 10_000
"""With so many deliveries to be made to each target, no more events are taken; the daemon keeps them meanwhile."""
WAITING_MOST = 100_000
"""With so many to one target, while others have fewer than the limit, what is new for it is dead at once."""
DEAD_MOST = 100_000
"""So many that are dead are kept, the newest."""
FORGET_S = 60.0
"""How often what is dead for too long is looked for."""
PAGE_ROWS = 200
LOOK_S = 1.0
"""How often it is looked whether something was changed from outside."""
_STOPS = 2
"""The first ends the reading, the second the patience with what is being delivered."""
BACKOFF_FACTOR, BACKOFF_MOST_S = 5.0, 36_000.0
_event = msgspec.json.Decoder(EventDocument)

Ask = Callable[[EventCursor | None], EventRows]
"""The next events behind a cursor; waits for one, but not for long."""


class Tries(NamedTuple):
    """How often and how fast is tried again: after `first_s`, then five times as long each time, up to ten hours."""

    most: int = 10
    first_s: float = 5.0

    def delay_s(self, attempts: int) -> float:
        """How long to wait after so many attempts, with some chance in it."""
        return min(self.first_s * BACKOFF_FACTOR ** (attempts - 1), BACKOFF_MOST_S) * random.uniform(0.9, 1.1)


class _Line:
    """What is to be delivered to one target."""

    def __init__(self, target: Target) -> None:
        self.target = target
        self.count = 0
        self.running_count = 0
        self._subjects: dict[str, deque[Waiting]] = {}
        self._due: list[tuple[int, int, str]] = []
        """The first delivery of each subject that is not being made: when it is due, its id, the subject."""

    def add(self, one: Waiting) -> None:
        """Append a delivery."""
        subject = self._subjects.setdefault(one.subject, deque())
        subject.append(one)
        self.count += 1
        if len(subject) == 1:
            heapq.heappush(self._due, (one.due_at, one.id, one.subject))

    def take_due(self, at: int, limit: int) -> Iterator[Waiting]:
        """Deliveries that are due then, while fewer than `limit` are being made."""
        while self.running_count < limit and self._due and self._due[0][0] <= at:
            _, _, subject = heapq.heappop(self._due)
            self.running_count += 1
            yield self._subjects[subject][0]

    def ended(self, subject: str, again: Waiting | None) -> None:
        """The first delivery of a subject was made or given up, or is to be made again."""
        self.running_count -= 1
        waiting = self._subjects[subject]
        waiting.popleft()
        if again is None:
            self.count -= 1
        else:
            waiting.appendleft(again)
        if waiting:
            heapq.heappush(self._due, (waiting[0].due_at, waiting[0].id, subject))
        else:
            del self._subjects[subject]

    def next_due(self) -> int | None:
        """When the next may be made."""
        return self._due[0][0] if self._due else None


class Notifier:
    """Delivers events.

    Args:
        ask: where events come from; called in a thread.
        jobs: how many deliveries to one target are made at once.
        on_failure: told of each failed delivery, in a line.
        dead_days: how long those that were given up are kept.
    """

    def __init__(
        self,
        deliveries: Deliveries,
        targets: Sequence[Target],
        ask: Ask,
        *,
        jobs: int,
        tries: Tries,
        on_failure: Callable[[str], None],
        dead_days: float,
    ) -> None:
        self._deliveries = deliveries
        self._targets = targets
        self._ask = ask
        self._jobs = jobs
        self._tries = tries
        self._on_failure = on_failure
        self._dead_ms = round(dead_days * 86_400_000)
        self._forget_at = now().mono
        self._inbox: queue.SimpleQueue[EventRows | BaseException | tuple[Waiting, Failure | None] | None]
        self._inbox = queue.SimpleQueue()
        self._wants_more = threading.Semaphore(0)
        self._lines = {target.name: _Line(target) for target in targets}
        self._known: set[int] = set()
        """Deliveries that are to be made, or being made."""
        self.running_count = 0
        self._has_page = False
        self._version = 0
        self._end_seq: int | None = None
        self._stops_count = 0
        self._is_once = False
        self._seen_seq, self._seen_at = 0, -1
        """Of a queue that was put back, what is up to both was taken before."""
        self.delivered_count = 0
        cursor, at, self._origin = deliveries.progress()
        self.cursor = None if cursor is None else EventCursor(cursor, at or None)

    @property
    def waiting_count(self) -> int:
        """How many deliveries are to be made."""
        return len(self._known)

    def begin(self, since: EventCursor) -> None:
        """Set where to begin, when it has never run."""
        self._deliveries.take(since.seq, since.at or 0, [], 0)
        self.cursor = since

    def run(self, *, once: bool) -> None:
        """Deliver until `stop`; or `once`, until all that has happened by now was tried.

        Raises:
            OpsqError: the daemon does not answer as it should.
        """
        self._is_once = once
        self._load()
        threading.Thread(target=self._read, name="opsq-notify-reader", daemon=True).start()
        self._want_more()
        while not self._stops_count:
            self._forget()
            self._start()
            if once and self._is_done():
                return
            self._handle(self._patience_s())
            if self._deliveries.version() != self._version:
                self._load()  # `opsq notify retry` was given

    def stop(self) -> None:
        """Have `run` return; the second time, `finish` too. Safe in a signal handler."""
        self._stops_count += 1
        self._inbox.put(None)

    def finish(self, within_s: float) -> None:
        """Wait for what is being delivered, and give up on it after a time: it is delivered again at the next start."""
        deadline = after(now().mono, within_s)
        with contextlib.ExitStack() as targets:
            for target in self._targets:
                targets.callback(target.abandon)
            while self.running_count and self._stops_count < _STOPS and (left_ns := deadline - now().mono) > 0:
                self._handle(min(left_ns / 1e9, LOOK_S))

    # --- events ---

    def _read(self) -> None:
        """The thread that asks: one page at a time, and none while too much waits for every target."""
        since = self.cursor
        while True:
            self._wants_more.acquire()
            try:
                page = self._ask(since)
            except BaseException as error:  # noqa: BLE001  # it ends the process, from the thread that runs it
                self._inbox.put(error)
                return
            since = EventCursor.behind(page)
            self._inbox.put(page)

    def _want_more(self) -> None:
        if not self._has_page and not self._is_full() and not (self._is_once and self._has_read()):
            self._has_page = True
            self._wants_more.release()

    def _take(self, page: EventRows) -> None:
        """Note whom the events are for."""
        self._has_page = False
        if self._end_seq is None:
            self._end_seq = page.last_seq
        events, reached = page.events, EventCursor.behind(page)
        if self.cursor is not None and events and events[0].kind == "lost" and events[0].count is None:
            # The queue was put back: what comes again was taken before, but nothing newer, whatever the clock said.
            self._seen_seq, self._seen_at = min(self.cursor.seq, page.last_seq), self.cursor.at or -1
        events = [
            event for event in events if event.kind == "lost" or event.seq > self._seen_seq or event.at > self._seen_at
        ]
        if events or reached != self.cursor:
            new = [one for event in events for one in self._addressed(event)]
            for waiting in self._deliveries.take(reached.seq, reached.at or 0, new, now().wall):
                self._add(waiting)
            for name, count in Counter(one.target for one in new if one.error).items():
                self._on_failure(f"{name}: {WAITING_MOST:,} deliveries wait already; {count} new ones are dead.")
        self.cursor = reached

    def _addressed(self, event: Event) -> Iterator[NewDelivery]:
        document = EventDocument.of(event)
        message = f"msg_{self._origin}_{event.at:x}_{event.seq}"
        for target in self._targets:
            if target.takes(event.kind):
                is_lost = self._lines[target.name].count >= WAITING_MOST
                error = f"{WAITING_MOST:,} deliveries to {target.name} waited already" if is_lost else ""
                body = msgspec.json.encode(document)
                yield NewDelivery(target.name, document.subject, message, event.at, body, error)

    # --- deliveries ---

    def _load(self) -> None:
        """Take up what the file says is to be delivered and is not known; what has no target any more is dead."""
        self._version = self._deliveries.version()
        for waiting in self._deliveries.waiting():
            if waiting.id in self._known:
                continue
            if waiting.target in self._lines:
                self._add(waiting)
            else:
                text = f"opsq.toml has no {waiting.target} any more"
                self._deliveries.bury(waiting.id, waiting.attempts, now().wall, text)
                self._on_failure(f"{waiting.target}: {text}; delivery {waiting.id} is dead.")

    def _add(self, waiting: Waiting) -> None:
        self._lines[waiting.target].add(waiting)
        self._known.add(waiting.id)

    def _start(self) -> None:
        """Have made what is due, each in a thread of its own: at most `jobs` for a target."""
        at = now().wall
        for line in self._lines.values():
            for waiting in line.take_due(at, self._jobs):
                found = self._deliveries.message(waiting.id)
                if found is None:
                    self._ended(waiting, None)
                    continue
                self.running_count += 1
                work = (line.target, waiting, *found)
                threading.Thread(target=self._deliver, args=work, name="opsq-notify", daemon=True).start()

    def _deliver(self, target: Target, waiting: Waiting, message: str, body: bytes) -> None:
        """In a thread of its own."""
        try:
            failure = target.deliver(Delivery(message, _event.decode(body)))
        except Exception as error:  # noqa: BLE001  # a delivery that fails in a new way must not be lost
            failure = Failure(f"{type(error).__name__}: {error}")
        self._inbox.put((waiting, failure))

    def _handle(self, within_s: float) -> None:
        """Wait for something to happen, and deal with it."""
        try:
            found = self._inbox.get(timeout=max(within_s, 0.0))
        except queue.Empty:
            return
        if isinstance(found, BaseException):
            raise found
        if isinstance(found, EventRows):
            self._take(found)
        elif found is not None:
            self._delivered(*found)
        self._want_more()

    def _delivered(self, waiting: Waiting, failure: Failure | None) -> None:
        self.running_count -= 1
        again: Waiting | None = None
        if failure is None:
            self._deliveries.delivered(waiting.id)
            self.delivered_count += 1
        else:
            again = self._failed(waiting, failure)
        self._ended(waiting, again)

    def _ended(self, waiting: Waiting, again: Waiting | None) -> None:
        self._lines[waiting.target].ended(waiting.subject, again)
        if again is None:
            self._known.discard(waiting.id)

    def _failed(self, waiting: Waiting, failure: Failure) -> Waiting | None:
        """What is to be made again; None: it is dead."""
        attempts, at = waiting.attempts + 1, now().wall
        told = f"{waiting.target}: delivery {waiting.id} ({waiting.subject}) failed: {failure.text}"
        if failure.is_final or attempts >= self._tries.most:
            self._deliveries.bury(waiting.id, attempts, at, failure.text)
            self._on_failure(f"{told}; it is dead after {attempts} of {counted(self._tries.most, 'attempt')}.")
            return None
        delay_s = max(self._tries.delay_s(attempts), failure.retry_after_s)
        again = waiting._replace(attempts=attempts, due_at=at + round(delay_s * 1000))
        self._deliveries.failed(waiting.id, attempts, again.due_at, failure.text)
        self._on_failure(f"{told}; attempt {attempts} of {self._tries.most}, again in {delay_s:.3g} s.")
        return again

    def _forget(self) -> None:
        """Drop, once a minute, what has been dead for too long, and the oldest where too much is dead."""
        instant = now()
        if instant.mono >= self._forget_at:
            self._forget_at = after(instant.mono, FORGET_S)
            if count := self._deliveries.forget(instant.wall - self._dead_ms, DEAD_MOST):
                self._on_failure(f"Dead deliveries forgotten: {count}.")

    # --- when ---

    def _has_read(self) -> bool:
        """Whether all that had happened at the start was taken."""
        return self.cursor is not None and self._end_seq is not None and self.cursor.seq >= self._end_seq

    def _is_full(self) -> bool:
        """Whether so much waits for every target that no more is taken."""
        return all(line.count >= WAITING_LIMIT for line in self._lines.values())

    def _is_done(self) -> bool:
        """Whether all of that, or all that there is room for, was taken, and nothing is due or under way."""
        due_at = self._due_at()
        is_idle = not self.running_count and (due_at is None or due_at > now().wall)
        return is_idle and (self._has_read() or self._is_full())

    def _due_at(self) -> int | None:
        """When a delivery is due that may be made then."""
        lines = [line for line in self._lines.values() if line.running_count < self._jobs]
        return min((at for line in lines if (at := line.next_due()) is not None), default=None)

    def _patience_s(self) -> float:
        """How long nothing needs to be done unless something happens."""
        due_at = self._due_at()
        return LOOK_S if due_at is None else min(LOOK_S, max((due_at - now().wall) / 1000, 0.0))

"""A relay: takes rows of an outbox, hands them to the daemon, and only then has the outbox forget them.

A row that is handed over again changes nothing, so this file needs no state of its own, and may be killed at any point.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import NamedTuple, Protocol

from opsq.client.core.transport import Backoff
from opsq.errors import OpsqError, Refused, Unreachable
from opsq.outbox.hand_over import HandOver, Outcome
from opsq.outbox.waiting_rows import COMPLETIONS, SUBMISSIONS, Left, Outbox

REFUSED_LIMIT_COUNT = 100
"""A relay remembers so many of the rows that it has set aside."""
_ROOM_S = 1.0
_PRUNE_S = 600.0


class Stop(Protocol):
    """What says that a relay is to end."""

    count: int
    """0: it is not."""
    fileno: int
    """Becomes readable when it is."""

    def wait(self, timeout_s: float) -> None:
        """Wait until it is to end, or the time is over."""


class Aside(NamedTuple):
    """A row that was set aside: its table and number there, and why."""

    table: str
    seq: int
    reason: str


class Relay:
    """Moves rows.

    Args:
        outbox: where from.
        daemon: where to.
        batch: how many rows are handed over together.
        poll_s: how long it waits for a notice of new rows before it looks for itself.
        keep_s: how long completions stay after they were handed over.
        on_aside: called for each row that is set aside.
        on_outage: called when the database or the daemon cannot be used, and again when that is over (None).

    Attributes:
        submitted_count: submissions that were handed over.
        completed_count: completions that were.
        aside_count: rows that were set aside.
        aside: the first of them.
    """

    def __init__(
        self,
        outbox: Outbox,
        daemon: HandOver,
        *,
        batch: int,
        poll_s: float,
        keep_s: float,
        on_aside: Callable[[Aside], None],
        on_outage: Callable[[OpsqError | None], None],
    ) -> None:
        self._outbox = outbox
        self._daemon = daemon
        self._batch = batch
        self._poll_s = poll_s
        self._keep_s = keep_s
        self._on_aside = on_aside
        self._on_outage = on_outage
        self._is_out = False
        self._held_back: set[str] = set()
        self._prune_at = 0.0
        self.submitted_count = self.completed_count = self.aside_count = 0
        self.aside: list[Aside] = []

    def run_once(self, stop: Stop) -> Left:
        """Move what is there; returns what is left.

        Raises:
            Unreachable: the database or the daemon cannot be reached.
            Refused: the daemon takes no more now.
        """
        self._outbox.open()
        while not stop.count and self._round():
            pass
        self._outbox.prune(self._keep_s)
        return self._outbox.left()

    def run(self, stop: Stop) -> None:
        """Move what is there and what comes until it is to end; outages are waited out.

        Raises:
            UsageError: there is no outbox.
            NotPermitted, VersionMismatch: the daemon does not take rows from here.
        """
        pauses = Backoff()
        while not stop.count:
            try:
                is_busy = self._round()
                if self._is_out and not self._held_back:
                    self._is_out = False
                    self._on_outage(None)
                pauses = Backoff()
                if not is_busy:
                    self._prune_if_due()
                    self._outbox.wait(stop.fileno, self._poll_s)
            except Refused as error:
                self._note(error)
                stop.wait(_ROOM_S)
            except Unreachable as error:
                self._note(error)
                stop.wait(pauses.next_s())

    def put_back(self) -> int:
        """Have what was set aside tried again; returns how many rows."""
        self._outbox.open()
        return self._outbox.put_back()

    def close(self) -> None:
        """End both connections."""
        self._daemon.close()
        self._outbox.close()

    # --- inside -------------------------------------------------------------------------------------------------------

    def _round(self) -> bool:
        """Hand over a batch of each kind; whether there may be more.

        Completions go on while the daemon takes no submissions: they make room.
        """
        self._outbox.open()
        self._daemon.open()  # before rows are read
        submissions = self._outbox.take_submissions(self._limit(SUBMISSIONS))
        submitted = self._hand_over(SUBMISSIONS, lambda: self._daemon.submit(submissions), submissions)
        self.submitted_count += len(submitted.done)
        completions = self._outbox.take_completions(self._limit(COMPLETIONS))
        completed = self._hand_over(COMPLETIONS, lambda: self._daemon.complete(completions), completions)
        self.completed_count += len(completed.done)
        held_back = submitted.held_back or completed.held_back
        if held_back is not None and not completed.done:
            raise held_back
        return bool(submissions or completions)

    def _limit(self, table: str) -> int:
        """One row while the daemon takes no more: a larger batch would be written into the store each time."""
        return 1 if table in self._held_back else self._batch

    def _hand_over(self, table: str, hand_over: Callable[[], Outcome], rows: Sequence[object]) -> Outcome:
        if not rows:
            outcome = Outcome()
        else:
            try:
                outcome = hand_over()
            except OpsqError:
                self._outbox.leave()
                raise
        if outcome.held_back is None:
            self._held_back.discard(table)
        else:
            self._held_back.add(table)
        self._outbox.settle(table, outcome.done, outcome.refused)
        for seq, reason in outcome.refused.items():
            self.aside_count += 1
            found = Aside(table, seq, reason)
            if len(self.aside) < REFUSED_LIMIT_COUNT:
                self.aside.append(found)
            self._on_aside(found)
        return outcome

    def _note(self, error: OpsqError) -> None:
        if not self._is_out:
            self._is_out = True
            self._on_outage(error)

    def _prune_if_due(self) -> None:
        now = time.monotonic()
        if now >= self._prune_at:
            self._prune_at = now + _PRUNE_S
            self._outbox.prune(self._keep_s)

"""What the model is made of: one plain object for each chunk, submission and reservation, and the intents of a batch.

No decisions.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import NamedTuple

from opsq.clock import Now
from opsq.queue.chunks import fail
from opsq.wire import messages as m
from unit.model.rig import Ticket

SECOND = 1_000_000_000
HEARTBEAT_S = 5.0
Target = int | str
"""What is waited for: a submission, or a key of metadata, of which one value only is."""
ALARMS = itertools.count()
"""Numbers every alarm that is set."""
FINAL = ("completed", "failed", "cancelled", "expired")


@dataclass(eq=False)
class Reservation:
    """What one reserve call got, or calls of one chunk that were answered together."""

    id: int
    peer: object | None
    is_lease: bool
    length_s: float
    deadline: int
    order: int
    alarm: int = 0  # when it is looked at, which may be before its deadline: one that is moved on keeps its alarm
    alarm_order: int = 0  # of those that are looked at together, the one whose alarm was set first comes first
    is_for_restart: bool = False
    is_taken_up: bool = False  # a lease for a restart that will be its connection's once that is committed
    is_ended: bool = False  # what it still holds is lost with the next batches, unless it is taken up again
    tickets: list[Ticket] = field(default_factory=list)  # in the order in which it got them

    def __post_init__(self) -> None:
        self.set_alarm(self.deadline)

    def set_alarm(self, alarm: int) -> None:
        """Have it looked at then."""
        self.alarm, self.alarm_order = alarm, next(ALARMS)

    def last_until(self, deadline: int) -> None:
        """Move the deadline."""
        self.deadline = deadline
        if deadline < self.alarm:
            self.set_alarm(deadline)

    def add(self, ticket: Ticket, chunks: list[Chunk], *, is_new: bool) -> None:
        """Hold chunks under a ticket."""
        if is_new:
            self.tickets = [*(other for other in self.tickets if other != ticket), ticket]
        for chunk in chunks:
            chunk.state, chunk.reservation, chunk.ticket = "reserved", self, ticket


@dataclass(eq=False)
class Chunk:
    """One chunk, and all there is to know of it."""

    submission: Submission
    index: int
    state: str = "free"  # free, reserved, delayed, done, dead, skipped, dropped
    reservation: Reservation | None = None
    ticket: Ticket | None = None
    is_started: bool = False
    attempts: int = 0
    lost: int = 0
    due: int = 0  # monotonic, while delayed
    due_at: int = 0  # the same as the file has it
    delay_ms: int = 0
    done_by: int = 0
    intent: str = ""  # done, dead, tried, released
    deaths: int = 0
    is_requeued: bool = False  # or dropped, with a batch that has not ended

    def __repr__(self) -> str:
        return (
            f"<{self.submission.id}/{self.index} {self.state} {self.intent} {self.reservation and self.reservation.id}>"
        )

    @property
    def is_free(self) -> bool:
        return self.state == "free" and not self.intent and self.submission.is_open

    def let_go(self) -> None:
        """Nobody holds the chunk any more."""
        self.reservation = self.ticket = None
        self.is_started = False
        if self.state == "reserved":
            self.state = "free"


@dataclass(eq=False)
class Submission:
    """One submission."""

    id: int
    new: m.NewSubmission
    state: str
    chunks: list[Chunk] = field(default_factory=list)
    is_closing: bool = False
    is_opening: bool = False
    is_reviving: bool = False
    not_before_at: int | None = None
    opens: int | None = None  # monotonic
    expires_at: int | None = None
    expires: int | None = None  # monotonic
    waits: dict[Target, str] = field(default_factory=dict)  # what is not decided, and how it must end

    def skip_all(self) -> None:
        """Nothing of it will be handed out."""
        for chunk in self.chunks:
            if chunk.state not in {"done", "dead", "dropped"}:
                chunk.let_go()
                chunk.state = "skipped"

    @property
    def is_open(self) -> bool:
        return self.state == "open" and not self.is_closing

    def free(self) -> list[Chunk]:
        """What may be handed out, by index; the same as `is_free` of each chunk."""
        return [chunk for chunk in self.chunks if chunk.state == "free" and not chunk.intent] if self.is_open else []

    def unfinished(self) -> list[Chunk]:
        return [
            chunk
            for chunk in self.chunks
            if chunk.state not in {"done", "dead", "skipped", "dropped"} and chunk.intent not in {"done", "dead"}
        ]

    def count(self, *states: str) -> int:
        return len([chunk for chunk in self.chunks if chunk.state in states])


class Leased(NamedTuple):
    """The chunks that a lease of the file holds, and, if it is for a restart, those of them that were started."""

    indexes: frozenset[int] = frozenset()
    started: frozenset[int] = frozenset()


@dataclass
class Intents:
    """What travels in one batch: how each change is made, and undone; and what is to be done right after."""

    changes: list[tuple[Callable[[Now], None], Callable[[Now], None]]] = field(default_factory=list)
    after: list[Callable[[Now], None]] = field(default_factory=list)
    following: list[Callable[[Now], None]] = field(default_factory=list)
    submitted: list[int] = field(default_factory=list)
    leases: dict[tuple[int, Ticket], Leased] = field(default_factory=dict)
    tried_rows: int = 0

    @property
    def has_room(self) -> bool:
        """Whether more chunks may fail, or be lost, with it."""
        return self.tried_rows < fail.TRIED_ROWS


Refusals = dict[tuple[int, int], str]

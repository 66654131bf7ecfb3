"""The JSON documents about the daemon, its state and its file, and of the verbs that maintain the installation.

It must not print.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Self

from msgspec import UNSET, UnsetType

from opsq.cli.output.json_output import CauseShape, ErrorShape, Shape
from opsq.cli.output.submission_documents import EventShape, RunningShape
from opsq.daemon.audit_file import Act
from opsq.wire.roles import ROLES

if TYPE_CHECKING:
    from opsq.daemon.tokens_file import TokenEntry
    from opsq.wire.messages import DaemonState


class StartDocument(Shape):
    """`opsq start`, `opsq restart`. `status`: started or already_running; `state` as in `opsq status`."""

    status: str
    pid: int
    socket: str
    state: str


class StopDocument(Shape):
    """`opsq stop`. `status`: stopped or not_running."""

    status: str


class AuditDocument(Shape):
    """`opsq audit`."""

    acts: list[Act]


class TokenShape(Shape):
    """A token that lets clients in over TCP. `created_at`: seconds since 1970."""

    name: str
    roles: list[str]
    created_at: int

    @classmethod
    def from_entry(cls, entry: TokenEntry) -> Self:
        """A token as its file has it."""
        return cls(entry.name, [role for role in ROLES if role in entry.roles], entry.created_at)


class TokensDocument(Shape):
    """`opsq token list`."""

    tokens: list[TokenShape]


class NewTokenDocument(Shape):
    """`opsq token create`. `token` is shown this once."""

    name: str
    roles: list[str]
    token: str


class CountsShape(Shape):
    """Chunks by what they are doing; the six add up to all."""

    submissions: int
    waiting: int
    delayed: int
    reserved: int
    completed: int
    dead: int
    skipped: int


class ValueCounts(CountsShape):
    """`value` null: the submissions without the key."""

    value: int | str | None


class ConsumerShape(Shape):
    """A connected consumer, or the holder of a lease."""

    consumer: str
    is_connected: bool
    reserved: int
    oldest_reservation_s: float
    waiting_strategy: str | None
    is_unmatched: bool


class StatusDocument(Shape):
    """`opsq status`. `by` is empty without --by; `socket` is what was connected to, `socket_source` what chose it.

    `unmatched`: waiting chunks that no strategy of a connected consumer takes; null: no consumer is
    connected, or it is unknown.
    `backlog`: chunks that are waiting, delayed or reserved, and `backlog_limit` how many may be; null: any number.
    `wal_kept_s`: for how long a program that reads the database has kept its long write-ahead log; 0: none does.
    `held_back`: what holds waiting work back; empty: nothing is known to.
    """

    state: str
    server: str
    pid: int
    uptime_s: float
    socket: str
    socket_source: str
    total: CountsShape
    by: list[ValueCounts]
    states: dict[str, int]
    consumers: list[ConsumerShape]
    parked: int
    connections: int
    oldest_reservation_s: float
    unfolded: int
    file_bytes: int
    free_bytes: int
    wal_bytes: int
    settings: dict[str, str]
    unmatched: int | None
    backlog: int
    backlog_limit: int | None
    room_waiting: int
    disk_free_bytes: int | None
    wal_kept_s: float
    held_back: list[CauseShape]
    rate_per_s: float | UnsetType = UNSET
    left_s: float | UnsetType = UNSET

    @classmethod
    def from_state(cls, state: DaemonState, socket: str, socket_source: str) -> Self:
        """The state of the daemon as it describes itself."""
        return cls.from_message(
            state,
            socket=socket,
            socket_source=socket_source,
            total=CountsShape.from_message(state.total),
            by=[ValueCounts.from_message(counts) for counts in state.by],
            consumers=[ConsumerShape.from_message(consumer) for consumer in state.consumers],
            held_back=CauseShape.of(state.held_back),
            backlog=state.total.waiting_count + state.total.delayed_count + state.total.reserved_count,
        )


class TopDocument(Shape):
    """`opsq top`. `running` are the chunks that have run longest, `failures` the newest first."""

    status: StatusDocument
    running: list[RunningShape]
    has_more_running: bool
    failures: list[EventShape]


class SettingShape(Shape):
    """A setting, its value, and where that came from."""

    name: str
    value: str | int | float | bool
    source: str


class ConfigDocument(Shape):
    """`opsq config`."""

    settings: list[SettingShape]


class CheckDocument(Shape):
    """`opsq check`; `problems` is empty when all is well, else there is an `error`."""

    problems: list[str]
    error: ErrorShape | UnsetType = UNSET


class BackupDocument(Shape):
    """`opsq backup`."""

    path: str
    bytes: int


class VacuumDocument(Shape):
    """`opsq vacuum`."""

    bytes: int


class FindingShape(Shape):
    """One thing that was looked at."""

    check: str
    ok: bool
    detail: str
    advice: str


class DoctorDocument(Shape):
    """`opsq doctor`; there is an `error` when a finding is not ok."""

    findings: list[FindingShape]
    error: ErrorShape | UnsetType = UNSET


class DemoDocument(Shape):
    """`opsq demo`."""

    files: int
    bytes: int
    lines: int
    chunks: int
    elapsed_s: float
    chunks_per_s: float
    is_right: bool


class CompletionDocument(Shape):
    """`opsq completion`."""

    shell: str
    script: str

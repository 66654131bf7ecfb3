"""The shape of every JSON document that `--json` prints: one struct per document or part, described in opsq-json(7).

Fields may be added, never removed. Ids and handles are strings, instants are RFC 3339 in UTC, `_s` is seconds. It must not decide what a
document says.
"""

from __future__ import annotations

import msgspec
from msgspec import UNSET, UnsetType

from opsq.errors import OpsqError


class Shape(msgspec.Struct):
    """A JSON object."""


class ErrorShape(Shape):
    """`exit` is the exit status; `code` names the kind, more exactly."""

    code: str
    exit: int
    message: str
    hint: str

    @classmethod
    def of(cls, failure: OpsqError) -> ErrorShape:
        """A failure as JSON."""
        return cls(failure.code, failure.exit_status, failure.message, failure.hint)


class ErrorDocument(Shape):
    """What any verb prints when it fails."""

    error: ErrorShape


# --- hot verbs --------------------------------------------------------------------------------------------------------------------


class ReservedChunk(Shape):
    """A chunk that was reserved, after `attempt` failures and losses."""

    handle: str
    submission_id: str
    index: int
    attempt: int


class ReserveDocument(Shape):
    """`opsq reserve`. `deadline_s`: what is left of the shortest lease."""

    chunks: list[ReservedChunk]
    deadline_s: float


class ReadDocument(Shape):
    """`opsq read`: `text` if the chunk is UTF-8, else `base64`; with --output neither."""

    submission_id: str
    index: int
    bytes: int
    text: str | None = None
    base64: str | None = None
    path: str | None = None


class ChangedDocument(Shape):
    """Verbs that change something, as `complete`, `cancel`, `dead drop`: on how many chunks, submissions or rows it took effect."""

    count: int


# --- submissions ------------------------------------------------------------------------------------------------------------------


class BackoffShape(Shape):
    """Pauses between attempts: `base_s * factor ** (attempts - 1)`, at most `max_s`."""

    base_s: float
    factor: float
    max_s: float


class SubmissionShape(Shape):
    """`opsq show`, which adds the newest attempts that failed; a part of `list` and `wait`. `opsq submit --from-json` takes it."""

    submission_id: str
    state: str
    chunks: int
    completed: int
    dead: int
    skipped: int
    reserved: int
    delayed: int
    waiting: int
    metadata: dict[str, int | str]
    priority: int
    max_attempts: int
    max_lost: int
    backoff: BackoffShape
    on_dead: str
    reservation_s: float
    submitted_at: str
    not_before_at: str | None
    expires_at: str | None
    finished_at: str | None
    unique: str | None
    has_attachment: bool
    reason: str
    unique_until: str | None
    unique_held: bool
    attempts: list[EventShape] | UnsetType = UNSET
    has_more_attempts: bool | UnsetType = UNSET


class ListDocument(Shape):
    """`opsq list`. `next` goes into --before for the next page; null at the end."""

    submissions: list[SubmissionShape]
    next: str | None


class WaitDocument(Shape):
    """`opsq wait`. `error` is there when not all were completed."""

    submissions: list[SubmissionShape]
    error: ErrorShape | UnsetType = UNSET


class SubmitDocument(Shape):
    """`opsq submit`. `created` is false when --unique found an earlier submission; `state`, `output` and `error` come with --wait."""

    submission_id: str
    created: bool
    chunks: int
    bytes: int
    state: str | UnsetType = UNSET
    output: str | UnsetType = UNSET
    error: ErrorShape | UnsetType = UNSET


class RunDocument(Shape):
    """`opsq run`. `results` is there without --output, `error` when `state` is failed; what is left lies in `submissions`."""

    state: str
    submissions: list[str]
    completed: int
    failed: int
    released: int
    dead: int
    bytes: int
    results: list[ResultShape] | UnsetType = UNSET
    output: str | UnsetType = UNSET
    error: ErrorShape | UnsetType = UNSET


class PlannedChunk(Shape):
    """A chunk as it would be: of which input, from which byte on, how long."""

    index: int
    input: str
    offset: int
    bytes: int


class DryRunDocument(Shape):
    """`opsq submit --dry-run`."""

    chunks: int
    bytes: int
    smallest_bytes: int
    largest_bytes: int
    first: list[PlannedChunk]


class ResultsDocument(Shape):
    """`opsq results --output`."""

    submission_id: str
    state: str
    bytes: int
    path: str


class ResultShape(Shape):
    """One result of `opsq results`, in chunk order: `text` if it is UTF-8, else `base64`."""

    text: str | None = None
    base64: str | None = None


class DeadShape(Shape):
    """A chunk whose attempts are used up."""

    submission_id: str
    index: int
    attempts: int
    lost: int
    dead_at: str
    reason: str
    exit_status: int | None
    signal: int | None


class DeadDocument(Shape):
    """`opsq dead list`; with --dry-run also `dead requeue` and `dead drop`."""

    chunks: list[DeadShape]


class EventShape(Shape):
    """One row of history, of `chunks` chunks of one block; a line of `opsq history export`, and its columns. `chunks` 0: all of them."""

    seq: int
    at: str
    event: str
    submission_id: str
    first_index: int | None
    chunks: int
    indexes: str
    attempt: int
    consumer: str
    started_at: str | None
    wait_s: float
    run_s: float
    run_max_s: float
    exit_status: int | None
    signal: int | None
    reason: str
    metadata: dict[str, int | str]


class HistoryDocument(Shape):
    """`opsq history list`. `next` goes into --after for the next page; null at the end."""

    events: list[EventShape]
    next: str | None


class ExportDocument(Shape):
    """`opsq history export` into files. `last_seq`: where the next export goes on; null when there was nothing."""

    rows: int
    files: list[str]
    last_seq: int | None


class ChunkDocument(Shape):
    """`opsq show SUBMISSION/INDEX`, `opsq dead show`; `state` is the verdict of `opsq explain`, `events` are the newest, oldest first."""

    submission_id: str
    index: int
    state: str
    submission_state: str
    metadata: dict[str, int | str]
    dead: DeadShape | None
    events: list[EventShape]
    has_more_events: bool


# --- the daemon -------------------------------------------------------------------------------------------------------------------


class StartDocument(Shape):
    """`opsq start`, `opsq restart`. `status`: started or already_running."""

    status: str
    pid: int
    socket: str


class StopDocument(Shape):
    """`opsq stop`. `status`: stopped or not_running."""

    status: str


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


class StatusDocument(Shape):
    """`opsq status`. `by` is empty without --by; `socket` is what this command connected to, and `socket_source` what chose it.

    `unmatched`: waiting chunks that no strategy of a connected consumer takes; null: nobody is connected, or counters cannot tell.
    `backlog`: chunks that are waiting, delayed or reserved, and `backlog_limit` how many may be; null: any number.
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


class SettingShape(Shape):
    """A setting, its value as one would write it, and where that came from."""

    name: str
    value: str
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


class ChunkEndShape(Shape):
    """A line of `opsq consume` per program that has ended, after `attempt` failures and losses; `outcome`: completed or failed."""

    submission_id: str
    index: int
    attempt: int
    outcome: str
    exit_status: int | None
    signal: str | None
    run_s: float
    reason: str


class CommandShape(Shape):
    """A line of `opsq consume --dry-run` per program that would be run."""

    submission_id: str
    index: int
    argv: list[str]


class ConsumeDocument(Shape):
    """The last line of `opsq consume`: what became of the chunks that it was given.

    There is an `error` when some died, and `taken` when another consumer had the name of --single.
    """

    completed: int
    failed: int
    dead: int
    released: int
    taken: bool | UnsetType = UNSET
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

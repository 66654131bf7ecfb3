"""The options that choose dead letters and events by what is known of them, and what they mean to the daemon.

Each set of options is declared once, as a named tuple, for all verbs that have it. It must not ask the daemon.
"""

from __future__ import annotations

import signal as signals
from collections.abc import Sequence
from typing import Annotated, NamedTuple

import typer

from opsq.cli.options import values
from opsq.errors import UsageError
from opsq.ids import SubmissionId, parse_submission_id
from opsq.units import parse_duration
from opsq.wire.messages import DeadFilter, HistoryFilter

EVENTS = ("completed", "failed", "lost", "dead", "requeued", "dropped", "cancelled", "expired")

Metadata = Annotated[
    list[str] | None,
    typer.Option("--metadata", "-m", metavar="KEY=VALUE", help="Only of submissions with this metadata; repeatable."),
]
Reason = Annotated[
    str, typer.Option("--reason", metavar="TEXT", help="Only with this text in the reason, in upper or lower case.")
]
ExitStatus = Annotated[
    list[int] | None,
    typer.Option(
        "--exit-status",
        metavar="N",
        help="Only after this exit status of the program (repeatable; or one of --signal).",
    ),
]
Signal = Annotated[
    list[str] | None,
    typer.Option(
        "--signal",
        metavar="NAME",
        help="Only after this signal, such as KILL or 9 (repeatable; or one of --exit-status).",
    ),
]


class DeadConditions(NamedTuple):
    """Which dead chunks."""

    metadata: Metadata = None
    older_than: Annotated[
        str | None, typer.Option("--older-than", metavar="D", help="Only those that died this long ago, or longer.")
    ] = None
    newer_than: Annotated[
        str | None, typer.Option("--newer-than", metavar="D", help="Only those that died within this time.")
    ] = None
    reason: Reason = ""
    exit_status: ExitStatus = None
    signal: Signal = None

    def as_filter(self) -> DeadFilter:
        """The conditions as the daemon takes them."""
        older_s = values.duration("--older-than", self.older_than)
        newer_s = values.duration("--newer-than", self.newer_than)
        now = values.now_ms()
        return DeadFilter(
            metadata=values.metadata(self.metadata or []),
            from_at=None if newer_s is None else max(now - int(newer_s * 1000), 0),
            to_at=None if older_s is None else max(now - int(older_s * 1000) + 1, 0),
            reason=self.reason,
            exit_statuses=_statuses(self.exit_status),
            signals=_signals(self.signal),
        )


class EventConditions(NamedTuple):
    """Which events."""

    event: Annotated[
        list[str] | None, typer.Option("--event", metavar="EVENT", help=f"Only these, repeatable: {', '.join(EVENTS)}.")
    ] = None
    consumer: Annotated[
        str, typer.Option("--consumer", metavar="NAME", help="Only of consumers whose name begins so.")
    ] = ""
    metadata: Metadata = None
    reason: Reason = ""
    exit_status: ExitStatus = None
    signal: Signal = None
    since: Annotated[
        str | None,
        typer.Option("--since", metavar="T", help="Only from this instant on; a duration, such as 2h, is so long ago."),
    ] = None
    until: Annotated[
        str | None, typer.Option("--until", metavar="T", help="Only before this instant; a duration as with --since.")
    ] = None

    def as_filter(self, subject: str | None) -> HistoryFilter:
        """The conditions as the daemon takes them, for a submission, or a chunk of it, or everything."""
        for name in self.event or []:
            if name not in EVENTS:
                raise UsageError(f"--event {name}: there is no such event.", hint=f"Events are {', '.join(EVENTS)}.")
        submission_id, index = chunk_name(subject) if subject else (None, None)
        return HistoryFilter(
            submission_id=submission_id,
            index=index,
            events=self.event or [],
            consumer=self.consumer,
            metadata=values.metadata(self.metadata or []),
            from_at=_ago("--since", self.since),
            to_at=_ago("--until", self.until),
            reason=self.reason,
            exit_statuses=_statuses(self.exit_status),
            signals=_signals(self.signal),
        )


def chunk_name(text: str) -> tuple[SubmissionId, int | None]:
    """A submission, and the index of a chunk if `text` is SUBMISSION/INDEX.

    Raises:
        UsageError: it is neither.
    """
    submission_text, slash, index_text = text.partition("/")
    submission_id = parse_submission_id(submission_text)
    if not slash:
        return submission_id, None
    if not (index_text.isascii() and index_text.isdigit() and len(index_text) < 19):
        raise UsageError(f"{text!r} names no chunk: write SUBMISSION/INDEX, as `opsq dead list` prints it.")
    return submission_id, int(index_text)


def signal_number(option: str, text: str) -> int:
    """The number of a signal that is named SIGKILL, KILL, kill or 9.

    Raises:
        UsageError: there is no such signal.
    """
    if text.isascii() and text.isdigit() and 0 < int(text) < 256:
        return int(text)
    name = text.upper()
    try:
        return signals.Signals[name if name.startswith("SIG") else f"SIG{name}"].value
    except KeyError:
        raise UsageError(f"{option} {text}: there is no such signal.", hint="Write KILL, SIGKILL or 9.") from None


def _signals(names: Sequence[str] | None) -> list[int]:
    return [signal_number("--signal", name) for name in names or []]


def _statuses(numbers: Sequence[int] | None) -> list[int]:
    for number in numbers or []:
        if not 0 <= number <= 255:
            raise UsageError(f"--exit-status {number}: an exit status lies between 0 and 255.")
    return list(numbers or [])


def _ago(option: str, text: str | None) -> int | None:
    """Milliseconds since 1970: of an instant, or of so long ago."""
    if text is None:
        return None
    try:
        return max(values.now_ms() - int(parse_duration(text) * 1000), 0)
    except ValueError:
        return values.instant(option, text)

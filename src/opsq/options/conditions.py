"""How submissions, chunks, dead chunks and events are named or chosen on the command line.

Each set of options is declared once, as a named tuple, for all verbs that have it. It must not ask the daemon.
"""

from __future__ import annotations

import signal as signals
from typing import NamedTuple

from opsq.errors import UsageError
from opsq.ids import SubmissionId, parse_submission_id
from opsq.options import values
from opsq.options.option import OneOf, Whole, argument, duration, option, option_set
from opsq.units import parse_count, parse_duration
from opsq.wire.messages import EVENTS, STATES, UNFINISHED_STATES, DeadFilter, HistoryFilter


def submission(_: str, text: str) -> SubmissionId:
    """The id of a submission."""
    return parse_submission_id(text)


def signal_number(origin: str, text: str) -> int:
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
        raise UsageError(f"{origin} {text}: there is no such signal.", hint="Write KILL, SIGKILL or 9.") from None


def _ago(origin: str, text: str) -> int:
    """Milliseconds since 1970: of an instant, or of a duration before now."""
    try:
        return max(values.now_ms() - int(parse_duration(text) * 1000), 0)
    except ValueError:
        return values.instant(origin, text)


UNFINISHED, FINAL = UNFINISHED_STATES, STATES[len(UNFINISHED_STATES) :]
STATE = option("--state STATE...", f"Only these states: {', '.join(STATES)}.", OneOf(STATES))
UNFINISHED_STATE = option("--state STATE...", f"Only these states: {', '.join(UNFINISHED)}.", OneOf(UNFINISHED))
FINAL_STATE = option("--state STATE...", f"Only these states: {', '.join(FINAL)}.", OneOf(FINAL))
IDS = argument("[ID...]", "Submissions, as `opsq submit` and `opsq list` print them; or give conditions.", submission)
SUBJECT = argument("[ID]", "Only of this submission, or of a chunk of it as SUBMISSION/INDEX.")
SINCE = option("--since T", "Only since this time; a duration, such as 2h, counts back from now.", _ago)
UNTIL = option("--until T", "Only before this time; a duration as with --since.", _ago)
_METADATA = option("-m, --metadata KEY=VALUE...", "Only of submissions with this metadata; repeatable.")
_REASON = option("--reason TEXT", "Only with this text in the reason, ignoring case.", default="")
_EXIT_STATUS = option(
    "--exit-status N...", "Only after this exit status of the program (repeatable; or one of --signal).", Whole(0, 255)
)
_SIGNAL = option(
    "--signal NAME...",
    "Only after this signal, such as KILL or 9 (repeatable; or one of --exit-status).",
    signal_number,
)


@option_set
class SubmissionConditions(NamedTuple):
    """Which submissions."""

    state: list[str] = STATE
    metadata: list[str] = _METADATA
    older_s: float | None = option("--older-than D", "Only those submitted at least this long ago.", duration)
    newer_s: float | None = option("--newer-than D", "Only those submitted within this time.", duration)

    def submitted(self) -> tuple[int | None, int | None]:
        """From when to before when they were submitted, in milliseconds since 1970; None: at any time."""
        return _span(self.newer_s, self.older_s)


@option_set
class DeadConditions(NamedTuple):
    """Which dead chunks."""

    metadata: list[str] = _METADATA
    older_s: float | None = option("--older-than D", "Only those that died at least this long ago.", duration)
    newer_s: float | None = option("--newer-than D", "Only those that died within this time.", duration)
    reason: str = _REASON
    exit_status: list[int] = _EXIT_STATUS
    signal: list[int] = _SIGNAL

    def as_filter(self) -> DeadFilter:
        """The conditions as the daemon takes them."""
        from_at, to_at = _span(self.newer_s, self.older_s)
        return DeadFilter(
            metadata=values.metadata(self.metadata),
            from_at=from_at,
            to_at=to_at,
            reason=self.reason,
            exit_statuses=self.exit_status,
            signals=self.signal,
        )


@option_set
class EventConditions(NamedTuple):
    """Which events."""

    event: list[str] = option("--event EVENT...", f"Only these, repeatable: {', '.join(EVENTS)}.", OneOf(EVENTS))
    consumer: str = option("--consumer NAME", "Only of consumers whose name starts with this.", default="")
    metadata: list[str] = _METADATA
    reason: str = _REASON
    exit_status: list[int] = _EXIT_STATUS
    signal: list[int] = _SIGNAL
    since: int | None = SINCE
    until: int | None = UNTIL

    def as_filter(self, subject: str | None) -> HistoryFilter:
        """The conditions as the daemon takes them, for a submission, or a chunk of it, or everything."""
        submission_id, index = chunk_name(subject) if subject else (None, None)
        return HistoryFilter(
            submission_id=submission_id,
            index=index,
            events=self.event,
            consumer=self.consumer,
            metadata=values.metadata(self.metadata),
            from_at=self.since,
            to_at=self.until,
            reason=self.reason,
            exit_statuses=self.exit_status,
            signals=self.signal,
        )


def _span(newer_s: float | None, older_s: float | None) -> tuple[int | None, int | None]:
    """The instants in `[from, to)` that lie within the one and at least the other duration before now."""
    now = values.now_ms()
    return (
        None if newer_s is None else max(now - int(newer_s * 1000), 0),
        None if older_s is None else max(now - int(older_s * 1000) + 1, 0),
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
    index = parse_count(index_text)
    if index is None:
        raise UsageError(f"{text!r} names no chunk: write SUBMISSION/INDEX, as `opsq dead list` prints it.")
    return submission_id, index

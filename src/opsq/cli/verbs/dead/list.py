"""The verb dead list: dead chunks, why and when they died."""

from __future__ import annotations

from opsq.cli.caller import Caller
from opsq.cli.dead_chunks import DeadChoice, print_dead
from opsq.cli.output.long_list import DEFAULT_TEXT
from opsq.errors import UsageError
from opsq.ids import SubmissionId
from opsq.options.conditions import DeadConditions, chunk_name
from opsq.options.option import COUNT, argument, option, options


def list_(
    caller: Caller,
    conditions: DeadConditions = options(DeadConditions),
    submissions: list[str] = argument("[ID...]", "Only of these submissions."),
    limit: int | None = option("-n, --limit N", f"List at most N chunks; {DEFAULT_TEXT}.", COUNT),
) -> None:
    """List dead chunks: chunk, attempts, losses, time of death, exit status or signal, reason."""
    where = conditions.as_filter()
    chosen = [DeadChoice(_submission(text), None, where) for text in submissions]
    print_dead(caller, chosen or [DeadChoice(None, None, where)], limit)


def _submission(text: str) -> SubmissionId:
    submission_id, index = chunk_name(text)
    if index is not None:
        raise UsageError(f"{text} names a chunk.", hint=f"`opsq dead show {text}` shows it.")
    return submission_id

"""The verb dead show: one dead chunk with its attempts."""

from __future__ import annotations

from opsq.cli.caller import Caller
from opsq.cli.output.chunk_page import show_chunk
from opsq.errors import UsageError
from opsq.options.conditions import chunk_name
from opsq.options.option import argument


def show(caller: Caller, chunk: str = argument("SUBMISSION/INDEX", "The dead chunk.")) -> None:
    """Show everything about a dead chunk: each attempt, and the full last reason, usually the end of stderr."""
    submission_id, index = chunk_name(chunk)
    if index is None:
        raise UsageError(
            f"{chunk} names a submission, not a chunk.", hint="Write SUBMISSION/INDEX, as `opsq dead list` prints it."
        )
    show_chunk(caller, submission_id, index, must_be_dead=True)

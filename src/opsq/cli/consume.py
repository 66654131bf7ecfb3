"""The verb consume: runs a program for each chunk. How children are run and reported stands in opsq.runner."""

from __future__ import annotations

from typing import Annotated

import typer
from msgspec.structs import replace

from opsq.cli import values
from opsq.cli.caller import Caller
from opsq.cli.failure import Silent
from opsq.cli.json_shapes import ConsumeDocument, ErrorShape
from opsq.cli.reach import with_restart
from opsq.cli.submissions import pairs_text
from opsq.errors import InvalidStrategy, OpsqError, WorkFailed
from opsq.runner.pool import consume as run
from opsq.wire.messages import List, Listed, RulesState, ShowRules


def consume(
    caller: Caller,
    command: Annotated[list[str], typer.Argument(metavar="CMD", help="The program and its arguments, behind --.")],
    jobs: Annotated[
        int | None, typer.Option("--jobs", "-j", min=1, max=4096, metavar="N", help="How many at once; by default one a core.")
    ] = None,
    strategy: Annotated[
        str, typer.Option("--strategy", "-s", metavar="STRATEGY", help="Which chunks come first; see `opsq explain`.")
    ] = "Random",
    until_empty: Annotated[
        bool, typer.Option("--until-empty", help="End when nothing is free, reserved by anyone or waiting for a retry.")
    ] = False,
    until_idle: Annotated[bool, typer.Option("--until-idle", help="End as soon as nothing can be reserved.")] = False,
    name: Annotated[str, typer.Option("--name", metavar="NAME", help="What this consumer is called in `opsq status`.")] = "",
    grace: Annotated[str | None, typer.Option("--grace", metavar="D", help="How long what runs may go on after a signal.")] = None,
) -> None:
    """Run a program for each chunk: the chunk is its stdin, its stdout is the result, exit 0 completes.

    Any other exit fails the chunk, with the tail of stderr as the reason. Chunks may be run more than once, when a consumer is lost.
    """
    values.exclude(until_empty=until_empty, until_idle=until_idle)
    grace_s = values.duration("--grace", grace)
    with caller.progress() as progress:
        try:
            outcome = run(
                caller.connect,
                command,
                jobs=jobs,
                strategy=strategy,
                until="empty" if until_empty else "idle" if until_idle else "",
                name=name,
                grace_s=caller.settings.grace_s if grace_s is None else grace_s,
                progress=progress,
            )
        except InvalidStrategy as error:
            raise with_restart(error, caller.settings, strategy) from None
    if until_empty and not outcome.signal:
        _remark_paused(caller)
    document = ConsumeDocument(outcome.completed_count, outcome.failed_count, outcome.dead_count, outcome.released_count)
    if not outcome.dead_count:
        caller.document(document)
        if outcome.signal:
            raise Silent(128 + outcome.signal)
        return
    failure = WorkFailed(f"{values.counted(outcome.dead_count, 'chunk')} died.", hint="`opsq dead list` tells why.")
    caller.document(replace(document, error=ErrorShape.of(failure)))
    raise caller.told(failure)


def _remark_paused(caller: Caller) -> None:
    """Tell a person that paused work was left, which --until-empty does not wait for."""
    if not caller.is_remarking:
        return
    try:
        with caller.connect() as daemon:
            for pause in daemon.call(ShowRules(daemon.next_id()), RulesState).pauses:
                pairs = {key: value for key, value in pause.metadata.items() if key != "submission"}
                held = daemon.call(List(daemon.next_id(), ["open"], pairs), Listed).submissions
                if any(pause.metadata.get("submission", one.submission_id) == one.submission_id for one in held):
                    on = pairs_text(pause.metadata) or "all work"
                    caller.remark(f"What is paused was left: {on}. `opsq limits` lists pauses, `opsq resume` ends them.")
                    return
    except OpsqError:
        return  # the work is done, and this was only a remark

"""The verb consume: runs a program for each chunk.

It must not run children itself: `opsq.runner` does.
"""

from __future__ import annotations

import json
import os
import sys
from typing import Literal

from msgspec import structs
from msgspec.structs import replace

from opsq.cli.caller import Caller
from opsq.cli.daemon_address import with_restart
from opsq.cli.output.error_report import Exit
from opsq.cli.output.progress import WorkViewer
from opsq.cli.program_options import TTY, Consuming, Records
from opsq.cli.shard_options import need_shards
from opsq.documents.shape import ErrorShape
from opsq.documents.submission_text import pairs_text
from opsq.documents.submissions import CommandShape, ConsumeDocument
from opsq.errors import InvalidStrategy, OpsqError, WorkFailed
from opsq.ids import SubmissionId
from opsq.options import values
from opsq.options.conditions import submission
from opsq.options.option import COUNT, argument, option, options, positive_duration
from opsq.runner.feeding.program_kinds import check_command
from opsq.runner.pool import consume as run
from opsq.runner.pool_options import ConsumeOptions
from opsq.runner.stderr_logs import check_folder
from opsq.runner.stop_signals import StopSignals
from opsq.units import counted
from opsq.wire.messages import List, Listed, RulesState, Show, Shown, ShowRules

_REHEARSED_COUNT = 10


def consume(
    caller: Caller,
    command: list[str] = argument("COMMAND...", "The program and its arguments, behind --."),
    programs: Consuming = options(Consuming),
    records: Records = options(Records),
    strategy: str = option("-s, --strategy STRATEGY", "Which chunks come first; see `opsq explain`.", default="Random"),
    submission_id: SubmissionId | None = option(
        "--submission ID", "Take chunks of this submission only, in the order of --strategy.", submission
    ),
    shards: str | None = option(
        "--shards N-M",
        "Over several shards: take chunks of these only, as in 0-3,7.",
        shown="all",
        environment="OPSQ_SHARDS",
    ),
    until_empty: bool = option("--until-empty", "End when nothing is free, reserved by anyone or waiting for a retry."),
    until_idle: bool = option("--until-idle", "End as soon as nothing can be reserved."),
    max_chunks: int | None = option("--max-chunks N", "End after N chunks were completed or failed.", COUNT),
    stop_after_s: float | None = option(
        "--stop-after D", "Start no chunk after this long; end when running programs have ended.", positive_duration
    ),
    single: str | None = option(
        "--single NAME", "Exit 0 at once if the daemon already has a consumer with this NAME.", values.consumer_name
    ),
    tty: bool = TTY,
    name: str = option("--name NAME", "The name of this consumer in `opsq status`.", values.consumer_name, default=""),
    dry_run: bool = option(
        "--dry-run", "Run nothing; print the command lines for the next --max-chunks chunks, by default 10."
    ),
    exit_status: Literal["opsq", "child"] = option(
        "--exit-status opsq|child",
        "Exit with opsq's own status, or with that of the first program that did not exit 0.",
        default="opsq",
    ),
) -> None:
    """Run a program for each chunk: the chunk is its stdin, its stdout is the result, exit 0 completes.

    Any other exit fails the chunk, with the tail of stderr as the reason. A chunk may be run more than once, when a
    consumer is lost.
    """
    values.exclude(until_empty=until_empty, until_idle=until_idle)
    if shards:
        need_shards(caller, "--shards")
    how = programs.as_options(caller, records.as_separator(), tty=tty)._replace(
        strategy=strategy,
        submission_id=submission_id,
        until="empty" if until_empty else "idle" if until_idle else "",
        max_chunks=max_chunks,
        stop_after_s=stop_after_s,
        claim=single or "",
        name=name,
    )
    if submission_id is not None:
        with caller.connect() as daemon:
            daemon.call(Show(daemon.next_id(), submission_id), Shown)
    check_command(command, how.feeding)
    if dry_run:
        _rehearse(caller, command, how)
        return
    with WorkViewer(caller, is_reporting=programs.progress, is_drawing=not tty) as viewer, StopSignals() as signals:
        try:
            outcome = run(caller.connect, command, how, viewer=viewer, signals=signals)
        except InvalidStrategy as error:
            raise with_restart(error, caller.settings, strategy) from None
        if outcome.signal:
            viewer.hurry()
    if outcome.is_taken:
        caller.remark(f"Another consumer runs under the name {single!r}; nothing was done.")
        caller.document(ConsumeDocument(0, 0, 0, 0, taken=True))
        return
    signal = outcome.signal or (signals.last if until_empty or until_idle else 0)
    if until_empty and not signal:
        _remark_paused(caller)
    document = ConsumeDocument(
        outcome.completed_count, outcome.failed_count, outcome.dead_count, outcome.released_count
    )
    is_childs = exit_status == "child" and not signal
    if not outcome.dead_count:
        _print_end(caller, document, viewer)
        if signal:
            raise Exit(128 + signal)
        if is_childs:
            raise Exit(outcome.child_status)
        return
    failure = WorkFailed(f"{counted(outcome.dead_count, 'chunk')} died.", hint="`opsq dead list` shows why.")
    _print_end(caller, replace(document, error=ErrorShape.of(failure)), viewer)
    reported = caller.report_error(failure)
    raise Exit(outcome.child_status) if is_childs else reported


def _rehearse(caller: Caller, command: list[str], options: ConsumeOptions) -> None:
    """Print what would be run, one line each: for a shell, or as JSON, in which bytes that are not text are
    surrogates.
    """
    from opsq.runner.command_preview import rehearse

    if options.logs is not None:
        check_folder(options.logs)
    count = options.max_chunks or _REHEARSED_COUNT
    for found in rehearse(
        lambda: caller.connect(name=options.name), command, options.feeding, options.whole_strategy, count
    ):
        if caller.is_json:
            # msgspec writes no lone surrogates, and here they are what makes the words exact.
            shape = CommandShape(str(found.submission_id), found.index, list(map(os.fsdecode, found.argv)))
            line = json.dumps(structs.asdict(shape)).encode()
        else:
            line = found.line
        sys.stdout.buffer.write(line + b"\n")
        sys.stdout.buffer.flush()


def _print_end(caller: Caller, document: ConsumeDocument, viewer: WorkViewer) -> None:
    """Print the closing document, unless the reader of the earlier lines has gone: that is not a failure.

    Raises:
        OSError: the lines could not be written for another reason.
    """
    if isinstance(viewer.stdout_error, BrokenPipeError):
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, 1)
        os.close(nowhere)
    elif viewer.stdout_error is not None:
        raise viewer.stdout_error
    caller.document(document)


def _remark_paused(caller: Caller) -> None:
    """Remark that paused work was left, which --until-empty does not wait for."""
    if not caller.is_remarking:
        return
    try:
        with caller.connect() as daemon:
            for pause in daemon.call(ShowRules(daemon.next_id()), RulesState).pauses:
                pairs = {key: value for key, value in pause.metadata.items() if key != "submission"}
                held = daemon.call(List(daemon.next_id(), ["open"], pairs), Listed).submissions
                if any(pause.metadata.get("submission", one.submission_id) == one.submission_id for one in held):
                    on = pairs_text(pause.metadata) or "all work"
                    caller.remark(f"Paused work was left: {on}. `opsq limits` lists pauses, `opsq resume` ends them.")
                    return
    except OpsqError:
        return  # the work is done, and this was only a remark

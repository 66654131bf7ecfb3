"""The verb submit: reads its options; with --wait it also sees to the rest of the round. How content is uploaded stands in `upload`."""

from __future__ import annotations

import sys
from typing import Annotated, Literal

import typer
from msgspec.structs import replace

from opsq.cli.caller import Caller
from opsq.cli.options import values
from opsq.cli.options.chunk_options import Cutting
from opsq.cli.options.submission_template import Template, read_template
from opsq.cli.output.submission_documents import DryRunDocument, PlannedChunk, SubmitDocument
from opsq.cli.upload import RoomDeadline, Upload, expand, plan_of, read_whole
from opsq.cli.verbs.rules import weights_of
from opsq.content.input_chunks import Plan
from opsq.errors import OpsqError, UsageError
from opsq.ids import SubmissionId


def submit(
    caller: Caller,
    cutting: Cutting,
    inputs: Annotated[
        list[str] | None, typer.Argument(metavar="FILE", help="Files or quoted globs; - is stdin.")
    ] = None,
    metadata: Annotated[
        list[str] | None,
        typer.Option("--metadata", "-m", metavar="KEY=VALUE", help="Strategic metadata; any number of times."),
    ] = None,
    attach: Annotated[
        str | None, typer.Option("--attach", metavar="FILE", help="A file that each consumer can ask for.")
    ] = None,
    priority: Annotated[
        int | None,
        typer.Option("--priority", metavar="N", help="Higher comes first under CustomPriority; 0 by default."),
    ] = None,
    max_attempts: Annotated[
        int | None, typer.Option("--max-attempts", min=1, metavar="N", help="Failures until a chunk is dead.")
    ] = None,
    max_lost: Annotated[
        int | None, typer.Option("--max-lost", min=1, metavar="N", help="Lost consumers until a chunk is dead.")
    ] = None,
    on_dead: Annotated[
        Literal["fail", "keep"] | None,
        typer.Option("--on-dead", help="A dead chunk fails the submission (default), or the rest goes on."),
    ] = None,
    backoff: Annotated[
        str | None,
        typer.Option("--backoff", metavar="BASE,FACTOR,MAX", help="Pauses between attempts, such as 1s,2,5m."),
    ] = None,
    weight: Annotated[
        list[str] | None,
        typer.Option(
            "--weight", metavar="KEY=N", help="Set the weight in Fair of the value that this submission has of a key."
        ),
    ] = None,
    delay: Annotated[
        str | None, typer.Option("--delay", metavar="D", help="Hand nothing out before this long from now.")
    ] = None,
    at: Annotated[
        str | None,
        typer.Option(
            "--at", metavar="INSTANT", help="Hand nothing out before 2025-01-31T08:00, local time, or …Z, or @SECONDS."
        ),
    ] = None,
    expires: Annotated[
        str | None, typer.Option("--expires", metavar="D|INSTANT", help="Give up what is not finished by then.")
    ] = None,
    unique: Annotated[
        str | None,
        typer.Option("--unique", metavar="KEY", help="If an unfinished submission has this key, print its id instead."),
    ] = None,
    unique_until: Annotated[
        Literal["start", "done"] | None,
        typer.Option(
            "--unique-until",
            help="Until when the key is taken: a chunk is handed out, or the submission has ended (default).",
        ),
    ] = None,
    reservation: Annotated[
        str | None,
        typer.Option("--reservation", metavar="D", help="How long a consumer may keep a chunk without a sign of life."),
    ] = None,
    in_place: Annotated[
        bool,
        typer.Option("--in-place", help="Do not copy: consumers read the files where they are, unless they change."),
    ] = False,
    wait_for_room: Annotated[
        str | None,
        typer.Option(
            "--wait-for-room",
            metavar="[=D]",
            help="If there is no room, wait for it, at most so long; without =D without limit.",
        ),
    ] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Show how many chunks there would be; write nothing.")
    ] = False,
    wait: Annotated[bool, typer.Option("--wait", help="Wait for the end, as `opsq wait` does.")] = False,
    output: Annotated[
        str | None, typer.Option("--output", "-o", metavar="FILE", help="With --wait: write the results to this file.")
    ] = None,
    from_json: Annotated[
        str | None,
        typer.Option(
            "--from-json",
            metavar="FILE|-",
            help="Take options from a document of `opsq show --json`; without FILE arguments also its chunks.",
        ),
    ] = None,
) -> None:
    """Submit files or stdin as chunks; prints the id of the submission alone.

    By default a chunk is the longest run of whole lines up to 1 MiB. Stdin is read only when - is given.
    """
    values.exclude(delay=delay, at=at)
    if unique_until is not None and unique is None:
        raise UsageError("--unique-until says how long the key of --unique is taken, so it needs that.")
    values.exclude(dry_run=dry_run, wait=wait)
    values.exclude(dry_run=dry_run, from_json=from_json)
    if output is not None and not wait:
        raise UsageError("--output is where the results go, so it needs --wait.")
    paths = expand(inputs or [])
    if in_place and "-" in paths:
        raise UsageError(
            "Stdin (-) cannot be read in place: it is gone once it is read.",
            hint="Leave out --in-place, or name a file.",
        )
    splitting = cutting.as_splitting()
    template = Template() if from_json is None else read_template(from_json)
    if not paths and template.submission_id is None:
        raise UsageError("opsq submit needs a FILE, or - for stdin.", hint="`opsq submit --help` explains it.")
    if dry_run:
        _print_plan(caller, plan_of(paths, splitting))
        return
    expires_s, expires_at = values.duration_or_instant("--expires", expires)
    delay_s, not_before_at = values.duration("--delay", delay), None if at is None else values.instant("--at", at)
    _check_expiry(expires, expires_s, expires_at, delay_s, not_before_at)
    rules = template.rules(
        metadata=values.metadata(metadata or []),
        attachment=None if attach is None else read_whole(attach),
        priority=priority,
        max_attempts=max_attempts,
        max_lost=max_lost,
        keep_on_dead=None if on_dead is None else on_dead == "keep",
        backoff=values.backoff(backoff),
        reservation_s=values.duration("--reservation", reservation) or None,
        delay_s=delay_s,
        not_before_at=not_before_at,
        expires_s=expires_s,
        expires_at=expires_at,
        unique_key=unique,
        unique_until_start=unique_until == "start",
        weights=weights_of(weight or []),
    )
    upload = Upload(caller, rules, RoomDeadline.of(wait_for_room), template)
    content, created = upload.hand_over(paths, splitting, is_in_place=in_place)
    document = SubmitDocument(str(created.submission_id), created.is_new, content.chunks_count, content.total_bytes)
    caller.lines([document.submission_id])
    if wait:
        sys.stdout.flush()
        _finish(caller, document, output)
    else:
        caller.document(document)


def _check_expiry(
    text: str | None, expires_s: float | None, expires_at: int | None, delay_s: float | None, not_before_at: int | None
) -> None:
    """See to it that a submission does not expire before anything of it may be handed out."""
    now = values.now_ms()
    end = expires_at if expires_s is None else now + int(expires_s * 1000)
    if end is None:
        return
    if end <= now:
        raise UsageError(f"--expires {text}: that is over already.", hint="Give a time that lies ahead.")
    start = not_before_at if delay_s is None else now + int(delay_s * 1000)
    if start is not None and end <= start:
        option = "--at" if delay_s is None else "--delay"
        raise UsageError(f"--expires {text}: nothing is handed out before {option}, so it must be later than that.")


def _finish(caller: Caller, document: SubmitDocument, output: str | None) -> None:
    """Wait for the end and write the results."""
    from opsq.cli.output.result_writer import ResultStream, write_output
    from opsq.cli.verbs.wait import failure_of, tell_going_on, wait_for

    submission_id = SubmissionId(int(document.submission_id))
    try:
        states = wait_for(caller, [submission_id], None)
    except KeyboardInterrupt:
        caller.document(document)  # nobody could tell its id otherwise
        sys.stdout.flush()
        tell_going_on(caller, [submission_id], output)
        raise
    document = replace(document, state=states[0].state)
    failure: OpsqError | None = failure_of(states)
    if failure is None and output is not None:
        try:
            with caller.connect() as daemon:
                write_output(ResultStream(daemon, submission_id, is_following=False, is_skipping=False), output)
        except OpsqError as error:
            failure = error
        else:
            document = replace(document, output=output)
    caller.conclude(document, failure)


def _print_plan(caller: Caller, found: Plan) -> None:
    first = [PlannedChunk(i, chunk.name, chunk.offset_bytes, chunk.size_bytes) for i, chunk in enumerate(found.first)]
    caller.document(
        DryRunDocument(found.chunks_count, found.total_bytes, found.smallest_bytes, found.largest_bytes, first)
    )
    names = ("chunks_count", "total_bytes", "smallest_bytes", "largest_bytes")
    caller.table(("", ""), [(name.replace("_", " "), getattr(found, name)) for name in names])
    rows = [(f"chunk {chunk.index}", chunk.input, chunk.offset, chunk.bytes) for chunk in first]
    caller.table(("first chunks", "input", "from byte", "bytes"), rows, right=frozenset({"from byte", "bytes"}))

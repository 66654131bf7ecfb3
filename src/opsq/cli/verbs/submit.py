"""The verb submit: hands over an input as chunks; with --wait it also waits for the end and writes the results.

It must not transfer content itself: `cli.upload` does.
"""

from __future__ import annotations

import sys
from typing import Literal

from msgspec.structs import replace

from opsq.cli.caller import Caller
from opsq.cli.shard_options import need_shards
from opsq.cli.submission_template import Template, read_template
from opsq.cli.upload import RoomDeadline, Upload, expand, read_whole
from opsq.content.input_chunks import Plan
from opsq.content.input_file import STDIN, is_compressed
from opsq.content.input_remarks import input_remarks
from opsq.content.output_file import is_stdout
from opsq.content.result_shaping import ResultShaping
from opsq.content.splitter import Splitting
from opsq.documents.shape import path_text
from opsq.documents.submissions import DryRunDocument, PlannedChunk, SubmitDocument
from opsq.errors import OpsqError, UsageError
from opsq.ids import SubmissionId
from opsq.options import values
from opsq.options.chunk_options import Cutting
from opsq.options.option import argument, option, options
from opsq.options.result_options import Shaping
from opsq.options.submission_options import Rules


def submit(
    caller: Caller,
    cutting: Cutting = options(Cutting),
    inputs: list[str] = argument("[FILE...]", "Files or quoted globs; - is stdin."),
    rules: Rules = options(Rules),
    shard_by: str | None = option(
        "--shard-by KEY",
        "Over several shards: the metadata key whose value says which one gets it.",
        shown="the one with most room",
        environment="OPSQ_SHARD_BY",
    ),
    ack: Literal["committed", "replicated"] | None = option(
        "--ack committed|replicated",
        "Return once it is committed, or once the daemon's replica has it, too.",
        shown="the setting ack",
    ),
    attach: str | None = option("--attach FILE", "A file to attach, which every consumer can read."),
    in_place: bool = option(
        "--in-place", "Do not copy: consumers read the files where they are; they must not change."
    ),
    wait_for_room: str | None = option(
        "--wait-for-room [=D]",
        "If the backlog is full, wait for room, for at most this long; without =D without limit.",
    ),
    dry_run: bool = option("--dry-run", "Show which chunks there would be, or what refuses them; submit nothing."),
    wait: bool = option("--wait", "Wait for the end, as `opsq wait` does."),
    output: str | None = option(
        "-o, --output FILE", "With --wait: write the results to this file; - is stdout, and then the id goes to stderr."
    ),
    shaping: Shaping = options(Shaping),
    from_json: str | None = option(
        "--from-json FILE|-",
        "Take options from a document of `opsq show --json`; without FILE arguments also its chunks.",
    ),
) -> None:
    """Submit files or stdin as chunks; prints only the id of the submission.

    By default a chunk is the longest run of whole lines up to 1 MiB. Stdin is read only when - is given.
    """
    fields = rules.as_fields()
    values.exclude(dry_run=dry_run, wait=wait)
    if output is not None and not wait:
        raise UsageError("--output needs --wait.")
    if any(shaping) and output is None:
        raise UsageError("--header-once and --end-lines need --output.")
    writes_stdout = output is not None and is_stdout(output)
    if writes_stdout and caller.is_json:
        raise UsageError("--output - and --json both write to stdout.", hint="Name a file.")
    paths = expand(inputs)
    if [*paths, attach, from_json].count(STDIN) > 1:
        raise UsageError("Stdin (-) can be read only once.")
    if in_place and STDIN in paths:
        raise UsageError(
            "Stdin (-) cannot be read in place: it can be read only once.",
            hint="Leave out --in-place, or name a file.",
        )
    splitting = cutting.as_splitting()
    template = Template() if from_json is None else read_template(from_json)
    if not paths:
        if template.submission_id is None:
            raise UsageError("opsq submit needs a FILE, or - for stdin.", hint="`opsq submit --help` explains it.")
        if in_place or replace(splitting, dialect=None) != Splitting():
            raise UsageError(
                "Without FILE, --from-json takes the chunks as they are.",
                hint="Leave out the options that say how files are cut and read, or name a FILE.",
            )
    if in_place and (packed := next((path for path in paths if splitting.decompresses and is_compressed(path)), None)):
        raise UsageError(
            f"{packed} is compressed, so what it holds cannot be read in place.",
            hint="Leave out --in-place, or add --as-is to take the file as it is.",
        )
    if in_place and splitting.strips_crlf:
        raise UsageError(
            "What is read in place has its carriage returns.", hint="Leave out --in-place, or --crlf strip."
        )
    if shard_by:
        need_shards(caller, "--shard-by")
    for remark in input_remarks(paths, splitting):
        caller.warn(remark)
    new = template.rules(attachment=None if attach is None else read_whole(attach), ack=ack, **fields)
    upload = Upload(caller, new, RoomDeadline.of(wait_for_room), template)
    if dry_run:
        _print_plan(caller, upload.rehearse(paths, splitting, is_in_place=in_place))
        return
    content, created = upload.hand_over(paths, splitting, is_in_place=in_place)
    if new.idempotency_key is not None and not created.is_new:
        with caller.connect() as daemon:
            upload.note_known(daemon, created.submission_id, content)
    document = SubmitDocument(str(created.submission_id), created.is_new, content.chunks_count, content.total_bytes)
    if writes_stdout:
        print(document.submission_id, file=sys.stderr)
    else:
        caller.lines([document.submission_id])
    if wait:
        sys.stdout.flush()
        _finish(caller, document, output, shaping.as_shaping(cutting.dialect))
    else:
        caller.document(document)


def _finish(caller: Caller, document: SubmitDocument, output: str | None, shaping: ResultShaping) -> None:
    """Wait for the end and write the results."""
    from opsq.cli.lasting_connection import LastingConnection
    from opsq.cli.output.result_writer import ResultStream, write_output
    from opsq.cli.submission_end import failure_of, remark_unfinished, wait_for

    submission_id = SubmissionId(int(document.submission_id))
    try:
        states = wait_for(caller, [submission_id], None)
    except KeyboardInterrupt:
        caller.document(document)  # its id would be lost otherwise
        sys.stdout.flush()
        remark_unfinished(caller, [submission_id], output)
        raise
    document = replace(document, state=states[0].state)
    failure: OpsqError | None = failure_of(caller, states)
    if failure is None and output is not None:
        try:
            with LastingConnection(caller) as daemon:
                stream = ResultStream(daemon, submission_id, is_following=False, is_skipping=False)
                write_output(stream, output, shaping)
        except OpsqError as error:
            failure = error
        else:
            document = replace(document, output=output)
    caller.conclude(document, failure)


def _print_plan(caller: Caller, found: Plan) -> None:
    first = [PlannedChunk(i, path_text(chunk.name), *chunk[1:]) for i, chunk in enumerate(found.first)]
    caller.document(
        DryRunDocument(found.chunks_count, found.total_bytes, found.smallest_bytes, found.largest_bytes, first)
    )
    names = ("chunks_count", "total_bytes", "smallest_bytes", "largest_bytes")
    caller.table(("", ""), [(name.replace("_", " "), getattr(found, name)) for name in names])
    rows = [
        (f"chunk {chunk.index}", "stdin" if chunk.input == STDIN else chunk.input, chunk.offset, chunk.bytes)
        for chunk in first
    ]
    caller.table(("first chunks", "input", "from byte", "bytes"), rows, right=frozenset({"from byte", "bytes"}))
